"""Strict input fields; its rule: a value has the right JSON type or is refused, never converted.

Text with a meaning for people (names, descriptions, labels) is stored in Unicode form NFC, so that
what looks equal is equal: text that is NFC already is kept byte for byte. Text that a container
gets (arguments, environment values) is never touched (`nfc=False`, the default).
"""

import difflib
import math
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

from rest_framework import serializers

from scheduler_project.lib.instants import INSTANT_EXAMPLE, format_instant, parse_instant
from scheduler_project.lib.strict_json import json_type

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# The most characters that the form NFC makes one of.
_LONGEST_COMPOSED: Final = 4
_CONTROL_BUT_LINES: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class _Code(str):
    """An error code that carries a hint: the framework rebuilds messages, and keeps the code."""

    __slots__ = ("hint",)
    hint: str


def coded(code: str, message: str, hint: str = "") -> serializers.ValidationError:
    """Return the error a field or a validator raises: a code of the catalogue, message and hint."""
    carrying = _Code(code)
    carrying.hint = hint
    return serializers.ValidationError(message, code=carrying)


def wrong_type(expected: str, value: object) -> serializers.ValidationError:
    """Return the error for a value of another JSON type than the field's."""
    return coded("wrong_type", f"This must be {expected}, not {json_type(value)}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name nearest to `name`, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(names)}."


# Unknown names of one body or query that are told: each costs a search for the nearest known one,
# and a body of 200 KB can hold twenty thousand.
MOST_UNKNOWN_TOLD: Final = 20


class StrictSerializer(serializers.Serializer[Any]):
    """An input object: unknown fields are refused by name, and null where it isn't allowed."""

    default_error_messages = {
        "required": "This field is required.",
        "null": "This may not be null.",
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {"non_field_errors": [wrong_type("an object", data).detail[0]]}  # type: ignore[index]
            )
        known = [name for name, field in self.fields.items() if not field.read_only]
        unknown = islice((name for name in data if name not in known), MOST_UNKNOWN_TOLD)
        errors: dict[str, Any] = {
            name: coded("unknown_field", "There is no such field.", nearest(name, known)).detail
            for name in unknown
        }
        try:
            value: dict[str, Any] = super().to_internal_value(data)
        except serializers.ValidationError as error:
            if not isinstance(error.detail, dict):
                raise
            errors = {**error.detail, **errors}
        if errors:
            raise serializers.ValidationError(errors)
        return value


class TextField(serializers.CharField):
    """A text of `min_length` to `max_length` characters and at most `max_bytes` of UTF-8.

    Control characters are refused unless `lines` allows line ends and tabs, or `raw` allows all but
    NUL (which no body can hold). `nfc` stores the text in form NFC. White space is kept.
    """

    def __init__(
        self,
        *,
        max_length: int,
        min_length: int = 0,
        max_bytes: int | None = None,
        nfc: bool = False,
        lines: bool = False,
        raw: bool = False,
        **options: Any,
    ) -> None:
        options.setdefault("allow_blank", min_length == 0)
        super().__init__(trim_whitespace=False, **options)
        self.validators = [v for v in self.validators if type(v).__module__ == __name__]
        self.longest, self.shortest, self.max_bytes = max_length, min_length, max_bytes
        self.nfc = nfc
        self.refused = None if raw else _CONTROL_BUT_LINES if lines else _CONTROL

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if data == "" and not self.allow_blank:
            raise coded("blank", "This may not be empty.")
        return serializers.Field.run_validation(self, data)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise wrong_type("a text", data)
        # Bounded before it is normalised, too: normalising a megabyte is work for nothing.
        if len(data) <= self.longest * (_LONGEST_COMPOSED if self.nfc else 1):
            text = unicodedata.normalize("NFC", data) if self.nfc else data
        else:
            text = data
        # What is stored counts: the form NFC of a text may be shorter than it, or longer.
        if len(text) > self.longest:
            raise coded("too_long", f"At most {self.longest} characters; this has {len(text)}.")
        if len(text) < self.shortest:
            raise coded("too_short", f"At least {self.shortest} characters.")
        size = len(text.encode("utf-8", "surrogatepass"))
        if self.max_bytes is not None and size > self.max_bytes:
            raise coded("too_long", f"At most {self.max_bytes} bytes of UTF-8; this has {size}.")
        if self.refused and (found := self.refused.search(text)):
            raise coded(
                "invalid_character", f"The control character U+{ord(found[0]):04X} is not allowed."
            )
        return text


class WholeNumberField(serializers.Field[int, Any, int, Any]):
    """A whole number from `low` to `high`, both included: no text, no true, no 1.0, no 1e3."""

    def __init__(self, *, low: int, high: int, **options: Any) -> None:
        super().__init__(**options)
        self.low, self.high = low, high

    def to_internal_value(self, data: Any) -> int:
        allowed = f"a whole number from {self.low} to {self.high}"
        if isinstance(data, bool) or not isinstance(data, int):
            if isinstance(data, float):
                raise coded("wrong_type", f"This must be {allowed}, written without . or e.")
            raise wrong_type(allowed, data)
        if data < self.low:
            raise coded("too_small", f"This must be {allowed}.")
        if data > self.high:
            raise coded("too_large", f"This must be {allowed}.")
        return data

    def to_representation(self, value: int) -> int:
        return value


class NumberField(serializers.Field[float, Any, float, Any]):
    """A number from `low` to `high` with at most `places` digits after the point."""

    def __init__(self, *, low: float, high: float, places: int, **options: Any) -> None:
        super().__init__(**options)
        self.low, self.high, self.places = low, high, places

    def to_internal_value(self, data: Any) -> float:
        allowed = f"a number from {self.low:g} to {self.high:g}"
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise wrong_type(allowed, data)
        if not self.low <= data <= self.high or not math.isfinite(data):
            code = "too_small" if data < self.low else "too_large"
            raise coded(code, f"This must be {allowed}.")
        if round(data, self.places) != data:
            raise coded("invalid", f"At most {self.places} digits after the point.")
        return float(data)

    def to_representation(self, value: float) -> float:
        return value


class FlagField(serializers.Field[bool, Any, bool, Any]):
    """true or false: not the texts, not 0 or 1 (a non-empty text is true in Python)."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise wrong_type("true or false", data)
        return data

    def to_representation(self, value: bool) -> bool:
        return value


class OneOfField(serializers.ChoiceField):
    """One of the given texts, exactly: another case is refused with the nearest as hint."""

    def to_internal_value(self, data: Any) -> str:
        names = [str(choice) for choice in self.choices]
        if not isinstance(data, str):
            raise wrong_type("a text", data)
        if data not in names:
            raise coded(
                "invalid_choice",
                f"This must be one of {', '.join(names)}.",
                nearest(data.lower(), names) if data else "",
            )
        return data


class InstantField(serializers.Field[datetime, Any, str, Any]):
    """An instant: RFC 3339 with its offset, to the microsecond; internally aware, in UTC."""

    def to_internal_value(self, data: Any) -> datetime:
        if not isinstance(data, str):
            raise wrong_type("an RFC 3339 date and time", data)
        try:
            return parse_instant(data)
        except ValueError as error:
            raise coded("invalid_instant", str(error), INSTANT_EXAMPLE) from error

    def to_representation(self, value: datetime) -> str:
        return format_instant(value)


class IdField(serializers.Field[uuid.UUID, Any, str, Any]):
    """A UUID in its usual form, 8-4-4-4-12 hexadecimal digits."""

    def to_internal_value(self, data: Any) -> uuid.UUID:
        if not isinstance(data, str):
            raise wrong_type("a UUID as text", data)
        if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", data):
            raise coded("invalid_uuid", "This is not a UUID.")
        return uuid.UUID(data)

    def to_representation(self, value: uuid.UUID) -> str:
        return str(value)


class ItemsField(serializers.ListField):
    """A list of at most `most` items of one `child` field; each item's errors carry its index."""

    def __init__(self, *, most: int, least: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.most, self.least = most, least

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise wrong_type("a list", data)
        if len(data) > self.most:
            raise coded("too_long", f"At most {self.most} items; this has {len(data)}.")
        if len(data) < self.least:
            raise coded("too_short", f"At least {self.least} items.")
        return self.run_child_validation(data)


class MappingField(serializers.DictField):
    """An object of at most `most` free names, each passing `check_name`, with `child` values.

    `check_name` returns None, or what is wrong with the name.
    """

    def __init__(
        self, *, most: int, check_name: Callable[[str], str | None], **options: Any
    ) -> None:
        super().__init__(**options)
        self.most, self.check_name = most, check_name

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise wrong_type("an object", data)
        if len(data) > self.most:
            raise coded("too_long", f"At most {self.most} entries; this has {len(data)}.")
        wrong = {name: why for name in data if (why := self.check_name(name)) is not None}
        if wrong:
            raise serializers.ValidationError(
                {name: coded("invalid", why).detail for name, why in wrong.items()}
            )
        return self.run_child_validation(data)
