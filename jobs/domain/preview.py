"""What will a schedule do? Its rule: the occurrences shown are made by the code that plans them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from cron_descriptor import Options, get_description

from jobs.domain.calendar_days import count_walls, matches_wall
from jobs.domain.cron import DAY, FIELDS, MINUTE, CronFields, FieldRule, parse_cron
from jobs.domain.instant import format_instant, format_interval
from jobs.domain.schedule import next_occurrences
from jobs.domain.schedule_kinds import (
    DEFAULT_DST,
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    Schedule,
)
from jobs.domain.wall_clock import Shift, shift_around, shifts_between, wall_of
from jobs.domain.zones import load_zone

# Both of a year's clock changes, and the rules announced for the next.
_WARNING_HORIZON: Final = timedelta(days=2 * 366)
# By number of the month; February of a common year.
_SHORTEST_MONTH: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PLAIN: Final = re.compile(r"\*/[0-9]+|[A-Z]+-[A-Z]+|[0-9]+-[0-9]+", re.ASCII)
_DESCRIBING: Final = Options(use_24hour_time_format=True, locale_code="en_US")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence, with what the wall shows then.

    `local` is naive, `offset` is text such as "+05:30". `notes`: `dst_shifted` (its time was left
    out by a clock change, so it comes at the end of the gap), `fold_first` and `fold_second` (the
    wall shows this time twice, and this is the first or second showing).
    """

    scheduled_for: datetime
    local: datetime
    offset: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleWarning:
    """Something that surprises people, with a stable `code` and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The next occurrences, the schedule in words, and what may surprise."""

    occurrences: tuple[Occurrence, ...]
    description: str
    warnings: tuple[ScheduleWarning, ...]


def preview(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    dst: DstPolicy = DEFAULT_DST,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Preview:
    """The next `count` occurrences after `after` (aware), explained."""
    instants = next_occurrences(
        schedule, after, count, dst=dst, start_at=start_at, end_at=end_at
    )  # fmt: skip
    return Preview(
        tuple(describe_occurrence(schedule, instant) for instant in instants),
        describe(schedule),
        tuple(_warnings(schedule, after, dst)),
    )


def describe_occurrence(schedule: Schedule, instant: datetime) -> Occurrence:
    """The occurrence of `schedule` at `instant`, with its local time and notes."""
    if not isinstance(schedule, CronSchedule):
        return Occurrence(instant, instant.astimezone(UTC).replace(tzinfo=None), "+00:00")
    zone = load_zone(schedule.time_zone)
    shown = wall_of(zone, instant)
    offset = instant.astimezone(zone).isoformat()[-6:]
    notes = tuple(_notes(parse_cron(schedule.expression), shown, shift_around(zone, shown)))
    return Occurrence(instant, shown.replace(fold=0), offset, notes)


def describe(schedule: Schedule) -> str:
    """The schedule in English words."""
    match schedule:
        case CronSchedule(expression, time_zone):
            return f"{_describe_cron(parse_cron(expression))} ({time_zone})"
        case AtSchedule(at):
            return f"Once, at {format_instant(at)}"
        case EverySchedule(interval, anchor):
            return f"Every {format_interval(interval)}, counted from {format_instant(anchor)}"


@lru_cache(maxsize=1024)
def _describe_cron(fields: CronFields) -> str:
    words: str = get_description(_plain_text(fields), _DESCRIBING)
    if not fields.either_day:
        # The library reads every pair of day fields as OR.
        words = words.replace(", or ", ", and only ")
    return words


def _plain_text(fields: CronFields) -> str:
    """The five fields as stars, plain steps and ranges, or lists: the library fails on the rest."""
    values = (fields.minutes, fields.hours, fields.days, fields.months, fields.weekdays)
    parts = [
        _plain_field(rule, part, named)
        for rule, part, named in zip(FIELDS, fields.text.split(), values, strict=True)
    ]
    if fields.either_day and "*" in (parts[2], parts[4]):
        parts[2] = parts[4] = "*"  # `1-31` or a Friday is every day
    return " ".join(parts)


def _plain_field(rule: FieldRule, part: str, named: tuple[int, ...]) -> str:
    if len(named) == rule.size:
        return "*"
    return part if _PLAIN.fullmatch(part) else ",".join(map(str, named))


def _notes(fields: CronFields, shown: datetime, shift: Shift | None) -> Iterator[str]:
    if not matches_wall(fields, shown):
        # Not a time of the expression: only the end of a gap is ever put in for one.
        yield "dst_shifted"
    if shift is not None:
        yield "fold_second" if shown.fold else "fold_first"


def _warnings(schedule: Schedule, after: datetime, dst: DstPolicy) -> Iterator[ScheduleWarning]:
    if not isinstance(schedule, CronSchedule):
        return
    fields = parse_cron(schedule.expression)
    yield from _day_warnings(fields)
    yield from _uneven_step(fields)
    yield from _dst_warning(schedule, fields, after, dst)


def _day_warnings(fields: CronFields) -> Iterator[ScheduleWarning]:
    _, _, day_text, _, weekday_text = fields.text.split()
    if fields.either_day:
        yield ScheduleWarning(
            "day_or_weekday",
            f"day of month {day_text} and day of week {weekday_text} are both set: it fires when "
            "either matches, not only when both do",
        )
    elif day_text != "*" and weekday_text != "*":
        yield ScheduleWarning(
            "day_and_weekday",
            f"a day field begins with *: it fires only on dates that match both {day_text} and "
            f"{weekday_text}",
        )
    short = _day_that_is_lacking(fields)
    if short is not None and not day_text.startswith("*"):
        yield ScheduleWarning(
            "short_months", f"not every month has a day {short}: in a shorter one it does not fire"
        )


def _day_that_is_lacking(fields: CronFields) -> int | None:
    """A day named for its own sake (31, but not the end of 28-31) that one of the months lacks."""
    shortest = min(_SHORTEST_MONTH[month] for month in fields.months)
    alone = (day for day in fields.days if day > shortest and day - 1 not in fields.days)
    return next(alone, None)


def _uneven_step(fields: CronFields) -> Iterator[ScheduleWarning]:
    """`*/7` counts afresh in each hour, `*/2` in each month: steps are not intervals."""
    for rule, text, values in (
        (MINUTE, fields.text.split()[0], fields.minutes),
        (DAY, fields.text.split()[2], fields.days),
    ):
        step = text.partition("*/")[2]
        if step.isdigit() and int(step) > 1 and (rule is DAY or rule.size % int(step)):
            unit = "hour" if rule is MINUTE else "month"
            yield ScheduleWarning(
                "uneven_step",
                f"{text} in the {rule.label} field starts again each {unit}, at {values[0]}: the "
                "last gap is shorter; for a true interval use every",
            )


def _dst_warning(
    schedule: CronSchedule, fields: CronFields, after: datetime, dst: DstPolicy
) -> Iterator[ScheduleWarning]:
    if fields.is_wildcard:
        return
    zone, begin = load_zone(schedule.time_zone), after.astimezone(UTC)
    for shift in shifts_between(zone, begin, begin + _WARNING_HORIZON):
        low, high = sorted((shift.wall_before, shift.wall_after))
        if count_walls(fields, low, high):
            yield ScheduleWarning("dst_exposed", _dst_message(schedule, shift, dst))
            return


def _dst_message(schedule: CronSchedule, shift: Shift, dst: DstPolicy) -> str:
    clock = (
        f"on {shift.wall_before:%Y-%m-%d} the clock in {schedule.time_zone} goes from "
        f"{shift.wall_before:%H:%M} to {shift.wall_after:%H:%M}"
    )
    if shift.is_gap:
        outcome = {"next_valid": f"fire once, at {shift.wall_after:%H:%M}", "skip": "do not fire"}
        return f"{clock}: times in between {outcome[dst.gap]}"
    showings = {"first": "at their first showing only", "second": "at their second showing only",
                "both": "at both showings"}  # fmt: skip
    return f"{clock}: times in between come twice and fire {showings[dst.fold]}"
