"""What a cron expression means; its rule: five strict fields, and anything doubtful is refused.

This parser stands in front of the library: libraries accept six fields, wrapped ranges, `R`, `L`
and unicode digits, each with a meaning of its own. What passes here has exactly one meaning, and
what doesn't is refused with the reason and the nearest accepted form. docs/time-zones.md has the
grammar for customers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from jobs.domain.cron_foreign import foreign_form, foreign_syntax
from jobs.domain.schedule_error import INVALID_CRON, NEVER_FIRES, ScheduleError, shown

# Longer than anything sensible; the longest accepted list of all values of a field has 168.
LONGEST_EXPRESSION: Final = 256

MACROS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN",
                  "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")  # fmt: skip
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# Leap years: 29 February does come, so `0 0 29 2 *` fires.
_LONGEST_MONTH: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

# A value or `*`, perhaps a range, perhaps a step.
_ITEM: Final = re.compile(
    r"(?P<low>\*|[0-9A-Z]+)(?:-(?P<high>[0-9A-Z]+))?(?:/(?P<step>[0-9]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five fields: the values it may hold, and the names of the first ones, in order."""

    key: str
    label: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many distinct values there are (Sunday counts once)."""
        return self.high - self.low + 1


MINUTE: Final = FieldRule("minute", "minute", 0, 59)
HOUR: Final = FieldRule("hour", "hour", 0, 23)
DAY: Final = FieldRule("day", "day of month", 1, 31)
MONTH: Final = FieldRule("month", "month", 1, 12, _MONTHS)
WEEKDAY: Final = FieldRule("weekday", "day of week", 0, 6, _WEEKDAYS)
FIELDS: Final = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class CronFields:
    """A parsed expression: the sorted values of each field, weekdays with 0 for Sunday.

    `either_day`: a date matches when its day of month *or* its weekday does (both fields are
    restricted); otherwise both must. `is_wildcard`: minute or hour begins with `*`, so the
    schedule keeps its real cadence over a clock change. `text` is the five fields as written,
    macros expanded, single spaces, upper case.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool
    is_wildcard: bool


def parse_cron(expression: str) -> CronFields:
    """The meaning of `expression`; raises ScheduleError (invalid_cron, never_fires)."""
    if len(expression) > LONGEST_EXPRESSION:
        raise _refusal(
            f"the expression has {len(expression)} characters; {LONGEST_EXPRESSION} is the most",
            'use ranges and steps ("0-30/5") instead of long lists, or several jobs',
        )
    return _parse_bounded(expression)


@lru_cache(maxsize=4096)
def _parse_bounded(expression: str) -> CronFields:
    _check_characters(expression)
    text = _expand_macro(expression.strip(" \t"))
    parts = text.upper().split()
    if len(parts) != len(FIELDS):
        raise _wrong_count(text, len(parts))
    values = [_field_values(rule, part) for rule, part in zip(FIELDS, parts, strict=True)]
    minutes, hours, days, months, weekdays = values
    fields = CronFields(
        text=" ".join(parts),
        minutes=minutes, hours=hours, days=days, months=months, weekdays=weekdays,
        # A day field that begins with a star is unrestricted, `*/2` too: Vixie cron's rule.
        either_day=not (parts[2].startswith("*") or parts[4].startswith("*")),
        is_wildcard=parts[0].startswith("*") or parts[1].startswith("*"),
    )  # fmt: skip
    if not _can_fire(fields):
        raise _never_fires(fields)
    return fields


def possible_days(fields: CronFields) -> tuple[int, ...]:
    """The days of month in `fields` that at least one of its months has."""
    longest = max(_LONGEST_MONTH[month] for month in fields.months)
    return tuple(day for day in fields.days if day <= longest)


def _can_fire(fields: CronFields) -> bool:
    return fields.either_day or bool(possible_days(fields))


def _check_characters(expression: str) -> None:
    if "\n" in expression or "\r" in expression:
        raise _refusal("the expression has a line break", "one line; make one job per line")
    for character in expression:
        if character != "\t" and not " " <= character <= "~":
            raise _refusal(
                f"the character {character!a} is not allowed",
                "plain ASCII: digits, * , - / names and spaces",
            )


def _expand_macro(text: str) -> str:
    if not text.startswith("@"):
        return text
    expanded = MACROS.get(text.lower())
    if expanded is None:
        raise _refusal(f"{shown(text)} is not supported", foreign_form(text) or _macro_hint())
    return expanded


def _macro_hint() -> str:
    return f"one of {', '.join(MACROS)}, or five fields"


def _wrong_count(text: str, count: int) -> ScheduleError:
    if count == 0:
        return _refusal("the expression is empty", 'five fields such as "0 9 * * MON-FRI"')
    hint = foreign_form(text) or "five fields: minute hour day-of-month month day-of-week"
    return _refusal(f"the expression has {count} field{'s' * (count != 1)}, not five", hint)


def _never_fires(fields: CronFields) -> ScheduleError:
    return ScheduleError(
        NEVER_FIRES,
        f"{shown(fields.text)} never fires: none of its months has such a day",
        hint='to switch a job off, set "enabled: false"',
        field="schedule.cron",
    )


def _field_values(rule: FieldRule, text: str) -> tuple[int, ...]:
    """The sorted values `text` names in the field of `rule`."""
    values: set[int] = set()
    for item in text.split(","):
        values.update(_item_values(rule, item, text))
    # Sunday may be written 7: once here, or it would count as a day of its own.
    return tuple(sorted({0 if rule is WEEKDAY and value == 7 else value for value in values}))


def _item_values(rule: FieldRule, item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None or (match["low"] == "*" and match["high"]):
        raise _malformed(rule, item, text)
    low_text, high_text, step_text = match["low"], match["high"], match["step"]
    step = 1 if step_text is None else _step(rule, item, step_text)
    if high_text is not None:
        low, high = _range(rule, item, low_text, high_text)
        return range(low, high + 1, step)
    low = rule.low if low_text == "*" else _value(rule, low_text)
    if low_text != "*" and step_text is None:
        return range(low, low + 1)
    if step >= rule.size:
        raise _step_too_large(rule, item, step, low_text, text)
    # `7/2` is `0/2`: the week starts on Sunday, however it is written.
    return range(low % 7 if rule is WEEKDAY else low, rule.high + 1, step)


def _range(rule: FieldRule, item: str, low_text: str, high_text: str) -> tuple[int, int]:
    low, high = _value(rule, low_text), _value(rule, high_text)
    if rule is WEEKDAY and high == 0 < low:
        high = 7  # FRI-SUN: a range may end on Sunday.
    if low > high:
        first, last = str(rule.low), str(rule.high)
        if rule.names and low_text.isalpha():
            first, last = rule.names[0], rule.names[-1]
        raise _refusal_in(rule, f"the range {shown(item)} runs backwards",
                          f'two ranges, "{low_text}-{last},{first}-{high_text}"')  # fmt: skip
    return low, high


def _step(rule: FieldRule, item: str, text: str) -> int:
    step = int(text)
    if step == 0:
        raise _refusal_in(rule, f"the step of {shown(item)} is 0", "a step of at least 1")
    return step


def _step_too_large(
    rule: FieldRule, item: str, step: int, low_text: str, text: str
) -> ScheduleError:
    plain = str(rule.low) if low_text == "*" else low_text
    hint = f'"{plain}" in this field means the same once, plainly'
    if rule in (MINUTE, HOUR):
        unit = "m" if rule is MINUTE else "h"
        hint += f'; for a true interval use schedule.every ("{step}{unit}")'
    reason = f"the field has only {rule.size} values, so it would silently mean once"
    return _refusal_in(rule, f"the step {step} of {shown(item)} is too large: {reason}", hint)


def _value(rule: FieldRule, text: str) -> int:
    """The number or name `text` as a value; a weekday may be 7."""
    if text.isdigit():
        value = int(text)
        if rule.low <= value <= rule.high or (rule is WEEKDAY and value == 7):
            return value
        raise _refusal_in(rule, f"{value} is out of range", _values_hint(rule))
    if text not in rule.names:
        raise _unknown_name(rule, text)
    return rule.low + rule.names.index(text)


def _values_hint(rule: FieldRule) -> str:
    if rule is WEEKDAY:
        return "0-7 (0 and 7 are Sunday) or SUN-SAT"
    return f"{rule.low}-{rule.high}" + (" or JAN-DEC" if rule is MONTH else "")


def _unknown_name(rule: FieldRule, text: str) -> ScheduleError:
    if (foreign := foreign_syntax(text)) is not None:
        return _refusal_in(rule, *foreign)
    for other in (MONTH, WEEKDAY):
        if text in other.names:
            return _refusal_in(rule, f"{text} belongs in the {other.label} field",
                               _values_hint(rule))  # fmt: skip
    if len(text) > 3 and text[:3] in rule.names:
        return _refusal_in(rule, f"{shown(text)} is not a name", f"{text[:3]}: three letters")
    near = next((name for name in rule.names if len(text) >= 2 and name.startswith(text)), None)
    return _refusal_in(rule, f"{shown(text)} is not a number or name for this field",
                       near or _values_hint(rule))  # fmt: skip


def _malformed(rule: FieldRule, item: str, text: str) -> ScheduleError:
    if (foreign := foreign_syntax(item)) is not None:
        return _refusal_in(rule, *foreign)
    if not item:
        return _refusal_in(rule, f"the list {shown(text)} has an empty item",
                           "commas only between values, without spaces")  # fmt: skip
    return _refusal_in(rule, f"{shown(item)} is malformed",
                       f'a value, a range "a-b" or "*", each with an optional step "/n"; '
                       f"values are {_values_hint(rule)}")  # fmt: skip


def _refusal(message: str, hint: str) -> ScheduleError:
    return ScheduleError(INVALID_CRON, message, hint=hint, field="schedule.cron")


def _refusal_in(rule: FieldRule, message: str, hint: str) -> ScheduleError:
    return _refusal(f"{rule.label} field: {message}", hint)
