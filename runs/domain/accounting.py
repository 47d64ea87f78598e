"""Is every promised occurrence a row or counted, once? Its rule: expected = rows + counts.

It walks along a job's rows and spans in order of time and asks the timeline what lies between two
of them. So it costs one search a row, and an outage of a year, counted or lost, one count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from runs.domain.timeline import RESOLUTION, Timeline
from runs.domain.violation import Kind, Violation

# An edit is in force from `effective_from`, and in effect when it commits, at most so much later.
EDIT_SLACK: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Row:
    """An occurrence that has a row. `touched_at`: when it first had a go, an end or a cancel,
    after which an edit leaves it alone; None: it only waits."""

    run_id: UUID
    scheduled_for: datetime
    trigger: str
    touched_at: datetime | None


@dataclass(frozen=True, slots=True)
class Span:
    """A counted stretch of occurrences; both ends included."""

    first: datetime
    last: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the job's cursor stands."""

    next_run_at: datetime | None
    planned_through: datetime | None


class Accountant:
    """Settles one job's occurrences in (after, until]: `row` for each in order, then `finish`."""

    def __init__(
        self,
        job_id: UUID,
        timeline: Timeline,
        spans: Sequence[Span],
        *,
        after: datetime,
        until: datetime,
    ) -> None:
        self._job_id = job_id
        self._timeline = timeline
        self._spans = sorted(spans, key=lambda span: span.first)
        self._window_begins = after
        self._until = until
        # Everything up to here is settled, and the last row that was seen.
        self._settled = after
        self._last_row: datetime | None = None
        self._in_span: Span | None = None

    def row(self, row: Row) -> Iterator[Violation]:
        """Account for a row; what is missing before it, and what is wrong with it."""
        at = row.scheduled_for
        yield from self._spans_up_to(at)
        if at == self._last_row:
            yield self._says(Kind.DOUBLED, f"{_text(at)} has a second row", row.run_id)
            return
        self._last_row = at
        if self._in_span is not None and self._in_span.first <= at <= self._in_span.last:
            # A backfill makes up for what was counted: the count stays, as what had been missed.
            if row.trigger != "backfill":
                counted = f"{_text(at)} has a row and is counted as {self._in_span.reason}"
                yield self._says(Kind.DOUBLED, counted, row.run_id)
            return
        yield from self._gap(at - RESOLUTION)
        # A backfill may also ask for what was not promised, because the job was off or paused.
        made_up = row.trigger == "backfill" and self._timeline.schedules(at)
        if not made_up and not self._timeline.promises(at):
            yield from self._not_promised(row)
        self._settled = max(self._settled, at)

    def finish(self) -> Iterator[Violation]:
        """Account for what is left up to the end of the window."""
        yield from self._spans_up_to(self._until)
        yield from self._gap(self._until)

    def _spans_up_to(self, at: datetime) -> Iterator[Violation]:
        while self._spans and self._spans[0].first <= at:
            span = self._spans.pop(0)
            if span.last <= self._window_begins:
                continue
            yield from self._gap(span.first - RESOLUTION)
            yield from self._span(span)
            self._settled = max(self._settled, span.last)
            self._in_span = span

    def _span(self, span: Span) -> Iterator[Violation]:
        if span.first <= self._window_begins or span.last > self._until:
            return  # only a part of it is looked at
        if span.first <= self._settled:
            yield self._says(Kind.DOUBLED, f"the span from {_text(span.first)} counts what stands")
            return
        expected = self._timeline.count(span.first - RESOLUTION, span.last)
        ends_promised = all(map(self._timeline.promises, (span.first, span.last)))
        if expected != span.count or not ends_promised:
            yield self._says(
                Kind.WRONG_SPAN,
                f"the span {_text(span.first)} … {_text(span.last)} ({span.reason}) counts "
                f"{span.count} occurrences, of {expected}",
            )

    def _gap(self, until: datetime) -> Iterator[Violation]:
        """Everything promised since what is settled, up to `until`, is missing."""
        until = min(until, self._until)
        first = self._timeline.first_after(self._settled, until) if until > self._settled else None
        if first is None:
            return
        count = self._timeline.count(self._settled, until)
        last = self._timeline.last_in(self._settled, until)
        to = f" … {_text(last)}" if last is not None and last != first else ""
        yield self._says(Kind.MISSING, f"{count} occurrences at {_text(first)}{to} are lost")

    def _not_promised(self, row: Row) -> Iterator[Violation]:
        """A row that the version in force did not promise: an edit may have had to leave it."""
        version = self._timeline.once_promised(row.scheduled_for)
        at = _text(row.scheduled_for)
        if version is None or version.ends_at is None:
            yield self._says(Kind.UNPROMISED, f"no version promised {at}", row.run_id)
        elif row.touched_at is None or row.touched_at > version.ends_at + EDIT_SLACK:
            facts = f"version {version.version} promised {at}, and was replaced before"
            yield self._says(Kind.NOT_WITHDRAWN, facts, row.run_id)

    def _says(self, kind: Kind, facts: str, run_id: UUID | None = None) -> Violation:
        return Violation(kind, facts, job_id=self._job_id, run_id=run_id)


def decided_until(cursor: Cursor, now: datetime) -> datetime:
    """Up to where every occurrence must be accounted for.

    Everything before `next_run_at` is decided; without one the schedule says that it has ended, and
    then all that has been is.
    """
    horizon = max(now, cursor.planned_through or now)
    if cursor.next_run_at is None:
        return horizon
    return min(cursor.next_run_at - RESOLUTION, horizon)


def check_cursor(
    job_id: UUID, timeline: Timeline, cursor: Cursor, now: datetime
) -> Violation | None:
    """A cursor of a job that is on stands at its next occurrence, or at none when it has ended."""
    if not timeline.versions[-1].is_on:
        return None
    decided = decided_until(cursor, now)
    following = timeline.first_after(decided, datetime.max.replace(tzinfo=now.tzinfo))
    if following == cursor.next_run_at:
        return None
    facts = f"the cursor stands at {_text(cursor.next_run_at)} instead of {_text(following)}"
    return Violation(Kind.CURSOR_ASTRAY, facts, job_id=job_id)


def _text(at: datetime | None) -> str:
    return "none" if at is None else at.isoformat().replace("+00:00", "Z")
