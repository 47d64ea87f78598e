"""How many, and how close? Its rule: count occurrences by arithmetic, never by making them.

Between two shifts of the zone wall time and UTC run in parallel, so the occurrences in such a
*stretch* are its matching wall minutes. A year of a minutely job costs a walk over 365 dates
(some tenths of a millisecond) instead of half a million searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final

from jobs.domain.calendar_days import count_walls, fewest_days_apart, minutes_of_day
from jobs.domain.cron import CronFields, parse_cron
from jobs.domain.schedule import next_occurrence, occurrences
from jobs.domain.schedule_kinds import (
    DEFAULT_DST,
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    Schedule,
)
from jobs.domain.wall_clock import Shift, shifts_between, wall_of
from jobs.domain.zones import load_zone

_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_RESOLUTION: Final = timedelta(microseconds=1)
# Longer than any shift (a whole day at the date line): beyond it a shift can't matter.
_REACH: Final = timedelta(days=2)
# How far ahead the zone's rules are looked at for the closest two occurrences.
_INTERVAL_HORIZON: Final = timedelta(days=3 * 366)


def count_occurrences(
    schedule: Schedule, after: datetime, until: datetime, *, dst: DstPolicy = DEFAULT_DST
) -> int:
    """How many occurrences lie in (after, until]; the same as stepping through them (from 1973)."""
    if until <= after:
        return 0
    match schedule:
        case CronSchedule():
            return _count_cron(schedule, _minute(after), _minute(until), dst)
        case AtSchedule(at):
            return int(after < at <= until)
        case EverySchedule(interval, anchor):
            first = max((after - anchor) // interval + 1, 1)
            return max((until - anchor) // interval - first + 1, 0)


def latest_occurrences(
    schedule: Schedule,
    after: datetime,
    until: datetime,
    count: int,
    *,
    dst: DstPolicy = DEFAULT_DST,
) -> list[datetime]:
    """The last `count` occurrences in (after, until], oldest first; fewer when there are fewer."""
    if count <= 0 or until <= after:
        return []
    match schedule:
        case CronSchedule():
            found = _latest_cron(schedule, _minute(after), _minute(until), count, dst)
            return [instant for instant in found if after < instant <= until]
        case EverySchedule(interval):
            total = count_occurrences(schedule, after, until)
            skipped = after + max(total - count, 0) * interval
            return occurrences(schedule, skipped, until, limit=count)
        case AtSchedule():
            return occurrences(schedule, after, until, limit=count)


def nominal_interval_s(schedule: Schedule) -> int | None:
    """The smallest gap on the wall clock, in seconds; None when there is at most one occurrence.

    Clock changes are left out: this is what a quota should look at, or a daily job would break
    a daily quota on the one day a year that has 23 hours.
    """
    match schedule:
        case CronSchedule(expression):
            return _nominal_interval_s(parse_cron(expression))
        case EverySchedule(interval):
            return int(interval.total_seconds())
        case AtSchedule():
            return None


def min_interval_s(
    schedule: Schedule, after: datetime, *, dst: DstPolicy = DEFAULT_DST
) -> int | None:
    """A lower bound for the seconds between two occurrences; None when there is at most one.

    Sound for the zone's shifts of the three years after `after`: the nominal gap, and the real
    gaps around each shift, the only places where wall time and real time differ.
    """
    nominal = nominal_interval_s(schedule)
    if nominal is None or not isinstance(schedule, CronSchedule):
        return nominal
    after = _minute(after)
    shifts = shifts_between(load_zone(schedule.time_zone), after, after + _INTERVAL_HORIZON)
    gaps = [gap for shift in shifts for gap in _gaps_around(schedule, shift, dst)]
    return min([nominal, *(int(gap.total_seconds()) for gap in gaps)])


def _gaps_around(schedule: CronSchedule, shift: Shift, dst: DstPolicy) -> Iterator[timedelta]:
    """Between the last occurrence before the shift, the first at or after it, and the next."""
    before = shift.instant - _RESOLUTION
    around = latest_occurrences(schedule, before - 8 * _DAY, before, 1, dst=dst)
    for _ in range(2):
        following = next_occurrence(schedule, around[-1] if around else before, dst=dst)
        if following is None:
            break
        around.append(following)
    return (later - earlier for earlier, later in pairwise(around))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A time without shifts: [start, end) as instants, and the shifts at either end."""

    start: datetime
    end: datetime
    opening: Shift | None
    closing: Shift | None


def _minute(instant: datetime) -> datetime:
    """Cron occurrences lie on whole minutes: seconds off, and one cached answer serves many."""
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


@lru_cache(maxsize=4096)
def _latest_cron(
    schedule: CronSchedule, after: datetime, until: datetime, count: int, dst: DstPolicy
) -> tuple[datetime, ...]:
    """Grow a window back from `until` until it holds enough, then halve to its first minute."""
    span = _MINUTE
    while until - after > span and _count_cron(schedule, until - span, until, dst) < count:
        span *= 2
    start = max(after, until - span)
    low, high = 0, (until - start) // _MINUTE
    while low < high:
        middle = (low + high) // 2
        if _count_cron(schedule, start + middle * _MINUTE, until, dst) > count:
            low = middle + 1
        else:
            high = middle
    begin = start + low * _MINUTE
    return tuple(occurrences(schedule, begin, until, limit=count, dst=dst))


@lru_cache(maxsize=4096)
def _count_cron(schedule: CronSchedule, after: datetime, until: datetime, dst: DstPolicy) -> int:
    fields, zone = parse_cron(schedule.expression), load_zone(schedule.time_zone)
    begin, end = after + _RESOLUTION, until + _RESOLUTION  # (after, until] as [begin, end)
    total = 0
    for stretch in _stretches(shifts_between(zone, begin - _REACH, end + _REACH), begin, end):
        start, stop = max(stretch.start, begin), min(stretch.end, end)
        if start >= stop:
            continue
        offset = wall_of(zone, start) - start.replace(tzinfo=None)
        low, high = (moment.replace(tzinfo=None, fold=0) + offset for moment in (start, stop))
        low, high = _bounded(fields, dst, stretch, low, high)
        total += count_walls(fields, low, high)
        if start == stretch.start:
            total += _made_up(fields, dst, stretch.opening)
    return total


def _stretches(shifts: list[Shift], begin: datetime, end: datetime) -> Iterator[_Stretch]:
    """The stretches that cover [begin, end), each with its real start and end."""
    edges: list[Shift | None] = [None, *shifts, None]
    for opening, closing in pairwise(edges):
        yield _Stretch(
            opening.instant if opening else begin - 2 * _REACH,
            closing.instant if closing else end + 2 * _REACH,
            opening,
            closing,
        )


def _bounded(
    fields: CronFields, dst: DstPolicy, stretch: _Stretch, low: datetime, high: datetime
) -> tuple[datetime, datetime]:
    """[low, high) of wall time, less the showings that a fixed-time schedule passes over."""
    if fields.is_wildcard or dst.fold == "both":
        return low, high
    if dst.fold == "first" and stretch.opening is not None:
        low = max(low, stretch.opening.wall_before) if not stretch.opening.is_gap else low
    if dst.fold == "second" and stretch.closing is not None:
        high = min(high, stretch.closing.wall_after)
    return low, high


def _made_up(fields: CronFields, dst: DstPolicy, opening: Shift | None) -> int:
    """1 when times left out by a gap fire at its end, which is not an occurrence by itself."""
    if opening is None or not opening.is_gap or fields.is_wildcard or dst.gap == "skip":
        return 0
    end = opening.wall_after
    return int(
        count_walls(fields, opening.wall_before, end) > 0
        and count_walls(fields, end, end + _MINUTE) == 0
    )


@lru_cache(maxsize=4096)
def _nominal_interval_s(fields: CronFields) -> int:
    minutes = minutes_of_day(fields)
    within = [later - earlier for earlier, later in pairwise(minutes)]
    if within and min(within) == 1:
        return 60
    overnight = fewest_days_apart(fields) * 24 * 60 + minutes[0] - minutes[-1]
    return 60 * min([overnight, *within])
