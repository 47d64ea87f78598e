"""Image references: what the grammar takes, and what never reaches an engine."""

import pytest

from jobs.domain.image import (
    ImageError,
    ImageReference,
    full_reference,
    is_allowed,
    parse_image,
)

SHA256 = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "registry", "path", "tag", "digest"),
    [
        ("busybox", "", "busybox", "", ""),
        ("a/b:1", "", "a/b", "1", ""),
        ("registry.example/acme/report:3", "registry.example", "acme/report", "3", ""),
        (
            "registry.example:5000/a/b_c/d.e:v1.2-3",
            "registry.example:5000",
            "a/b_c/d.e",
            "v1.2-3",
            "",
        ),
        ("localhost/x", "localhost", "x", "", ""),
        ("localhost:5000/x:latest", "localhost:5000", "x", "latest", ""),
        ("[::1]:5000/x", "[::1]:5000", "x", "", ""),
        ("Registry.Example/x", "Registry.Example", "x", "", ""),
        (f"a/b@{SHA256}", "", "a/b", "", SHA256),
        (f"a/b:1@{SHA256}", "", "a/b", "1", SHA256),
        ("x@sha512:" + "0" * 128, "", "x", "", "sha512:" + "0" * 128),
        ("x__y/z---z", "", "x__y/z---z", "", ""),
        ("x:" + "t" * 128, "", "x", "t" * 128, ""),
        ("a" * 255, "", "a" * 255, "", ""),
    ],
)
def test_a_reference_is_taken_apart(
    text: str, registry: str, path: str, tag: str, digest: str
) -> None:
    assert parse_image(text) == ImageReference(registry, path, tag, digest)


@pytest.mark.parametrize(
    "text",
    [
        # Read as an option by a command line.
        "--privileged", "-v/:/host", "-", "-registry.example/x",
        # URLs and paths.
        "https://registry.example/x", "docker://x", "/etc/passwd", "../../a", "./a", "a/../b",
        "a//b", "a/", "/",
        # White space, control characters, what a shell would act on.
        "a b", " a", "a ", "a\n", "a\nb", "\ta", "a\0", "a;id", "a|b", "$(id)", "`id`", "a&b",
        # Letters that aren't allowed where they are.
        "UPPER/case", "Busybox", "acme/Report", "é/x", "ａ", "a:é", "а/cyrillic",
        # Separators.
        "a.", ".a", "a..b", "a___b", "_a", "-a/b", "a-",
        # Tags and digests.
        "x:tag:tag", "a:", ":1", "a:-1", "a:.1", "x:" + "t" * 129, "a@", "@", f"@{SHA256}",
        "x@sha256:zz", "x@sha256:" + "A" * 64, "x@sha256:" + "a" * 63, "x@md5:" + "a" * 32,
        f"x@{SHA256}\n", f"x@{SHA256}@{SHA256}",
        # Ports.
        "registry.example:/x", "registry.example:0/x", "registry.example:65536/x",
        "registry.example:5000000/x", "registry.example:http/x",
        # Sizes, and an id in place of a name.
        "", "a" * 256, "a/" + "b" * 2000, "a" * 64,
    ],
)  # fmt: skip
def test_what_is_no_reference_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ImageError) as refusal:
        parse_image(text)
    assert refusal.value.message
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("prefixes", "allowed"),
    [
        ([], True),
        (["registry.example"], True),
        (["registry.example/acme"], True),
        (["registry.example/acme/"], True),
        (["registry.example/acme/report"], True),
        (["registry.example/acme/report:3"], True),
        (["other.example", "registry.example/acme"], True),
        (["registry.example/acme/report:4"], False),
        (["registry.example/acme/rep"], False),
        (["registry.exam"], False),
        (["registry.example:5000"], False),
        ([""], False),
    ],
)
def test_an_allow_list_ends_where_a_part_of_the_name_ends(
    prefixes: list[str], allowed: bool
) -> None:
    assert is_allowed("registry.example/acme/report:3", prefixes) is allowed


def test_another_port_of_an_allowed_registry_is_another_registry() -> None:
    assert not is_allowed("registry.example:5000/acme/report", ["registry.example"])


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("acme/report", "docker.io/acme/report:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("registry.example/report:3", "registry.example/report:3"),
        ("localhost:5000/x", "localhost:5000/x:latest"),
        (f"a/b@{SHA256}", f"docker.io/a/b@{SHA256}"),
        (f"a/b:1@{SHA256}", f"docker.io/a/b:1@{SHA256}"),
        # What an engine would look up among the ids of its images.
        ("cbb9", "docker.io/library/cbb9:latest"),
        (SHA256, f"docker.io/library/{SHA256}"),
        ("sha256:cbb9", "docker.io/library/sha256:cbb9"),
    ],
)
def test_a_full_reference_names_registry_path_and_tag(text: str, full: str) -> None:
    assert full_reference(text) == full
    assert full_reference(full) == full
