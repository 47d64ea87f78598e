"""How a zone's wall clock maps to instants; its rule: a shown time is unique only with its fold.

A *shift* is an instant at which the wall clock jumps: forward over a gap (times never shown) or
back over a fold (times shown twice). Everything here works on naive wall times and aware UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_SECOND = timedelta(seconds=1)
# Two shifts of one zone have been at least days apart since 1970; half a day can't step over one.
_STEP = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Shift:
    """At `instant` the clock, about to show `wall_before`, shows `wall_after` instead."""

    instant: datetime
    wall_before: datetime
    wall_after: datetime

    @property
    def is_gap(self) -> bool:
        """True when times were left out, False when times are shown a second time."""
        return self.wall_after > self.wall_before


def wall_of(zone: ZoneInfo, instant: datetime) -> datetime:
    """The naive time on the wall at `instant`; `fold` is 1 in the second showing of a time."""
    return instant.astimezone(zone).replace(tzinfo=None)


def instant_of(zone: ZoneInfo, wall: datetime, *, fold: int = 0) -> datetime:
    """The UTC instant at which the wall shows the existing time `wall` (its first or second)."""
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def format_wall(wall: datetime | None) -> str:
    """`wall` as text for a cursor, "2026-11-01T01:30"; "" for None."""
    return "" if wall is None else wall.isoformat(timespec="minutes")


def parse_wall(text: str) -> datetime | None:
    """The naive wall time that `format_wall` wrote; None for "". Raises ValueError for others."""
    if not text:
        return None
    wall = datetime.fromisoformat(text)
    if wall.tzinfo is not None:
        raise ValueError(f"a wall time has no offset: {text!r}")
    return wall


def shift_around(zone: ZoneInfo, wall: datetime) -> Shift | None:
    """The shift that leaves `wall` out or shows it twice; None when `wall` is shown once."""
    before = _offset(wall.replace(tzinfo=zone, fold=0))
    after = _offset(wall.replace(tzinfo=zone, fold=1))
    if before == after:
        return None
    aware = wall.replace(tzinfo=UTC, fold=0)
    return _shift_between(zone, aware - max(before, after), aware - min(before, after))


@lru_cache(maxsize=4096)
def shifts_in_year(zone: ZoneInfo, year: int) -> tuple[Shift, ...]:
    """The zone's shifts from 1 January 00:00 UTC of `year` to that of the next, in order."""
    found = []
    instant, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    while instant < end:
        following = min(instant + _STEP, end)
        if _offset_at(zone, instant) != _offset_at(zone, following):
            found.append(_shift_between(zone, instant, following))
        instant = following
    return tuple(found)


def shifts_between(zone: ZoneInfo, after: datetime, until: datetime) -> list[Shift]:
    """The zone's shifts in (after, until], in order."""
    years = range(after.year, until.year + 1)
    shifts = [shift for year in years for shift in shifts_in_year(zone, year)]
    return [shift for shift in shifts if after < shift.instant <= until]


def _shift_between(zone: ZoneInfo, low: datetime, high: datetime) -> Shift:
    """The shift in (low, high], found by halving to the second."""
    before, after = _offset_at(zone, low), _offset_at(zone, high)
    left, right = 0, int((high - low) / _SECOND)
    while right - left > 1:
        middle = (left + right) // 2
        if _offset_at(zone, low + middle * _SECOND) == before:
            left = middle
        else:
            right = middle
    instant = low + right * _SECOND
    naive = instant.replace(tzinfo=None)
    return Shift(instant, naive + before, naive + after)


def _offset_at(zone: ZoneInfo, instant: datetime) -> timedelta:
    return _offset(instant.astimezone(zone))


def _offset(aware: datetime) -> timedelta:
    offset = aware.utcoffset()
    if offset is None:
        raise TypeError("a wall time with its zone is needed")
    return offset
