"""Which image does a text name? Its rule: the reference grammar, or a clear refusal.

The grammar is that of the distribution project (github.com/distribution/reference) as the Docker
command line applies it: a first part is a registry only when it holds a dot, a colon or is
`localhost`. A text outside the grammar never reaches an engine, so nothing in it can be read as
an option, a URL or a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# The distribution project's bounds.
NAME_LENGTH: Final = 255
TAG_LENGTH: Final = 128
# Name, tag and the longest digest, with their separators: anything longer isn't looked at.
REFERENCE_LENGTH: Final = NAME_LENGTH + 1 + TAG_LENGTH + 1 + len("sha512:") + 128

# Registered algorithms (OCI image specification) and the hexadecimal digits of each.
DIGEST_DIGITS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}

_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::([0-9]{{1,5}}))?")
_PATH_PART: Final = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{TAG_LENGTH - 1}}}")
_HEX: Final = re.compile(r"[a-f0-9]+")
_HIGHEST_PORT: Final = 65_535
# Where a name without a registry is looked for; single names stand below `library` there.
_DEFAULT_REGISTRY: Final = "docker.io"
_HUBS: Final = (_DEFAULT_REGISTRY, "index.docker.io")
_EXAMPLE: Final = '"registry.example/team/report:3" or "…/report@sha256:<64 hexadecimal digits>"'


class ImageError(ValueError):
    """A text that is not an image reference; `message` says why, `hint` what is accepted."""

    def __init__(self, message: str, hint: str = _EXAMPLE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ImageReference:
    """The parts of a reference as written; a part left out is the empty text."""

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Registry and path, without tag and digest."""
        return f"{self.registry}/{self.path}" if self.registry else self.path


def parse_image(text: str) -> ImageReference:
    """The reference that `text` names; raises ImageError when it is not in the grammar."""
    if not text:
        raise ImageError("image is empty")
    if len(text) > REFERENCE_LENGTH:
        raise ImageError(f"image is longer than {REFERENCE_LENGTH} characters")
    if "://" in text:
        raise ImageError("image is a reference, not a URL", "leave out the scheme (https://, …)")
    named, at, digest = text.partition("@")
    if at:
        _check_digest(digest)
    first, slash, rest = named.partition("/")
    registry = first if slash and _is_registry(first) else ""
    path, colon, tag = (rest if registry else named).partition(":")
    if registry:
        _check_registry(registry)
    _check_path(path)
    if colon and not _TAG.fullmatch(tag):
        raise ImageError(f"the tag must be 1 to {TAG_LENGTH} letters, digits, '_', '.' or '-'")
    reference = ImageReference(registry, path, tag, digest)
    if len(reference.name) > NAME_LENGTH:
        raise ImageError(f"the image's name is longer than {NAME_LENGTH} characters")
    return reference


def is_allowed(text: str, allowed_prefixes: list[str]) -> bool:
    """Whether a tenant may run the valid reference `text`: an empty list allows every image.

    A prefix ends where a part of the name ends, or is a whole reference:
    `registry.example/acme` allows `registry.example/acme/report:3`, and neither
    `registry.example/acme-evil/report` nor another port of `registry.example`.
    """
    within = f"{parse_image(text).name}/"
    return not allowed_prefixes or any(
        text == prefix or (prefix and within.startswith(f"{prefix.rstrip('/')}/"))
        for prefix in allowed_prefixes
    )


def full_reference(text: str) -> str:
    """The valid reference `text` with registry, path and tag written out, for an engine.

    Engines also look a short name up among the ids of their images: `cbb9` or `sha256:cbb9` would
    run whatever image has an id that begins so, another tenant's too. A full name is no id.
    """
    reference = parse_image(text)
    registry = reference.registry or _DEFAULT_REGISTRY
    own_path = reference.registry not in ("", *_HUBS) or "/" in reference.path
    path = reference.path if own_path else f"library/{reference.path}"
    tag = reference.tag or ("" if reference.digest else "latest")
    return (
        f"{registry}/{path}"
        + (f":{tag}" if tag else "")
        + (f"@{reference.digest}" if reference.digest else "")
    )


def _is_registry(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost"


def _check_registry(registry: str) -> None:
    match = _HOST.fullmatch(registry)
    if match is None:
        raise ImageError("the registry is not a host name with an optional port")
    if match[1] is not None and not 1 <= int(match[1]) <= _HIGHEST_PORT:
        raise ImageError(f"the registry's port must be between 1 and {_HIGHEST_PORT}")


def _check_path(path: str) -> None:
    if path != path.lower():
        raise ImageError("the image's path must be in lower case")
    if not all(_PATH_PART.fullmatch(part) for part in path.split("/")):
        raise ImageError(
            "each part of the image's path must be lower-case letters and digits, "
            "with single '.', '_', '__' or dashes between them"
        )
    if len(path) == DIGEST_DIGITS["sha256"] and _HEX.fullmatch(path):
        # Engines read 64 hexadecimal digits as the id of a local image: whatever lies there runs.
        raise ImageError("64 hexadecimal digits are an image's local id, not a reference")


def _check_digest(digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    digits = DIGEST_DIGITS.get(algorithm)
    if digits is None or len(encoded) != digits or not _HEX.fullmatch(encoded):
        raise ImageError(
            "the digest must be sha256, sha384 or sha512 with its 64, 96 or 128 lower-case "
            "hexadecimal digits"
        )
