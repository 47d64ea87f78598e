"""Which occurrences does a backfill ask for, and how fast do they come?

Its rule: those that the job's versions say, each by the schedule of its time, so that a backfill
over a change of the schedule never runs a day twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from jobs.domain.instant import format_instant
from jobs.domain.policies import FieldProblem
from jobs.domain.schedule import ScheduleError, occurrences, parse_dst, schedule_from_json
from jobs.domain.timing import stored_instant

# As many as one answer may be responsible for; more are asked for in several requests.
MOST_OCCURRENCES: Final = 1_000
# One a second, as what is caught up after an outage.
DEFAULT_RATE_PER_MINUTE: Final = 60
MOST_RATE_PER_MINUTE: Final = 600

_MINUTE: Final = timedelta(minutes=1)
_RESOLUTION: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of a job's life with one schedule: from `begin` (exclusive) to `end` (inclusive).

    `schedule` and `policies` are as a job version stores them.
    """

    begin: datetime
    end: datetime
    schedule: Mapping[str, Any]
    policies: Mapping[str, Any]


def epochs(
    versions: Sequence[tuple[datetime, Mapping[str, Any], Mapping[str, Any]]], end: datetime
) -> list[Epoch]:
    """The epochs of versions given as (effective_from, schedule, policies), in order."""
    ends = [begin for begin, _, _ in versions[1:]] + [end]
    return [
        Epoch(begin, until, schedule, policies)
        for (begin, schedule, policies), until in zip(versions, ends, strict=True)
        if begin < until
    ]


def occurrences_of(
    life: Sequence[Epoch], since: datetime, before: datetime, limit: int
) -> list[datetime]:
    """The occurrences in [since, before), oldest first, `limit` at most.

    Off or paused makes no difference: a backfill is often asked for what was missed then. A
    version whose schedule can't be read has none.
    """
    found: list[datetime] = []
    for epoch in life:
        after = max(epoch.begin, since - _RESOLUTION)
        until = min(epoch.end, before - _RESOLUTION)
        if after < until and len(found) < limit:
            found += _within(epoch, after, until, limit - len(found))
    return found


def _within(epoch: Epoch, after: datetime, until: datetime, limit: int) -> list[datetime]:
    try:
        return occurrences(
            schedule_from_json(epoch.schedule),
            after,
            until,
            limit=limit,
            dst=parse_dst(epoch.policies.get("dst") or {}),
            start_at=stored_instant(epoch.policies.get("start_at")),
            end_at=stored_instant(epoch.policies.get("end_at")),
        )
    except ScheduleError:
        return []


def range_problems(
    since: datetime, before: datetime, *, earliest: datetime, why: str, now: datetime
) -> Iterator[FieldProblem]:
    """Everything wrong with the range asked for; `why` says what begins at `earliest`."""
    if since < earliest:
        text = format_instant(_up_to_milliseconds(earliest))
        yield FieldProblem(("from",), "before_history", f"{why} {text}", f"{text} or later")
    if before > now:
        message = "what is to come is planned by the schedule itself"
        yield FieldProblem(("to",), "in_future", message, f"{format_instant(_cut(now))} or earlier")
    if before <= since:
        yield FieldProblem(("to",), "ends_before_start", "to must be later than from")


def too_many() -> FieldProblem:
    """More occurrences in the range than one request may ask for."""
    return FieldProblem(
        ("to",),
        "too_many",
        f"the range has more than {MOST_OCCURRENCES} occurrences",
        "several requests, each for a part of the range",
    )


def release_times(count: int, *, begin: datetime, rate_per_minute: int) -> list[datetime]:
    """When each of `count` runs is let go: evenly, `rate_per_minute` of them a minute."""
    return [begin + n * _MINUTE / rate_per_minute for n in range(count)]


def _cut(instant: datetime) -> datetime:
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def _up_to_milliseconds(instant: datetime) -> datetime:
    cut = _cut(instant)
    return cut if cut == instant else cut + timedelta(milliseconds=1)
