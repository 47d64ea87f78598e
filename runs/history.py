"""Checks the whole history against the job versions, as one instant of the database saw it.

One transaction, REPEATABLE READ and read-only: a live system goes on beside it, and every stream
sees the same rows. Streams come from server-side cursors in the same order of job, so that memory
holds one job's versions and spans and one run at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from psycopg.rows import namedtuple_row
from psycopg.types.json import set_json_loads

from runs import store
from runs.domain.accounting import Accountant, Cursor, Row, Span, check_cursor, decided_until
from runs.domain.exclusion import Exclusion, Move
from runs.domain.history import Attempt, RunRecord, check_run
from runs.domain.run_id import scheduled_for_of
from runs.domain.state import FINAL, RunStatus, Trigger
from runs.domain.timeline import Timeline, version_from_row
from runs.domain.violation import Kind, Violation
from runs.partitions import partition_days

_ROWS_AT_A_TIME = 2_000
_OCCURRENCES = frozenset({Trigger.SCHEDULE, Trigger.CATCH_UP, Trigger.BACKFILL})
_ATTEMPT_FIELDS = [field.name for field in fields(Attempt)]
_RUN_FIELDS = [field.name for field in fields(RunRecord) if field.name != "attempts"]


@dataclass(frozen=True)
class Scope:
    """What is checked: occurrences scheduled in (since, until], of one tenant or one job."""

    since: datetime | None = None
    until: datetime | None = None
    tenant: UUID | None = None
    job: UUID | None = None
    # How far a node's clock may be from the database's.
    clock_tolerance: timedelta = timedelta(seconds=1)


@dataclass
class Checked:
    """How much was looked at; filled while the violations are read."""

    jobs: int = 0
    runs: int = 0
    attempts: int = 0


def verify_history(scope: Scope, checked: Checked) -> Iterator[Violation]:
    """Yield every violation in the scope, and count in `checked` what was looked at.

    Must not be called inside a transaction. History reaches back to the oldest day that retention
    has left; of earlier ones nothing is said.
    """
    with _snapshot():
        yield from check_history(scope, checked)


def check_history(scope: Scope, checked: Checked) -> Iterator[Violation]:
    """As `verify_history`, in the caller's transaction."""
    (window,) = store.fetch("history_window")
    since, until = _bounds(scope, window.now)
    parameters = {"since": since, "until": until, "tenant": scope.tenant, "job": scope.job}
    yield from _jobs(parameters, scope, window.now, checked)
    yield from _fences(parameters, window.last_fence)


@contextmanager
def _snapshot() -> Iterator[None]:
    """A read-only transaction on one snapshot, that may take its time."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def _bounds(scope: Scope, now: datetime) -> tuple[datetime, datetime]:
    """The window that can be judged: no further back than rows are kept."""
    kept = _oldest_kept(now)
    since = kept if scope.since is None else max(scope.since, kept)
    # Planned runs lie ahead of now, no further than there are partitions for.
    last = now + timedelta(days=settings.PARTITION_DAYS_AHEAD)
    return since, last if scope.until is None else min(scope.until, last)


def _oldest_kept(now: datetime) -> datetime:
    """Just before the first day from which every partition that was made is still there.

    Retention drops no day younger than `RETENTION_DAYS`; of older ones it may have kept some and
    dropped others.
    """
    retained_from: date = now.astimezone(UTC).date() - timedelta(days=settings.RETENTION_DAYS)
    days = [day for day in partition_days(connection, "runs") if day < retained_from]
    # Whole days back from the retained ones, as long as none is missing between.
    oldest = retained_from
    for day in reversed(days):
        if day != oldest - timedelta(days=1):
            break
        oldest = day
    return datetime.combine(oldest, time(), UTC) - timedelta(microseconds=1)


def _stream(statement: str, **parameters: Any) -> Iterator[Any]:
    """The rows of a statement, a few thousand in memory at a time."""
    connection.ensure_connection()
    assert connection.connection is not None
    with connection.connection.cursor(name=statement, row_factory=namedtuple_row) as cursor:
        set_json_loads(json.loads, cursor)  # Django's own connections leave JSON as text
        cursor.itersize = _ROWS_AT_A_TIME
        cursor.execute(store.STATEMENTS[statement], parameters)
        yield from cursor


class _ByJob:
    """A stream in order of job, from which each job's rows are taken in turn."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._groups = groupby(rows, key=lambda row: row.job_id)
        self._next = next(self._groups, None)

    def before(self, job_id: UUID | None) -> Iterator[tuple[UUID, Iterator[Any]]]:
        """The groups of jobs that come before `job_id` (None: all that are left)."""
        while self._next is not None and (job_id is None or self._next[0] < job_id):
            yield self._next
            self._next = next(self._groups, None)

    def of(self, job_id: UUID) -> Iterator[Any]:
        """The rows of `job_id`; the groups before it have been taken."""
        if self._next is not None and self._next[0] == job_id:
            yield from self._next[1]
            self._next = next(self._groups, None)


def _jobs(
    parameters: dict[str, Any], scope: Scope, now: datetime, checked: Checked
) -> Iterator[Violation]:
    runs = _ByJob(_records(_stream("history_runs", **parameters)))
    moves = _ByJob(_moves(_stream("history_moves", **parameters)))
    guards = _ByJob(_stream("history_guards", **parameters))
    for job in _stream("history_jobs", **parameters):
        yield from _unknown_jobs(runs, job.job_id, scope)
        for stream in (moves, guards):  # of unknown jobs: said once is enough
            for _ in stream.before(job.job_id):
                pass
        checked.jobs += 1
        timeline = Timeline.of([version_from_row(row) for row in job.versions])
        yield from _occurrences(job, timeline, runs.of(job.job_id), parameters, scope, now, checked)
        exclusion = Exclusion(timeline)
        for move in moves.of(job.job_id):
            yield from exclusion.move(move)
        yield from _guards(job, timeline, guards.of(job.job_id))
    yield from _unknown_jobs(runs, None, scope)


def _unknown_jobs(runs: _ByJob, job_id: UUID | None, scope: Scope) -> Iterator[Violation]:
    for unknown_id, records in runs.before(job_id):
        first = next(records)
        yield Violation(Kind.UNKNOWN_JOB, "runs of a job that does not exist", unknown_id)
        for run in (first, *records):
            yield from _check_run(run, None, scope)


def _occurrences(
    job: Any,
    timeline: Timeline,
    runs: Iterator[RunRecord],
    parameters: dict[str, Any],
    scope: Scope,
    now: datetime,
    checked: Checked,
) -> Iterator[Violation]:
    """One job's runs, each by itself and all against its versions."""
    cursor = Cursor(job.next_run_at, job.planned_through)
    if not timeline.versions:
        yield Violation(Kind.NO_VERSION, "it has no version to check against", job.job_id)
    elif not job.has_cursor and not timeline.versions[-1].is_deleted:
        yield Violation(Kind.CURSOR_ASTRAY, "it has no cursor", job.job_id)
    accountant = Accountant(
        job.job_id,
        timeline,
        [Span(**_instants(span)) for span in job.spans],
        after=parameters["since"],
        until=min(parameters["until"], decided_until(cursor, now)),
    )
    for run in runs:
        checked.runs += 1
        checked.attempts += len(run.attempts)
        yield from _check_run(run, timeline, scope)
        if run.trigger in _OCCURRENCES and timeline.versions:
            yield from accountant.row(
                Row(run.run_id, run.scheduled_for, run.trigger, run.touched_at)
            )
    if not timeline.versions:
        return
    yield from accountant.finish()
    astray = check_cursor(job.job_id, timeline, cursor, now) if job.has_cursor else None
    if astray is not None:
        yield astray


def _check_run(run: RunRecord, timeline: Timeline | None, scope: Scope) -> Iterator[Violation]:
    if scheduled_for_of(run.run_id) != run.scheduled_for:
        yield Violation(Kind.BROKEN_ROW, "its id is of another instant", run.job_id, run.run_id)
    yield from check_run(
        run,
        timeline,
        clock_tolerance=scope.clock_tolerance,
        max_lease_losses=settings.MAX_LEASE_LOSSES,
    )


def _guards(job: Any, timeline: Timeline, astray: Iterator[Any]) -> Iterator[Violation]:
    """The guard's holder is an active run of the job; who runs or is blocked has a holder."""
    if job.holder_run_id is not None:
        holder = job.holder_run_id
        if job.holder_job_id != job.job_id:
            yield Violation(Kind.GUARD, "the guard's holder is no run of it", job.job_id, holder)
        elif job.holder_status in FINAL:
            facts = f"the guard's holder is {job.holder_status}"
            yield Violation(Kind.GUARD, facts, job.job_id, holder)
    for run in astray:
        if run.status == RunStatus.BLOCKED:
            facts = "it is blocked, and nobody holds the guard: it waits for ever"
            yield Violation(Kind.GUARD, facts, run.job_id, run.run_id)
        elif run.go_at is not None and Exclusion(timeline).excludes(run.go_at):
            facts = "it runs without holding its job's guard"
            yield Violation(Kind.GUARD, facts, run.job_id, run.run_id)


def _fences(parameters: dict[str, Any], last_fence: int) -> Iterator[Violation]:
    if parameters["tenant"] or parameters["job"]:
        return  # a fence is unique among all
    window = {"since": parameters["since"], "until": parameters["until"]}
    for row in _stream("history_fences", **window, last_fence=last_fence):
        runs = ", ".join(map(str, row.run_ids))
        if row.fence > last_fence:
            facts = f"fence {row.fence} of {runs} has not been drawn yet ({last_fence} was last)"
            yield Violation(Kind.FENCE_REUSED, facts)
        else:
            yield Violation(Kind.FENCE_REUSED, f"fence {row.fence} is that of two leases: {runs}")


def _records(rows: Iterator[Any]) -> Iterator[RunRecord]:
    """Runs with their attempts, from rows that repeat the run for each attempt."""
    for _, each in groupby(rows, key=lambda row: (row.run_id, row.scheduled_for)):
        of_run = list(each)
        attempts = [_attempt(row) for row in of_run if row.a_attempt is not None]
        values = {name: getattr(of_run[0], name) for name in _RUN_FIELDS}
        yield RunRecord(**values, attempts=attempts)


def _moves(rows: Iterator[Any]) -> Iterator[Move]:
    for row in rows:
        attempt = None if row.a_attempt is None else _attempt(row)
        yield Move(row.job_id, row.run_id, row.at, attempt, row.run_ended_at)


def _attempt(row: Any) -> Attempt:
    return Attempt(**{name: getattr(row, f"a_{name}") for name in _ATTEMPT_FIELDS})


def _instants(span: dict[str, Any]) -> dict[str, Any]:
    ends = {name: datetime.fromisoformat(span[name]) for name in ("first", "last")}
    return {**span, **ends}
