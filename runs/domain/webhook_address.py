"""Where may a webhook go? Its rule: only to public unicast addresses, never into our own network.

A name is judged by the addresses that it resolves to, when it is registered and again at each
connection, which goes to the very address that was judged: a name that answers differently the
second time (DNS rebinding) gains nothing.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

URL_LENGTH: Final = 2_048
_PORT_OF: Final = {"https": 443, "http": 80}
# Printable ASCII without what parsers disagree about.
_URL: Final = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
# A last label like this makes a name a number to some resolvers: 127.1, 0x7f.1, 2130706433.
_NUMBER: Final = re.compile(r"(?:[0-9]+|0[xX][0-9a-fA-F]*)")
# Names that mean "here" or "inside" whatever a resolver says.
_INSIDE: Final = ("localhost", "local", "internal", "localdomain", "home.arpa", "in-addr.arpa")

# Refused by name, not only by `is_global`, whose table differs between versions of Python.
_REFUSED: Final = tuple(
    (ipaddress.ip_network(network), why)
    for network, why in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local, metadata services included"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved by IETF"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        # A virtual public address by which hosts of one cloud reach its platform.
        ("168.63.129.16/32", "metadata of a cloud"),
        ("::/96", "unspecified, loopback or IPv4-compatible"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/64", "discard only"),
        ("2001::/23", "reserved by IETF, Teredo included"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)


@dataclass(frozen=True)
class AddressPolicy:
    """What an installation allows. `allow_private` is for development and tests alone."""

    allow_http: bool = False
    allow_private: bool = False
    ports: frozenset[int] = frozenset({443, 8443})
    # Public networks that are the installation's own.
    refused: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()


@dataclass(frozen=True)
class Target:
    """Where a request goes: `host` is a name in lower case or an address without brackets."""

    scheme: str
    host: str
    port: int
    # Path and query, as it goes on the wire.
    path: str

    @property
    def host_header(self) -> str:
        """The Host header: the port only where it isn't the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORT_OF[self.scheme] else f"{host}:{self.port}"


class UrlError(ValueError):
    """The URL can't be a webhook's; the message says why."""


def parse_target(url: str, policy: AddressPolicy) -> Target:
    """Read a webhook's URL; raises UrlError. Addresses in it are judged, names are not resolved."""
    if not 0 < len(url) <= URL_LENGTH or not _URL.fullmatch(url):
        raise UrlError(f"must be a URL of 1 to {URL_LENGTH} ASCII characters, the rest in %XX")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlError("is not a URL") from error
    schemes = ("https", "http") if policy.allow_http else ("https",)
    if parts.scheme not in schemes or not url.lower().startswith(f"{parts.scheme}://"):
        raise UrlError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if "@" in parts.netloc:
        raise UrlError("must hold no user and no password")
    if "#" in url:
        raise UrlError("must have no fragment (#…)")
    host = _host(parts.hostname or "", policy)
    port = _PORT_OF[parts.scheme] if port is None else port
    if not policy.allow_private and port not in policy.ports | {_PORT_OF[parts.scheme]}:
        allowed = ", ".join(map(str, sorted(policy.ports | {_PORT_OF[parts.scheme]})))
        raise UrlError(f"port {port} is not one of {allowed}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path)


def _host(host: str, policy: AddressPolicy) -> str:
    host = host.rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        why = refusal_of(str(address), policy)
        if why:
            raise UrlError(f"{host} is not a public address: {why}")
        return str(address)
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlError("has no host name that could exist; international names go in as xn--…")
    if _NUMBER.fullmatch(labels[-1]):
        raise UrlError("has an address in a form that is not accepted; write a.b.c.d")
    inside = any(host == name or host.endswith(f".{name}") for name in _INSIDE)
    if (inside or len(labels) == 1) and not policy.allow_private:
        raise UrlError(f"{host} is a name inside a network, not a public one")
    return host


def refusal_of(address: str, policy: AddressPolicy) -> str | None:
    """Why no connection may go to this address; None: it may. An address that can't be read may
    not."""
    if policy.allow_private:
        return None
    try:
        # With a zone (fe80::1%eth0) it is nobody's public address.
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not an address"
    for network, why in _REFUSED:
        if parsed.version == network.version and parsed in network:
            return why
    if any(parsed.version == own.version and parsed in own for own in policy.refused):
        return "refused by this installation"
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved:
        return "not public"
    return None


def refused_among(addresses: Iterable[str], policy: AddressPolicy) -> tuple[str, str] | None:
    """The first address that is refused, with the reason.

    One is enough to refuse a name: who mixes public and inner addresses tries their luck.
    """
    for address in addresses:
        if why := refusal_of(address, policy):
            return address, why
    return None
