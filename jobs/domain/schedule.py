"""When next? Its rule: each occurrence is later than the last as an instant and on the wall clock.

Cron expressions are read by our own parser. Wall time is walked *naively*, the library finding
far dates, and what is found is mapped to UTC here. (Given zones, the library fires a repeated
hour twice and misses half-hour gaps.) A *fixed-time* expression follows the job's DstPolicy; one
whose minute or hour begins with `*` keeps its real cadence: every wall time shown is an
occurrence, each time it is shown, and nothing is made up for times left out. docs/time-zones.md
shows each edge.
"""

from __future__ import annotations

import copy
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from jobs.domain.calendar_days import first_minute_of_day, matches_day, next_minute_of_day
from jobs.domain.cron import CronFields, parse_cron, possible_days
from jobs.domain.instant import EARLIEST, LATEST
from jobs.domain.schedule_error import ScheduleError
from jobs.domain.schedule_form import (
    check_at_in_future,
    parse_dst,
    parse_schedule,
    schedule_from_json,
    schedule_to_json,
)
from jobs.domain.schedule_kinds import (
    DEFAULT_DST,
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    Schedule,
)
from jobs.domain.wall_clock import (
    Shift,
    format_wall,
    instant_of,
    parse_wall,
    shift_around,
    wall_of,
)
from jobs.domain.zones import check_pinned_tzdata, load_zone, time_zone_names, tzdata_version

__all__ = [
    "DEFAULT_DST",
    "AtSchedule",
    "CronSchedule",
    "DstPolicy",
    "EverySchedule",
    "Schedule",
    "ScheduleError",
    "check_at_in_future",
    "check_pinned_tzdata",
    "format_wall",
    "load_zone",
    "next_occurrence",
    "next_occurrences",
    "occurrences",
    "parse_dst",
    "parse_schedule",
    "parse_wall",
    "schedule_from_json",
    "schedule_to_json",
    "time_zone_names",
    "tzdata_version",
    "wall_time",
]

_JUST_BEFORE: Final = timedelta(seconds=1)  # a wall minute is searched from just before it
_ONE_DAY: Final = timedelta(days=1)
# Weekly and monthly schedules come within so many dates of the months they name; looking at a date
# costs a hundredth of a search by the library.
_NEAR_DAYS: Final = 31
_ANY_DAY: Final = date(2000, 1, 1)  # the library wants a start when it reads an expression
_RESOLUTION: Final = timedelta(microseconds=1)  # the database's: makes "strictly after" inclusive
_WHOLE_MINUTE_OFFSETS_SINCE: Final = datetime(1973, 1, 1, tzinfo=UTC)  # Liberia was the last

# 16,384 answers are about 10 MB: some hundred distinct schedules over a day's look-ahead.
_CACHED_ANSWERS: Final = 16_384


def next_occurrence(
    schedule: Schedule,
    after: datetime,
    *,
    dst: DstPolicy = DEFAULT_DST,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    last_wall_time: datetime | None = None,
) -> datetime | None:
    """The first occurrence strictly later than `after`, aware UTC; None when there is none.

    `start_at` and `end_at` are inclusive bounds. `last_wall_time` (naive, see `wall_time`) is
    what the wall showed at the occurrence planned last; a fixed-time schedule gives only later
    wall times, so that new zone rules never run a local day twice. Pass None after an edit of
    the schedule. All instants are aware. Raises ScheduleError when `schedule` isn't valid.
    """
    after = after.astimezone(UTC)
    if start_at is not None and after < start_at:
        after = start_at.astimezone(UTC) - _RESOLUTION
    found = _next(schedule, after, dst, last_wall_time)
    return None if found is None or (end_at is not None and found > end_at) else found


def occurrences(
    schedule: Schedule,
    after: datetime,
    until: datetime,
    *,
    limit: int,
    dst: DstPolicy = DEFAULT_DST,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    last_wall_time: datetime | None = None,
) -> list[datetime]:
    """The occurrences in (after, until], oldest first, `limit` at most."""
    end = until if end_at is None else min(until, end_at)
    return next_occurrences(
        schedule, after, limit, dst=dst, start_at=start_at, end_at=end,
        last_wall_time=last_wall_time,
    )  # fmt: skip


def next_occurrences(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    dst: DstPolicy = DEFAULT_DST,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    last_wall_time: datetime | None = None,
) -> list[datetime]:
    """The next `count` occurrences after `after`, fewer when the schedule ends."""
    found: list[datetime] = []
    while len(found) < count:
        following = next_occurrence(
            schedule, found[-1] if found else after, dst=dst, start_at=start_at, end_at=end_at,
            last_wall_time=None if found else last_wall_time,
        )  # fmt: skip
        if following is None:
            break
        found.append(following)
    return found


def wall_time(schedule: Schedule, instant: datetime) -> datetime | None:
    """What to keep as `last_wall_time` after planning `instant`; None for kinds without a wall.

    Naive, without its fold: which showing it was follows from the instant. `format_wall` and
    `parse_wall` turn it into the cursor's text and back.
    """
    if not isinstance(schedule, CronSchedule):
        return None
    return wall_of(load_zone(schedule.time_zone), instant).replace(fold=0)


def _next(
    schedule: Schedule, after: datetime, dst: DstPolicy, last_wall: datetime | None
) -> datetime | None:
    match schedule:
        case CronSchedule(expression, time_zone):
            if after >= LATEST:
                return None
            if after >= _WHOLE_MINUTE_OFFSETS_SINCE:
                # Occurrences lie on whole minutes: one cached answer serves the minute.
                after = after.replace(second=0, microsecond=0)
            return _next_cron(expression, time_zone, dst, max(after, EARLIEST), last_wall)
        case AtSchedule(at):
            return at.astimezone(UTC) if at > after else None
        case EverySchedule(interval, anchor):
            found = anchor + max((after - anchor) // interval + 1, 1) * interval
            return found.astimezone(UTC) if found < LATEST else None


@lru_cache(maxsize=_CACHED_ANSWERS)
def _next_cron(
    expression: str, time_zone: str, dst: DstPolicy, after: datetime, last_wall: datetime | None
) -> datetime | None:
    """Walk the matching wall times from `after` on; give the first that has an instant."""
    fields, zone = parse_cron(expression), load_zone(time_zone)
    position = _resume_position(fields, zone, dst, after, last_wall)
    while (wall := _next_wall(fields, position)) is not None:
        position = wall
        shift = shift_around(zone, wall)
        if shift is None:
            instant = instant_of(zone, wall)
        elif not shift.is_gap:
            instant = _in_fold(fields, zone, dst, wall, after)
        elif fields.is_wildcard or dst.gap == "skip":
            position = shift.wall_after - _JUST_BEFORE
            continue
        else:
            instant = shift.instant
        if instant > after:  # not so for a first showing, while the second is on
            return instant if instant < LATEST else None
    return None


def _in_fold(
    fields: CronFields, zone: ZoneInfo, dst: DstPolicy, wall: datetime, after: datetime
) -> datetime:
    """The instant of a wall time that is shown twice."""
    first, second = instant_of(zone, wall), instant_of(zone, wall, fold=1)
    if _repeats(fields, dst):
        return first if first > after else second
    return first if dst.fold == "first" else second


def _resume_position(
    fields: CronFields,
    zone: ZoneInfo,
    dst: DstPolicy,
    after: datetime,
    last_wall: datetime | None,
) -> datetime:
    """The wall time from which to search strictly later ones.

    That is the time shown at `after`, except in the first showing of a fold, from which the clock
    still comes back: a time already gone by may have its turn in the second.
    """
    shown = wall_of(zone, after)
    position = shown.replace(fold=0)
    shift = shift_around(zone, position)
    if shift is not None and _repeats(fields, dst):
        return position if shown.fold else _within_first_showing(fields, position, shift)
    if shift is not None and dst.fold == "second" and not shown.fold:
        position = shift.wall_after - _JUST_BEFORE
    if last_wall is None or fields.is_wildcard:
        return position
    return max(position, last_wall)


def _within_first_showing(fields: CronFields, position: datetime, shift: Shift) -> datetime:
    """Go on in the first showing while times are left in it, then from the start of the second."""
    wall = _next_wall(fields, position)
    if wall is not None and wall < shift.wall_before:
        return position
    return shift.wall_after - _JUST_BEFORE


def _repeats(fields: CronFields, dst: DstPolicy) -> bool:
    """True when a wall time shown twice is two occurrences."""
    return fields.is_wildcard or dst.fold == "both"


def _next_wall(fields: CronFields, position: datetime) -> datetime | None:
    """The first matching wall minute strictly later than `position`; None past the last year."""
    if position.year >= LATEST.year:
        return None
    day = position.date()
    if matches_day(fields, day):
        minute = next_minute_of_day(fields, position)
        if minute is not None:
            return _on(day, minute)
    following = _next_date(fields, day)
    return None if following is None else _on(following, first_minute_of_day(fields))


def _on(day: date, minute: int) -> datetime:
    return datetime.combine(day, time(minute // 60, minute % 60))


def _next_date(fields: CronFields, day: date) -> date | None:
    """The first matching date after `day`: near ones by looking, far ones by the library."""
    for _ in range(_NEAR_DAYS):
        day += _ONE_DAY
        while day.month not in fields.months:  # a month that isn't named costs one look
            day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
        if matches_day(fields, day):
            return day
    # A copy for each search: the library keeps its position in the object, and threads share it.
    walk = copy.copy(_date_walker(fields))
    try:
        found: datetime = walk.get_next(datetime, start_time=_on(day, 0))
    except CroniterBadDateError:
        return None
    return found.date()


@lru_cache(maxsize=4096)
def _date_walker(fields: CronFields) -> croniter:
    """The library's iterator over our dates, spelled out so that it has nothing to interpret."""
    days, weekdays = _day_lists(fields)
    text = f"0 0 {days} {_list(fields.months, 12)} {weekdays}"
    return croniter(text, _on(_ANY_DAY, 0), day_or=fields.either_day)


def _day_lists(fields: CronFields) -> tuple[str, str]:
    """The two day fields; a half that matches always or never is taken out of an OR."""
    days, weekdays = _list(fields.days, 31), _list(fields.weekdays, 7)
    if fields.either_day:
        if "*" in (days, weekdays):
            return "*", "*"
        if not possible_days(fields):
            # Left in, the library looks fifty years ahead for 30 February on every call.
            return "*", weekdays
    return days, weekdays


def _list(values: tuple[int, ...], size: int) -> str:
    return "*" if len(values) == size else ",".join(map(str, values))
