"""Instants and lengths of time as text; its rule: exact or refused, never guessed or rounded."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from jobs.domain.schedule_error import INVALID_AT, INVALID_EVERY, ScheduleError, shown

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Exclusive. Well inside what datetime and PostgreSQL hold, so adding a day can't overflow.
LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)

SHORTEST_INTERVAL: Final = timedelta(minutes=1)
# Ten years: longer than any use, short enough that anchor + interval stays a valid date.
LONGEST_INTERVAL: Final = timedelta(days=3660)

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_LENGTH: Final = re.compile(
    r"(?:(\d{1,6})w)?(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII
)
_EXAMPLE: Final = '"2027-03-01T15:00:00Z" or "2027-03-01T15:00:00+05:30"'


def parse_instant(value: object, *, field: str = "schedule.at", code: str = INVALID_AT) -> datetime:
    """The instant in the RFC 3339 text `value`, aware UTC, to the millisecond.

    Raises ScheduleError(code) for anything else: other types, no offset, hour 24, leap seconds,
    dates that don't exist, finer than milliseconds, years outside 1970-2999.
    """

    def refusal(message: str, hint: str = _EXAMPLE) -> ScheduleError:
        return ScheduleError(code, message, hint=hint, field=field)

    if not isinstance(value, str):
        raise refusal(f"an instant must be RFC 3339 text, not {type(value).__name__}")
    match = _RFC3339.fullmatch(value)
    if match is None:
        raise refusal(f"{shown(value)} is not an RFC 3339 date and time with its offset")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if hour == 24:
        raise refusal("hour 24 is not accepted", "00:00:00 of the next day")
    if second == 60:
        raise refusal("a leap second cannot be scheduled", "second 59, or 00 of the next minute")
    fraction = (match[7] or "").ljust(9, "0")
    if fraction[3:].strip("0"):
        raise refusal("instants are kept to the millisecond", "at most three fractional digits")
    try:
        millisecond = int(fraction[:3])
        written = datetime(year, month, day, hour, minute, second, millisecond * 1000, tzinfo=UTC)
        instant = written - _offset(match[8])
    except (ValueError, OverflowError):
        raise refusal(f"{shown(value)} does not exist") from None
    if not EARLIEST <= instant < LATEST:
        raise refusal("the year must be between 1970 and 2999")
    return instant


def format_instant(instant: datetime) -> str:
    """`instant` as RFC 3339 in UTC with Z, with milliseconds only when it has some."""
    text = instant.astimezone(UTC).isoformat(
        timespec="milliseconds" if instant.microsecond else "seconds"
    )
    return text.replace("+00:00", "Z")


def parse_interval(value: object, *, field: str = "schedule.every") -> timedelta:
    """The length in text such as "90m", "1h30m" or "2d"; raises ScheduleError(invalid_every)."""

    def refusal(message: str) -> ScheduleError:
        hint = 'a whole number and a unit, "90m", "6h", "1d" or "1h30m", at least "1m"'
        return ScheduleError(INVALID_EVERY, message, hint=hint, field=field)

    if not isinstance(value, str):
        raise refusal(f"an interval must be text, not {type(value).__name__}")
    match = _LENGTH.fullmatch(value)
    if match is None or not value:
        raise refusal(f"{shown(value)} is not an interval")
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    interval = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        raise refusal(f"{shown(value)} is not between one minute and {LONGEST_INTERVAL.days} days")
    return interval


def format_interval(interval: timedelta) -> str:
    """`interval` in the largest unit that divides it: "90m", "6h", "1d"."""
    seconds = int(interval.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _offset(text: str) -> timedelta:
    if text in "Zz":
        return timedelta()
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset
