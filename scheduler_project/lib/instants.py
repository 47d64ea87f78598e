"""Instants as text: RFC 3339 with an offset, exact to the microsecond, or refused."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

INSTANT_EXAMPLE: Final = "2027-03-01T15:00:00Z or 2027-03-01T15:00:00+05:30"

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def parse_instant(text: str) -> datetime:
    """Return the instant in RFC 3339 `text`, aware UTC; raises ValueError with what is wrong."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("This is not an RFC 3339 date and time with its offset.")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if hour == 24:
        raise ValueError("Hour 24 is not accepted; write 00:00:00 of the next day.")
    if second == 60:
        raise ValueError("Leap seconds are not accepted; write second 59, or the next minute.")
    microsecond = int((match[7] or "").ljust(6, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=UTC)
        return local - _offset(match[8])
    except (ValueError, OverflowError):
        raise ValueError("This date and time does not exist.") from None


def _offset(text: str) -> timedelta:
    if text in "Zz":
        return timedelta()
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset


def format_instant(instant: datetime) -> str:
    """Return `instant` as RFC 3339 in UTC with Z, with no, 3 or 6 digits of fraction as needed."""
    if instant.microsecond == 0:
        timespec = "seconds"
    else:
        timespec = "microseconds" if instant.microsecond % 1000 else "milliseconds"
    return instant.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
