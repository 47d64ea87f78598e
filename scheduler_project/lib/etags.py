"""Versions in HTTP: ETag, If-Match, If-None-Match; its rule: a tag begins with the version.

An ETag is `"3"`, or `"3.1f0c…"` when the representation also holds what changes without a new
version. If-Match names versions (the guard of an UPDATE), so both forms of a version are the same
to it; If-None-Match compares whole tags (has anything I show changed?).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from rest_framework.request import Request

from scheduler_project.lib.problems import Problem

# Larger than any version column holds; a larger one in a tag is simply nobody's version.
_MAX_VERSION: Final = 2**31 - 1
# What a tag names that is no version of anything: versions begin at 1.
NO_VERSION: Final = 0
_MAX_LENGTH: Final = 1_024
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_BARE: Final = re.compile(r"\d{1,20}", re.ASCII)
_VERSION_IN_TAG: Final = re.compile(r"([1-9]\d{0,9})(?:\.[0-9a-f]+)?", re.ASCII)


@dataclass(frozen=True)
class IfMatch:
    """What If-Match accepts: any current version (`*`), or one of `versions` (perhaps none)."""

    any: bool
    versions: frozenset[int] = frozenset()

    def accepts(self, version: int) -> bool:
        return self.any or version in self.versions


def etag_of(version: int, *shown: object) -> str:
    """Return the ETag of `version`; `shown` is what else of the representation may change."""
    if not shown:
        return f'"{version}"'
    digest = hashlib.sha256("\x1f".join(map(str, shown)).encode()).hexdigest()[:12]
    return f'"{version}.{digest}"'


def parse_if_match(header: str | None) -> IfMatch:
    """Return what the If-Match header accepts: `*`, `"3"`, bare `3`, or a list of them.

    A weak tag (`W/"3"`) accepts nothing, as RFC 9110 says. Raises Problem precondition_required
    without the header, invalid_if_match when it is malformed.
    """
    if header is None or not header.strip():
        raise Problem("precondition_required")
    if header.strip() == "*":
        return IfMatch(any=True)
    versions = set()
    for weak, tag in _tags(header):
        match = _VERSION_IN_TAG.fullmatch(tag)
        if match and not weak and int(match[1]) <= _MAX_VERSION:
            versions.add(int(match[1]))
    return IfMatch(any=False, versions=frozenset(versions))


def expected_version(request: Request, *, is_required: bool) -> int | None:
    """Return the version that If-Match names, or None when any will do (`*`, or no header).

    NO_VERSION when the header names none that an object can have: the guard then finds none.
    Raises Problem precondition_required without a header that `is_required`, invalid_if_match when
    it is malformed or names several versions.
    """
    header = request.META.get("HTTP_IF_MATCH")
    if not is_required:
        if header is None:
            return None
        if not header.strip():  # a variable that was empty, most likely: not "any will do"
            raise Problem("invalid_if_match")
    accepted = parse_if_match(header)
    if accepted.any:
        return None
    if len(accepted.versions) > 1:
        raise Problem("invalid_if_match", "If-Match names several versions; name one, or `*`.")
    return next(iter(accepted.versions), NO_VERSION)


def is_unmodified(request: Request, etag: str) -> bool:
    """Tell whether If-None-Match names `etag`, so that 304 is the answer to a GET.

    A malformed header is treated as absent: the full answer is always right.
    """
    header = request.META.get("HTTP_IF_NONE_MATCH")
    if header is None or not header.strip():
        return False
    if header.strip() == "*":
        return True
    try:
        return any(f'"{tag}"' == etag for _, tag in _tags(header))
    except Problem:
        return False


def _tags(header: str) -> list[tuple[bool, str]]:
    """Return (is weak, text) of each tag in a list; raises Problem invalid_if_match."""
    if len(header) > _MAX_LENGTH:
        raise Problem("invalid_if_match")
    tags = []
    for part in header.split(","):
        text = part.strip(" \t")
        if match := _TAG.fullmatch(text):
            tags.append((match[1] is not None, match[2]))
        elif _BARE.fullmatch(text):
            tags.append((False, text))
        elif text:
            raise Problem("invalid_if_match")
    if not tags:
        raise Problem("invalid_if_match")
    return tags
