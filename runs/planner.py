"""The planner: turns due cursors into runs, each occurrence once, ahead of its time.

Claim, insert, advance and commit are one transaction, so a planner that dies at any moment leaves
either all of a batch or nothing of it.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DataError, IntegrityError, connection, transaction

from jobs.domain.schedule import ScheduleError, tzdata_version
from jobs.domain.timing import CatchUp, held_back_since, pause_from_json
from jobs.models import ScheduleCursor
from jobs.recompute import recompute_locked
from runs import store
from runs.domain.planning import (
    ClaimedJob,
    CursorMove,
    CursorPlan,
    PlannedRun,
    PlannedSpan,
    plan_cursor,
    plan_held_back,
    spaced_after,
)
from runs.domain.state import Trigger
from runs.partitions import oldest_instant
from runs.run_metrics import count_planned
from scheduler_project.lib.events import emit


def plan_once(shards: Sequence[int] | None = None) -> dict[str, int]:
    """Plan one batch of due cursors of the given shards (None: of all).

    Cursors that newer zone data set are left alone. One that older data set is looked at first:
    if the rules have moved its instants, it is fixed, and planned in the next round.

    Returns counts: `jobs` claimed, `runs` created, `spans` recorded, `existing` occurrences that
    had a row already, `set_aside` jobs that can't be planned, `stuck` ones whose runs the
    database refuses for now, `rezoned` ones that new zone data moved.
    """
    if shards is not None and not shards:
        return {"jobs": 0}
    with transaction.atomic():
        claimed = store.fetch(
            "claim_due_cursors",
            look_ahead_s=settings.LOOK_AHEAD_S,
            limit=settings.PLANNER_BATCH,
            shards=None if shards is None else list(shards),
            tzdata=tzdata_version(),
        )
        if not claimed:
            return {"jobs": 0}
        rows = store.fetch("read_claimed_jobs", job_ids=[row.job_id for row in claimed])
        now: datetime = rows[0].now
        rezoned = _rezone(rows)
        rows = [row for row in rows if row.job_id not in rezoned]
        counts = _plan_rows(rows, now, now + timedelta(seconds=settings.LOOK_AHEAD_S))
        return counts | {"jobs": len(claimed), "rezoned": len(rezoned)}


def watch_newer_zone_data(shards: Sequence[int] | None = None) -> dict[str, int]:
    """Tell operators of due jobs that this process leaves to others with newer zone data.

    Returns how many were `left`. Nothing is lost while any scheduler has that data; when none has
    it, these jobs stand still.
    """
    if shards is not None and not shards:
        return {"left": 0}
    (row,) = store.fetch(
        "count_newer_cursors",
        look_ahead_s=settings.LOOK_AHEAD_S,
        shards=None if shards is None else list(shards),
        tzdata=tzdata_version(),
    )
    if row.jobs:
        emit("planner.older_zone_data", "Due jobs were set by newer zone data and are left alone.",
             level=logging.WARNING, jobs=row.jobs, tzdata=tzdata_version())  # fmt: skip
    return {"left": row.jobs}


def settle(job_id: UUID, now: datetime, catch_up: CatchUp) -> None:
    """Account for every occurrence of one job up to `now`; the caller holds its cursor's lock.

    What `plan_once` would do if it came by now, without looking ahead; and for a paused job, what
    the pause has held back. Of a job that can't be planned nothing can be told, and it may be
    about to be mended: it is left as it is.
    """
    (row,) = store.fetch("read_claimed_jobs", job_ids=[job_id])
    if not row.enabled or row.is_deleted:
        return
    try:
        if pause_from_json(row.pause) is not None:
            held_back = plan_held_back(
                _claimed_job(row),
                catch_up,
                now=now,
                oldest_row=oldest_row(now, held_back_since(row.pause)),
                random_bytes=os.urandom(10),
            )
            _insert(*held_back)
        if row.next_run_at is not None and row.next_run_at <= now:
            _write_batch([_plan(row, now, now)])
    except ScheduleError as error:
        emit("planner.not_settled", "A job that is changed can't be planned as it was.",
             job_id=job_id, reason=str(error))  # fmt: skip


def is_behind(counts: Mapping[str, int]) -> bool:
    """Return whether the batch was full, so that more cursors are likely to be due."""
    return counts.get("jobs", 0) - counts.get("stuck", 0) >= settings.PLANNER_BATCH


def _rezone(rows: Sequence[Any]) -> set[UUID]:
    """Fix the claimed jobs that newer zone data has moved; returns which those are."""
    older = [row.job_id for row in rows if row.tzdata and row.tzdata != tzdata_version()]
    if not older:
        return set()
    cursors = list(ScheduleCursor.objects.filter(job_id__in=older))
    moved = recompute_locked(cursors, apply=True)
    for one in moved:
        emit("planner.rezoned", "New zone data moved a job's next instants.",
             job_id=one.job.job_id, cause=one.cause)  # fmt: skip
    return {one.job.job_id for one in moved}


def _plan_rows(rows: Sequence[Any], now: datetime, until: datetime) -> dict[str, int]:
    plans: list[CursorPlan] = []
    idle: list[CursorMove] = []
    set_aside = 0
    for row in rows:
        if not row.enabled or row.is_deleted:  # switched off by a path that forgot its cursor
            idle.append(CursorMove(row.job_id, None, until, row.last_wall_time, row.tzdata))
            continue
        try:
            plans.append(_plan(row, now, until))
        except Exception as error:  # also a stored field that is not what it should be
            _set_aside(row.job_id, _reason(error), tzdata_version())
            set_aside += 1
    _advance(idle)
    created, written = _write(plans)
    return {
        "jobs": len(rows),
        "runs": created,
        "existing": sum(len(plan.runs) for plan in written) - created,
        "spans": sum(len(plan.spans) for plan in written),
        "set_aside": set_aside,
        "stuck": len(plans) - len(written),
    }


def _plan(row: Any, now: datetime, until: datetime) -> CursorPlan:
    return plan_cursor(
        _claimed_job(row),
        now=now,
        until=until,
        oldest_row=oldest_row(now, row.next_run_at),
        tzdata=tzdata_version(),
        random_bytes=os.urandom(10),
    )


def _write(plans: Sequence[CursorPlan]) -> tuple[int, Sequence[CursorPlan]]:
    """Write the plans; returns how many runs are new, and the plans that could be written.

    One that the database refuses, say because the partition of its day is missing, is left for
    the next round, and so that nobody else is left with it, the batch is then written job by job.
    """
    try:
        with transaction.atomic():
            return _write_batch(plans), plans
    except (DataError, IntegrityError) as error:
        if len(plans) == 1:
            emit("planner.stuck", "Runs of a job can't be written; it is tried again.",
                 level=logging.ERROR, job_id=plans[0].move.job_id,
                 error=str(error).strip())  # fmt: skip
            return 0, []
    each = [_write([plan]) for plan in plans]
    return sum(new for new, _ in each), [plan for _, written in each for plan in written]


def _write_batch(plans: Sequence[CursorPlan]) -> int:
    created = _insert(
        [run for plan in plans for run in plan.runs],
        [span for plan in plans for span in plan.spans],
    )
    _advance([plan.move for plan in plans])
    return created


def _insert(runs: Sequence[PlannedRun], spans: Sequence[PlannedSpan]) -> int:
    """Insert what was decided; returns how many runs had no row before."""
    created = store.execute("insert_runs", **_run_columns(_paced(runs))) if runs else 0
    transaction.on_commit(partial(count_planned, runs, created))
    if spans:
        store.execute(
            "insert_missed_spans",
            **store.columns(spans, "job_id", "from_at", "to_at", "count", "reason"),
        )
    return created


def _paced(runs: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
    """Put caught-up runs behind those that their job has waiting already."""
    counts: dict[UUID, int] = {}
    for run in runs:
        if run.trigger == Trigger.CATCH_UP:
            counts[run.job_id] = counts.get(run.job_id, 0) + 1
    # A single one, the usual case after an outage, can't be a flood and costs no look.
    return spaced_after(runs, busy_until(job_id for job_id, n in counts.items() if n > 1))


def busy_until(job_ids: Iterable[UUID]) -> dict[UUID, datetime]:
    """When the last paced run that waits is let go, for each of the jobs that has one."""
    ids = list(job_ids)
    rows = store.fetch("paced_until", job_ids=ids) if ids else []
    return {row.job_id: row.ready_at for row in rows}


def _reason(error: Exception) -> str:
    if isinstance(error, ScheduleError):
        return str(error)
    logging.getLogger(__name__).error("a job can't be planned", exc_info=error)
    return f"what is stored of it can't be read: {type(error).__name__}: {error}"


def _claimed_job(row: Any) -> ClaimedJob:
    return ClaimedJob(**{name: getattr(row, name) for name in ClaimedJob.__dataclass_fields__})


def _run_columns(planned: Sequence[Any]) -> dict[str, list[Any]]:
    return store.columns(
        planned, "run_id", "scheduled_for", "job_id", "job_version", "tenant_id", "region",
        "tier", "trigger", "status", "due_at", "ready_at", "deadline_at", "skip_reason",
    )  # fmt: skip


def _advance(moves: Sequence[CursorMove]) -> None:
    if moves:
        store.execute(
            "advance_cursors",
            **store.columns(
                moves, "job_id", "next_run_at", "planned_through", "last_wall_time", "tzdata"
            ),
        )


def oldest_row(now: datetime, earliest: datetime) -> datetime:
    """Where rows may begin, for someone who comes to occurrences from `earliest` on.

    What is older has no partition and can only be counted. Yesterday always has one: only who
    comes later than that looks which others there are.
    """
    today = now.astimezone(UTC).date()
    yesterday = datetime.combine(today - timedelta(days=1), time(), UTC)
    if earliest >= yesterday:
        return yesterday
    return oldest_instant(connection, today, settings.RETENTION_DAYS)


def _set_aside(job_id: UUID, reason: str, tzdata: str) -> None:
    store.execute("set_aside_job", job_id=job_id, reason=reason, tzdata=tzdata)
    emit("planner.set_aside", "A job can't be planned and was switched off.", job_id=job_id,
         reason=reason)  # fmt: skip
