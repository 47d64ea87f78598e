"""Which dates and times of day an expression matches; its rule: naive wall time, nothing else."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final

from jobs.domain.cron import CronFields

_DAY: Final = timedelta(days=1)
# Dates and weekdays of the Gregorian calendar repeat after 28 years (until 2100).
_CALENDAR_CYCLE: Final = (date(2001, 1, 1), date(2029, 1, 1))


def count_walls(fields: CronFields, low: datetime, high: datetime) -> int:
    """How many matching wall minutes lie in [low, high), both naive."""
    if high <= low:
        return 0
    minutes = minutes_of_day(fields)
    first_day, last_day = low.date(), high.date()
    count = len(minutes) * _count_days(fields, first_day, last_day)
    if matches_day(fields, first_day):
        count -= bisect_left(minutes, _minute_at_or_after(low))
    if matches_day(fields, last_day):
        count += bisect_left(minutes, _minute_at_or_after(high))
    return count


def matches_day(fields: CronFields, day: date) -> bool:
    """True when the schedule has occurrences on the date `day`."""
    if day.month not in fields.months:
        return False
    in_days, in_weekdays = day.day in fields.days, day.isoweekday() % 7 in fields.weekdays
    return in_days or in_weekdays if fields.either_day else in_days and in_weekdays


def matches_wall(fields: CronFields, wall: datetime) -> bool:
    """True when the expression names the wall minute `wall`."""
    return wall.minute in fields.minutes and wall.hour in fields.hours and matches_day(fields, wall)


@lru_cache(maxsize=4096)
def minutes_of_day(fields: CronFields) -> tuple[int, ...]:
    """The matching times of a matching day, as sorted minutes since its midnight."""
    return tuple(hour * 60 + minute for hour in fields.hours for minute in fields.minutes)


def next_minute_of_day(fields: CronFields, wall: datetime) -> int | None:
    """The first matching time of day later than that of `wall`; None when the day has none left.

    Not by the table above: for an expression seen for the first time that costs more than this.
    """
    if wall.hour in fields.hours and wall.minute < fields.minutes[-1]:
        return wall.hour * 60 + fields.minutes[bisect_right(fields.minutes, wall.minute)]
    if wall.hour >= fields.hours[-1]:
        return None
    return fields.hours[bisect_right(fields.hours, wall.hour)] * 60 + fields.minutes[0]


def first_minute_of_day(fields: CronFields) -> int:
    """The first time of a matching day, in minutes since its midnight."""
    return fields.hours[0] * 60 + fields.minutes[0]


def minute_of_day(wall: datetime) -> int:
    """The whole minutes since midnight."""
    return wall.hour * 60 + wall.minute


def _minute_at_or_after(wall: datetime) -> int:
    return minute_of_day(wall) + (wall.second > 0 or wall.microsecond > 0)


@lru_cache(maxsize=4096)
def _count_days(fields: CronFields, first: date, end: date) -> int:
    """The matching dates in [first, end)."""
    days = (end - first).days
    return sum(matches_day(fields, first + offset * _DAY) for offset in range(days))


@lru_cache(maxsize=4096)
def fewest_days_apart(fields: CronFields) -> int:
    """The smallest distance of two matching dates, over all dates and weekdays there are."""
    first, end = _CALENDAR_CYCLE
    fewest, last = (end - first).days, None
    for offset in range(fewest):
        day = first + offset * _DAY
        if matches_day(fields, day):
            if last is not None and (day - last).days < fewest:
                fewest = (day - last).days
                if fewest == 1:
                    break
            last = day
    return fewest
