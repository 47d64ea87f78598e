"""The engine against a minute-by-minute walk over the wall clock, around every clock change.

The oracle shares nothing with the engine: it has its own reading of expressions, looks at every
minute, and remembers what the wall has shown. It may use `zoneinfo`, which is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from jobs.domain.counting import count_occurrences
from jobs.domain.schedule import (
    CronSchedule,
    DstPolicy,
    load_zone,
    next_occurrence,
    occurrences,
    time_zone_names,
)
from jobs.domain.schedule_kinds import Fold, Gap

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
STRIDE = timedelta(minutes=22, seconds=30)
YEARS = range(2023, 2031)
GAPS: tuple[Gap, ...] = ("next_valid", "skip")
FOLDS: tuple[Fold, ...] = ("first", "second", "both")
POLICIES = [DstPolicy(gap, fold) for gap, fold in product(GAPS, FOLDS)]

# Fixed times and wildcards, dense and sparse, on and beside the hours where clocks change.
EXPRESSIONS = (
    "30 2 * * *", "0 0 * * *", "0,30 0-4 * * *", "15 1,2,3 * * *", "59 23 * * *", "0 3 * * 0",
    "20,50 1-3 * * 0,5", "30 0-23/2 * * *", "*/30 * * * *", "0 */2 * * *", "7 * * * *",
    "*/45 2 * * *", "45 1 1-7,24-31 * *",
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """The oracle's own reading of five fields (numbers, lists, ranges, steps)."""

    fields: tuple[frozenset[int], ...]
    either_day: bool
    wildcard: bool

    @classmethod
    def read(cls, text: str) -> Expression:
        parts = text.split()
        bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        fields = tuple(
            frozenset(cls._values(part, *bound)) for part, bound in zip(parts, bounds, strict=True)
        )
        starred = [part[0] == "*" for part in parts]
        return cls(fields, not (starred[2] or starred[4]), starred[0] or starred[1])

    @staticmethod
    def _values(part: str, low: int, high: int) -> Iterator[int]:
        for item in part.split(","):
            span, _, step = item.partition("/")
            first, _, last = span.partition("-")
            start = low if first == "*" else int(first)
            end = high if first == "*" or (step and not last) else int(last or first)
            for value in range(start, end + 1):
                if (value - start) % int(step or 1) == 0:
                    yield value

    def names(self, wall: datetime) -> bool:
        minutes, hours, days, months, weekdays = self.fields
        if not (wall.minute in minutes and wall.hour in hours and wall.month in months):
            return False
        matches = (wall.day in days, wall.isoweekday() % 7 in weekdays)
        return any(matches) if self.either_day else all(matches)


def walk(zone: ZoneInfo, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """(instant, wall) for each minute in [begin, end)."""
    count = (end - begin) // MINUTE
    instants = [begin + index * MINUTE for index in range(count)]
    return [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in instants]


def fires(
    expression: Expression, dst: DstPolicy, shown: list[tuple[datetime, datetime]]
) -> list[datetime]:
    """The instants at which `expression` fires, by looking at each minute of the wall."""
    repeats = expression.wildcard or dst.fold == "both"
    last_showing = {wall: at for at, wall in shown}
    found, seen, previous = [], set(), None
    for at, wall in shown:
        fire = expression.names(wall)
        if fire and not repeats:
            fire = wall not in seen if dst.fold == "first" else last_showing[wall] == at
        if previous is not None and not expression.wildcard and dst.gap == "next_valid":
            left_out = previous + MINUTE
            while left_out < wall:
                fire = fire or expression.names(left_out)
                left_out += MINUTE
        if fire:
            found.append(at)
        seen.add(wall)
        previous = wall
    return found


def changes(zone: ZoneInfo, years: range) -> Iterator[datetime]:
    """The minutes at which the zone's offset changes (looked at every six hours)."""
    at, end = datetime(years.start, 1, 1, tzinfo=UTC), datetime(years.stop, 1, 1, tzinfo=UTC)
    step = timedelta(hours=6)
    while at < end:
        if at.astimezone(zone).utcoffset() != (at + step).astimezone(zone).utcoffset():
            minute = at
            while minute.astimezone(zone).utcoffset() == at.astimezone(zone).utcoffset():
                minute += MINUTE
            yield minute
        at += step


def distinct_changes(years: range) -> list[tuple[str, datetime]]:
    """Every change of every zone, once for all zones in which it is the same."""
    found: dict[tuple[datetime, timedelta | None, timedelta | None], str] = {}
    for name in sorted(time_zone_names()):
        zone = load_zone(name)
        for at in changes(zone, years):
            offsets = (at - MINUTE).astimezone(zone).utcoffset(), at.astimezone(zone).utcoffset()
            found.setdefault((at, *offsets), name)
    return [(name, at) for (at, *_), name in found.items()]


def disagreements(
    zone_name: str,
    begin: datetime,
    end: datetime,
    margin: timedelta,
    expressions: tuple[str, ...],
    policies: list[DstPolicy],
) -> list[object]:
    """Where they differ in (begin, end); the oracle sees `margin` more on each side."""
    shown = walk(load_zone(zone_name), begin - margin, end + margin)
    wrong: list[object] = []
    for text in expressions:
        expression = Expression.read(text)
        for dst in policies[:1] if expression.wildcard else policies:
            expected = [at for at in fires(expression, dst, shown) if begin < at < end]
            schedule = CronSchedule(text, zone_name)
            got = occurrences(schedule, begin, end - MINUTE, limit=10_000, dst=dst)
            count = count_occurrences(schedule, begin, end - MINUTE, dst=dst)
            if got != expected or count != len(expected):
                wrong.append((zone_name, text, dst, begin, sorted({*got} ^ {*expected}), count))
            wrong += wrong_starts(schedule, dst, expected, begin, end)
    return wrong


def wrong_starts(
    schedule: CronSchedule,
    dst: DstPolicy,
    expected: list[datetime],
    begin: datetime,
    end: datetime,
) -> list[object]:
    """Where "next" from inside the window is wrong: stepping alone never starts within a fold."""
    wrong: list[object] = []
    for index in range((end - begin) // STRIDE):
        after = begin + index * STRIDE
        following = expected[bisect_right(expected, after) :][:1]
        got = next_occurrence(schedule, after, dst=dst)
        if following and got != following[0]:
            wrong.append((schedule, dst, after, got, following[0]))
    return wrong


def test_every_change_of_every_zone_agrees_with_the_minute_by_minute_walk() -> None:
    cases = distinct_changes(YEARS)
    assert len(cases) > 150
    wrong: list[object] = []
    for index, (zone_name, at) in enumerate(cases):
        # All policies at each change would take minutes: the default always, the others in turn.
        policies = [POLICIES[0], POLICIES[1 + index % (len(POLICIES) - 1)]]
        chosen = EXPRESSIONS[index % 3 :: 3] + EXPRESSIONS[:1]
        reach = timedelta(hours=7)
        wrong += disagreements(zone_name, at - reach, at + reach, timedelta(hours=4),
                               chosen, policies)  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize(
    ("zone_name", "at"),
    [
        ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
        ("Europe/Dublin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
        ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
        ("Africa/Casablanca", datetime(2026, 3, 22, 2, tzinfo=UTC)),
        ("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("America/Havana", datetime(2024, 11, 3, 5, tzinfo=UTC)),
        ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
        ("Asia/Pyongyang", datetime(2018, 5, 4, 15, tzinfo=UTC)),
        ("Asia/Pyongyang", datetime(2015, 8, 14, 15, tzinfo=UTC)),
        ("Asia/Kathmandu", datetime(1985, 12, 31, 18, 30, tzinfo=UTC)),
        ("Africa/Juba", datetime(2021, 1, 31, 21, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_change_agrees_under_every_policy(zone_name: str, at: datetime) -> None:
    reach = timedelta(hours=30)
    wrong = disagreements(
        zone_name, at - reach, at + reach, timedelta(hours=6), EXPRESSIONS, POLICIES
    )
    assert wrong == []


@pytest.mark.parametrize(
    ("zone_name", "at"),
    [
        ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
        ("Pacific/Fakaofo", datetime(2011, 12, 30, 11, tzinfo=UTC)),
        ("Pacific/Kwajalein", datetime(1993, 8, 21, 12, tzinfo=UTC)),
        ("Pacific/Kiritimati", datetime(1994, 12, 31, 10, 40, tzinfo=UTC)),
    ],
)
def test_a_day_that_is_left_out_agrees_under_every_policy(zone_name: str, at: datetime) -> None:
    reach = timedelta(hours=60)
    wrong = disagreements(zone_name, at - reach, at + reach, 2 * DAY, EXPRESSIONS, POLICIES)
    assert wrong == []


@pytest.mark.parametrize("text", [text for text in EXPRESSIONS if "/45" not in text])
@pytest.mark.parametrize("zone_name", ["America/New_York", "Europe/Berlin", "America/Santiago",
                                       "Asia/Kolkata", "Africa/Cairo"])  # fmt: skip
def test_cronsim_agrees_over_a_year(zone_name: str, text: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    peer = CronSim(text, begin.astimezone(load_zone(zone_name)))
    expected = [next(peer).astimezone(UTC) for _ in range(300)]
    assert occurrences(CronSchedule(text, zone_name), begin, expected[-1], limit=300) == expected
