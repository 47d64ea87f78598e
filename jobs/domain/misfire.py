"""What becomes of occurrences noticed late? Its rule: each is a run, a skipped row, or counted.

The planner comes to a cursor and asks for everything from its next occurrence to the end of the
look-ahead. An occurrence no later than the grace simply runs late. Earlier ones are *missed*: the
job's policy picks the few that still run, and the rest are counted in one span per reason, by
arithmetic, however long the outage was. Expected occurrences = rows + counts, always.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from jobs.domain.counting import count_occurrences, latest_occurrences
from jobs.domain.schedule import next_occurrence, occurrences, wall_time
from jobs.domain.schedule_kinds import DEFAULT_DST, DstPolicy, Schedule

_RESOLUTION: Final = timedelta(microseconds=1)

# At most so many live rows from one decision, however generous a job's grace is; the cursor then
# stands at the first occurrence that is left, and the planner comes back to it.
MOST_LIVE_RUNS: Final = 200


class MissedPolicy(StrEnum):
    """Which of the missed occurrences still run."""

    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"
    SKIP = "skip"


class MissedReason(StrEnum):
    """Why an occurrence did not become a run."""

    OUTAGE = "outage"  # missed, and the policy passes over it
    PAUSED = "paused"  # the job was resting
    DEADLINE = "deadline"  # older than the job's deadline: useless by now
    BEYOND_CATCH_UP = "beyond_catch_up"  # the policy would run it, but not so many


@dataclass(frozen=True, slots=True)
class Misfire:
    """A job's policy for lateness; the defaults are the product's.

    `grace`: how late is simply late. `deadline`: how late is useless (None: never too late).
    `max_catch_up`: how many missed occurrences `run_all` runs at most, the latest ones.
    """

    policy: MissedPolicy = MissedPolicy.RUN_ONCE
    grace: timedelta = timedelta(seconds=60)
    deadline: timedelta | None = None
    max_catch_up: int = 100


@dataclass(frozen=True, slots=True)
class Cursor:
    """A job's schedule, and how far it is planned.

    `next_run_at` is the first occurrence not yet dealt with; `last_wall_time` as in
    `next_occurrence`. `flexible_window` is how much later than its nominal time an occurrence
    may fall due: lateness counts from its end, since until then the job was on time.
    """

    schedule: Schedule
    next_run_at: datetime
    dst: DstPolicy = DEFAULT_DST
    start_at: datetime | None = None
    end_at: datetime | None = None
    last_wall_time: datetime | None = None
    flexible_window: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class SkippedOccurrence:
    """One occurrence that gets a `skipped` row."""

    scheduled_for: datetime
    reason: MissedReason


@dataclass(frozen=True, slots=True)
class MissedSpan:
    """`count` occurrences from `first` to `last`, both inclusive, that get no rows."""

    first: datetime
    last: datetime
    count: int
    reason: MissedReason


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write for one cursor, in one transaction.

    `live` and `catch_up` become runs (triggers schedule and catch_up), oldest first.
    `next_run_at` is the cursor's new value (None: the schedule has ended), `last_wall_time` the
    wall time of the last occurrence dealt with (the old value when there was none).
    """

    live: tuple[datetime, ...] = ()
    catch_up: tuple[datetime, ...] = ()
    skipped: tuple[SkippedOccurrence, ...] = ()
    spans: tuple[MissedSpan, ...] = ()
    next_run_at: datetime | None = None
    last_wall_time: datetime | None = None

    @property
    def accounted(self) -> int:
        """How many occurrences the decision deals with."""
        rows = len(self.live) + len(self.catch_up) + len(self.skipped)
        return rows + sum(span.count for span in self.spans)


def decide(
    cursor: Cursor,
    misfire: Misfire,
    *,
    now: datetime,
    until: datetime,
    oldest_row: datetime | None = None,
) -> Decision:
    """Deal with every occurrence from the cursor to `until`, the end of the look-ahead (>= now).

    `oldest_row` is where the oldest partition begins; earlier occurrences can only be counted.
    The work is bounded: a few searches and counts, and MOST_LIVE_RUNS + max_catch_up rows.
    """
    first = _first(cursor, cursor.next_run_at)
    if first is None or first > until:
        return Decision(next_run_at=first, last_wall_time=cursor.last_wall_time)
    live_from = now - misfire.grace - cursor.flexible_window
    useful_from = first
    if misfire.deadline is not None:
        useful_from = now - misfire.deadline - cursor.flexible_window
    if oldest_row is not None:
        live_from = max(live_from, oldest_row)
    catch_up, spans = _missed(cursor, misfire, first, live_from, useful_from, oldest_row)
    rows = _between(cursor, max(first, live_from), until, MOST_LIVE_RUNS)
    last = max([first, *rows, *catch_up, *(span.last for span in spans)])
    skipped, spans = _single_rows(spans, oldest_row)
    return Decision(
        live=tuple(at for at in rows if at >= useful_from),
        catch_up=catch_up,
        skipped=skipped + tuple(_past_deadline(at) for at in rows if at < useful_from),
        spans=spans,
        next_run_at=_first(cursor, last + _RESOLUTION),
        last_wall_time=wall_time(cursor.schedule, last),
    )


def decide_held_back(
    cursor: Cursor,
    misfire: Misfire,
    *,
    end: datetime,
    now: datetime,
    oldest_row: datetime | None = None,
) -> Decision:
    """Deal with the occurrences from the cursor to before `end` that a pause held back.

    All of them are missed, however short ago; `misfire.policy` says which run now (SKIP: none),
    and the others are counted as paused. The decision's `next_run_at` is the caller's to set.
    """
    first = _first(cursor, cursor.next_run_at)
    if first is None or first >= end:
        return Decision(last_wall_time=cursor.last_wall_time)
    useful_from = first
    if misfire.deadline is not None:
        useful_from = now - misfire.deadline - cursor.flexible_window
    catch_up, spans = _missed(cursor, misfire, first, end, useful_from, oldest_row)
    paused = tuple(
        replace(span, reason=MissedReason.PAUSED) if span.reason is MissedReason.OUTAGE else span
        for span in spans
    )
    skipped, spans = _single_rows(paused, oldest_row)
    return Decision(
        catch_up=catch_up, skipped=skipped, spans=spans, last_wall_time=cursor.last_wall_time
    )


def missed_span(
    cursor: Cursor, first: datetime, end: datetime, reason: MissedReason
) -> MissedSpan | None:
    """The occurrences of `cursor` in [first, end) as one span; None when there are none."""
    after, until = first - _RESOLUTION, _until(cursor, end)
    count = count_occurrences(cursor.schedule, after, until, dst=cursor.dst)
    if count == 0:
        return None
    begin = next_occurrence(cursor.schedule, after, dst=cursor.dst)
    (last,) = latest_occurrences(cursor.schedule, after, until, 1, dst=cursor.dst)
    return None if begin is None else MissedSpan(begin, last, count, reason)


def _missed(
    cursor: Cursor,
    misfire: Misfire,
    first: datetime,
    live_from: datetime,
    useful_from: datetime,
    oldest_row: datetime | None,
) -> tuple[tuple[datetime, ...], tuple[MissedSpan, ...]]:
    """The missed occurrences in [first, live_from): those that still run, and the spans."""
    if first >= live_from:
        return (), ()
    if misfire.policy is MissedPolicy.SKIP:
        return (), _spans(missed_span(cursor, first, live_from, MissedReason.OUTAGE))
    too_old = min(max(first, useful_from), live_from)
    kept_from = too_old if oldest_row is None else min(max(too_old, oldest_row), live_from)
    most, reason = 1, MissedReason.OUTAGE
    if misfire.policy is MissedPolicy.RUN_ALL:
        most, reason = misfire.max_catch_up, MissedReason.BEYOND_CATCH_UP
    until = _until(cursor, live_from)
    catch_up = latest_occurrences(
        cursor.schedule, kept_from - _RESOLUTION, until, most, dst=cursor.dst
    )
    return tuple(catch_up), _spans(
        missed_span(cursor, first, too_old, MissedReason.DEADLINE),
        missed_span(cursor, too_old, kept_from, MissedReason.OUTAGE),
        missed_span(cursor, kept_from, catch_up[0] if catch_up else live_from, reason),
    )


def _spans(*spans: MissedSpan | None) -> tuple[MissedSpan, ...]:
    return tuple(span for span in spans if span is not None)


def _single_rows(
    spans: tuple[MissedSpan, ...], oldest_row: datetime | None
) -> tuple[tuple[SkippedOccurrence, ...], tuple[MissedSpan, ...]]:
    """A lone one past its deadline or in a pause becomes a row, easier to find than a span."""
    single = tuple(
        span
        for span in spans
        if span.count == 1
        and span.reason in (MissedReason.DEADLINE, MissedReason.PAUSED)
        and (oldest_row is None or span.first >= oldest_row)
    )
    rows = tuple(SkippedOccurrence(span.first, span.reason) for span in single)
    return rows, tuple(span for span in spans if span not in single)


def _past_deadline(scheduled_for: datetime) -> SkippedOccurrence:
    return SkippedOccurrence(scheduled_for, MissedReason.DEADLINE)


def _first(cursor: Cursor, earliest: datetime) -> datetime | None:
    """The first occurrence at or after `earliest`, never one before the cursor."""
    return next_occurrence(
        cursor.schedule, earliest - _RESOLUTION, dst=cursor.dst, start_at=cursor.start_at,
        end_at=cursor.end_at, last_wall_time=cursor.last_wall_time,
    )  # fmt: skip


def _between(cursor: Cursor, first: datetime, until: datetime, limit: int) -> list[datetime]:
    """The occurrences in [first, until], `limit` at most."""
    return occurrences(
        cursor.schedule, first - _RESOLUTION, until, limit=limit, dst=cursor.dst,
        end_at=cursor.end_at,
    )  # fmt: skip


def _until(cursor: Cursor, end: datetime) -> datetime:
    """The inclusive end of [.., end), no later than the schedule's own end."""
    last = end - _RESOLUTION
    return last if cursor.end_at is None else min(last, cursor.end_at)
