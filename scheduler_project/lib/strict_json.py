"""JSON bodies with one reading only; its rule: what two parsers could read differently is refused.

UTF-8 without byte order mark, one object at the top, no key twice, no NaN, no NUL, no half of a
surrogate pair, bounded size, depth and numbers. All bounds are checked before the work they bound.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any, Final

from django.conf import settings
from django.http.request import UnreadablePostError
from rest_framework.parsers import BaseParser

from scheduler_project.lib.problems import FieldProblem, Problem, invalid_fields, path_of

# Deeper than any of our objects, far from the depth at which Python's own parser gives up.
MAX_DEPTH: Final = 32
# More digits than any number we take has; Python itself refuses to read from 4,300 on.
MAX_DIGITS: Final = 40
# A body of a thousand bad strings gets an answer that names the first few.
MAX_ERRORS: Final = 20

# A string (perhaps unterminated) is one token, so that brackets inside it don't count. Possessive
# quantifiers and the optional closing quote keep the scan linear for hostile bodies.
_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_CONTROL: Final = re.compile("[\x00\ud800-\udfff]")


class _Duplicate:
    """Stands in a parsed body for an object with a repeated key, until its path is known."""

    def __init__(self, key: str) -> None:
        self.key = key


class _TooLarge:
    """Stands for a number that nothing here can hold, until its path is known."""


class _NotFinite:
    """Stands for NaN or an Infinity, until its path is known."""

    def __init__(self, name: str) -> None:
        self.name = name


class StrictJSONParser(BaseParser):  # type: ignore[misc, unused-ignore]
    """The API's only parser: returns the body's object as a dict, or raises a Problem."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        charset = re.search(r";\s*charset\s*=\s*\"?([^\s;\"]*)", media_type or "", re.IGNORECASE)
        if charset and charset[1].lower() not in ("utf-8", "utf8"):
            raise Problem("unsupported_media_type", f"The charset {charset[1]!r} is not UTF-8.")
        request = (parser_context or {}).get("request")
        announced = request.META.get("CONTENT_LENGTH") if request is not None else None
        body = read_bounded(stream, announced, settings.API_MAX_BODY_BYTES)
        return parse_object(body)


def read_bounded(stream: IO[bytes], announced: str | None, limit: int) -> bytes:
    """Return the body, at most `limit` bytes; the announced length is believed only to refuse.

    Raises Problem body_too_large, or bad_request when the body ends before its announced length
    (working on half a body would be worse than refusing it).
    """
    expected = int(announced) if announced and announced.isdecimal() else None
    if expected is not None and expected > limit:
        raise _too_large(limit)
    try:
        body = stream.read(limit + 1)
    except UnreadablePostError as error:
        raise Problem("bad_request", "The body could not be read to its end.") from error
    if len(body) > limit:
        raise _too_large(limit)
    if expected is not None and len(body) < expected:
        raise Problem("bad_request", f"The body ended after {len(body)} of {expected} bytes.")
    return body


def _too_large(limit: int) -> Problem:
    return Problem("body_too_large", f"The body is larger than {limit} bytes.")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    Raises Problem body_required, invalid_json (the text as a whole is wrong), body_not_object, or
    invalid_request (single values are wrong; `errors` names them by path).
    """
    if not body.strip(b" \t\r\n"):
        raise Problem("body_required")
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise Problem("invalid_json", "The body begins with a byte order mark; send plain UTF-8.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem("invalid_json", f"Byte {error.start} of the body is not UTF-8.") from error
    check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem("invalid_json", f"{error.msg} ({where}).") from error
    if isinstance(value, _Duplicate):
        raise invalid_fields(_errors_in(value))
    if not isinstance(value, dict):
        raise Problem("body_not_object", f"The body is {json_type(value)}, not an object.")
    errors = _errors_in(value)
    if errors:
        raise invalid_fields(errors)
    return value


def check_depth(text: str) -> None:
    """Raise Problem invalid_json when brackets nest deeper than MAX_DEPTH; linear in the text."""
    # Few brackets can't nest deep: the common body skips the scan.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Problem("invalid_json", f"The body nests deeper than {MAX_DEPTH} levels.")
        elif bracket in "]}":
            depth -= 1


def json_type(value: object) -> str:
    """Return the name a caller knows the type of a parsed value by: `a text`, `null`…"""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "a number out of bounds"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Duplicate:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    return _Duplicate(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]


def _constant(name: str) -> _NotFinite:
    return _NotFinite(name)


def _integer(digits: str) -> int | _TooLarge:
    return int(digits) if len(digits) <= MAX_DIGITS else _TooLarge()


def _float(digits: str) -> float | _TooLarge:
    number = float(digits)
    return number if math.isfinite(number) else _TooLarge()


def _errors_in(value: Any) -> list[FieldProblem]:
    """Return what is wrong with single values of a parsed body, with their paths, in order."""
    errors: list[FieldProblem] = []
    pending: list[tuple[str, Any]] = [("", value)]
    while pending and len(errors) < MAX_ERRORS:
        path, item = pending.pop()
        match item:
            case str() if found := _CONTROL.search(item):
                errors.append(_bad_character(path, found[0]))
            case _Duplicate():
                errors.append(_duplicate(path, item.key))
            case _TooLarge():
                errors.append(
                    FieldProblem(path, "too_large", "The number is beyond anything used here.")
                )
            case _NotFinite():
                errors.append(FieldProblem(path, "not_finite", f"{item.name} is not JSON."))
            case dict():
                for key in item:
                    if found := _CONTROL.search(key):
                        errors.append(_bad_character(path_of(path, ascii(key)[1:-1]), found[0]))
                pending += [(path_of(path, key), child) for key, child in reversed(item.items())]
            case list():
                pending += [
                    (path_of(path, index), child)
                    for index, child in reversed(list(enumerate(item)))
                ]
    return errors


def _bad_character(path: str, character: str) -> FieldProblem:
    if character == "\0":
        message = "The text holds a NUL character, which can't be stored."
    else:
        message = f"The text holds \\u{ord(character):04x}, half of a surrogate pair."
    return FieldProblem(path, "invalid_character", message)


def _duplicate(path: str, key: str) -> FieldProblem:
    # The key may itself hold what must not be echoed.
    shown = key.encode("utf-8", "replace").decode().replace("\0", "?")
    return FieldProblem(
        path_of(path, shown),
        "duplicate_key",
        "The key is given more than once.",
        "Keep one of them.",
    )
