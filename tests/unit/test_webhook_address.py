"""Where a webhook may go: public addresses, in the one form that all parsers read alike."""

import ipaddress

import pytest

from runs.domain.webhook_address import (
    AddressPolicy,
    Target,
    UrlError,
    parse_target,
    refusal_of,
    refused_among,
)

PUBLIC = AddressPolicy()
DEVELOPMENT = AddressPolicy(allow_http=True, allow_private=True)

INNER = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1",
    "127.255.255.254", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:10.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    "not an address", "",
]  # fmt: skip


@pytest.mark.parametrize("address", INNER)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal_of(address, PUBLIC)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.15.0.1", "100.128.0.1", "2606:4700::1", "2a00:1450::5"]
)
def test_a_public_address_is_taken(address: str) -> None:
    assert ipaddress.ip_address(address).is_global
    assert refusal_of(address, PUBLIC) is None


def test_one_inner_address_among_public_ones_refuses_the_name() -> None:
    assert refused_among(["8.8.8.8", "2606:4700::1"], PUBLIC) is None
    assert refused_among(["8.8.8.8", "10.1.2.3"], PUBLIC) == ("10.1.2.3", "private")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://hooks.example.com", Target("https", "hooks.example.com", 443, "/")),
        ("https://Hooks.Example.com./a?b=c", Target("https", "hooks.example.com", 443, "/a?b=c")),
        ("https://hooks.example.com:8443/x", Target("https", "hooks.example.com", 8443, "/x")),
        ("https://8.8.8.8/x", Target("https", "8.8.8.8", 443, "/x")),
        ("https://[2606:4700::1]/x", Target("https", "2606:4700::1", 443, "/x")),
        (
            "https://xn--bcher-kva.example/%20",
            Target("https", "xn--bcher-kva.example", 443, "/%20"),
        ),
    ],
)
def test_a_url_is_read(url: str, target: Target) -> None:
    assert parse_target(url, PUBLIC) == target


@pytest.mark.parametrize(
    "url",
    [
        "", "https://", "http://hooks.example.com/", "ftp://hooks.example.com/",
        "https:hooks.example.com", "https:///hooks.example.com", "//hooks.example.com/",
        "https://user@hooks.example.com/", "https://u:p@hooks.example.com/",
        "https://8.8.8.8@127.0.0.1/", "https://hooks.example.com/#part",
        "https://hooks.example.com/ x", "https://hooks.example.com/\r\nHost: a",
        "https://hooks.example.com\\@127.0.0.1/", "https://bücher.example/",
        "https://hooks.example.com:99999/", "https://hooks.example.com:0x50/",
        "https://hooks.example.com:22/", "https://hooks.example.com:6379/",
        "https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/",
        "https://0x7f.1/", "https://017700000001/", "https://[::1]/", "https://[::ffff:7f00:1]/",
        "https://[fe80::1%25eth0]/", "https://169.254.169.254/latest/meta-data",
        "https://localhost/", "https://api.localhost/", "https://metadata.google.internal/",
        "https://redis/", "https://-a.example/", "https://a..example/", "https://a_b.example/",
        f"https://{'a' * 64}.example/", f"https://hooks.example.com/{'a' * 2048}",
    ],
)  # fmt: skip
def test_a_url_that_is_not_for_us_is_refused(url: str) -> None:
    with pytest.raises(UrlError):
        parse_target(url, PUBLIC)


def test_development_may_go_to_this_very_machine() -> None:
    target = parse_target("http://127.0.0.1:8099/hook", DEVELOPMENT)
    assert (target.port, target.host_header) == (8099, "127.0.0.1:8099")
    assert refusal_of("127.0.0.1", DEVELOPMENT) is None


def test_the_host_header_has_the_port_only_where_it_is_not_the_schemes_own() -> None:
    assert parse_target("https://a.example:443/", PUBLIC).host_header == "a.example"
    assert parse_target("https://a.example:8443/", PUBLIC).host_header == "a.example:8443"
    assert parse_target("https://[2606:4700::1]:8443/", PUBLIC).host_header == "[2606:4700::1]:8443"
