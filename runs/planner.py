"""The planner: turns due cursors into runs, each occurrence once, ahead of its time.

Claim, insert, advance and commit are one transaction, so a planner that dies at any moment leaves
either all of a batch or nothing of it.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from jobs.domain.schedule import ScheduleError, tzdata_version
from jobs.domain.timing import CatchUp, held_back_since, pause_from_json
from jobs.models import ScheduleCursor
from jobs.recompute import recompute_locked
from runs import store
from runs.domain.pacing import look_ahead, next_batch
from runs.domain.planning import (
    ClaimedJob,
    CursorPlan,
    JobTimes,
    Standing,
    plan_cursor,
    plan_held_back,
    plan_times,
)
from runs.partitions import oldest_instant
from runs.planned import advance, insert_planned, write_plans
from scheduler_project.lib.events import emit

_FIRST_BATCH = 1_000


class Planner:
    """The planner of one scheduler process: it remembers how large a batch the database bears."""

    def __init__(self, shards: Callable[[], Sequence[int]]) -> None:
        """`shards()` returns those that the process holds at the moment."""
        self._shards = shards
        self._batch = min(_FIRST_BATCH, settings.PLANNER_BATCH)
        self._was_full = False

    def run_once(self) -> dict[str, int]:
        """Plan one batch; returns its counts."""
        began = time.monotonic()
        counts = plan_once(self._shards(), batch=self._batch, is_paced=True)
        took = timedelta(seconds=time.monotonic() - began)
        self._was_full = counts["jobs"] - counts.get("stuck", 0) >= self._batch
        self._batch = next_batch(
            self._batch, was_full=self._was_full, took=took, most=settings.PLANNER_BATCH
        )
        return counts

    def is_behind(self, counts: Mapping[str, int]) -> bool:
        """Return whether the last batch was full, so that more cursors are likely to be due."""
        return self._was_full


def plan_once(
    shards: Sequence[int] | None = None, *, batch: int | None = None, is_paced: bool = False
) -> dict[str, int]:
    """Plan one batch (None: the largest) of due cursors of the given shards (None: of all).

    Paced, it leaves around a full minute what can wait: see runs/domain/pacing.py.

    Cursors that newer zone data set are left alone. One that older data set is looked at first:
    if the rules have moved its instants, it is fixed, and planned in the next round.

    Returns counts: `jobs` claimed, `runs` created, `spans` recorded, `existing` occurrences that
    had a row already, `set_aside` jobs that can't be planned, `stuck` ones whose runs the
    database refuses for now, `rezoned` ones that new zone data moved.
    """
    if shards is not None and not shards:
        return {"jobs": 0}
    with transaction.atomic():
        (row,) = store.fetch("transaction_time")
        now: datetime = row.now
        longest = timedelta(seconds=settings.LOOK_AHEAD_S)
        until = now + (look_ahead(now, longest) if is_paced else longest)
        claimed = store.fetch(
            "claim_due_cursors",
            until=until,
            limit=batch or settings.PLANNER_BATCH,
            shards=None if shards is None else list(shards),
            tzdata=tzdata_version(),
        )
        if not claimed:
            return {"jobs": 0}
        rezoned = _rezone(claimed)
        jobs = store.fetch(
            "read_claimed_jobs",
            job_ids=store.uuids(row.job_id for row in claimed if row.job_id not in rezoned),
        )
        cursors = {row.job_id: row for row in claimed}
        counts = _plan_jobs([(cursors[job.job_id], job) for job in jobs], now, until)
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
    (cursor,) = store.fetch("read_cursor", job_id=job_id)
    (job,) = store.fetch("read_claimed_jobs", job_ids=store.uuids([job_id]))
    if not job.enabled or job.is_deleted:
        return
    try:
        times = _TimesAsStored.of(cursor, job).decoded()
        pause = json.loads(job.pause or "null")
        if pause_from_json(pause) is not None:
            held_back = plan_held_back(
                _claimed_job(job),
                times,
                pause,
                catch_up,
                now=now,
                oldest_row=oldest_row(now, held_back_since(pause)),
                random_bytes=os.urandom(10),
            )
            insert_planned(*held_back)
        if times.next_run_at is not None and times.next_run_at <= now:
            plan = plan_times(
                times,
                now=now,
                until=now,
                oldest_row=oldest_row(now, times.next_run_at),
                tzdata=tzdata_version(),
            )
            planned = plan_cursor(_claimed_job(job), plan, os.urandom(10))
            insert_planned(planned.runs, planned.spans)
            advance([job_id], [planned.standing])
    except ScheduleError as error:
        emit("planner.not_settled", "A job that is changed can't be planned as it was.",
             job_id=job_id, reason=str(error))  # fmt: skip


class _TimesAsStored(NamedTuple):
    """A job's times as the rows have them: equal texts are equal times, and cost no decoding."""

    schedule: str
    dst: str
    misfire: str
    start_at: str | None
    end_at: str | None
    next_run_at: str | None
    last_wall_time: str

    @classmethod
    def of(cls, cursor: Any, job: Any) -> "_TimesAsStored":
        return cls(
            job.schedule, job.dst, job.misfire, job.start_at, job.end_at, cursor.next_run_at,
            cursor.last_wall_time,
        )  # fmt: skip

    def decoded(self) -> JobTimes:
        return JobTimes(
            json.loads(self.schedule),
            json.loads(self.dst),
            json.loads(self.misfire),
            _instant(self.start_at),
            _instant(self.end_at),
            _instant(self.next_run_at),
            self.last_wall_time,
        )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _rezone(claimed: Sequence[Any]) -> set[UUID]:
    """Fix the claimed jobs that newer zone data has moved; returns which those are."""
    older = [row.job_id for row in claimed if row.tzdata and row.tzdata != tzdata_version()]
    if not older:
        return set()
    cursors = list(ScheduleCursor.objects.filter(job_id__in=older))
    moved = recompute_locked(cursors, apply=True)
    for one in moved:
        emit("planner.rezoned", "New zone data moved a job's next instants.",
             job_id=one.job.job_id, cause=one.cause)  # fmt: skip
    return {one.job.job_id for one in moved}


def _plan_jobs(
    claimed: Sequence[tuple[Any, Any]], now: datetime, until: datetime
) -> dict[str, int]:
    """Plan the claimed cursors with their jobs and write it; returns counts."""
    by_times: dict[_TimesAsStored, list[ClaimedJob]] = {}
    for cursor, job in claimed:
        if job.enabled and not job.is_deleted:
            stored = _TimesAsStored.of(cursor, job)
            by_times.setdefault(stored, []).append(_claimed_job(job))
    set_aside = 0
    plans: list[CursorPlan] = []
    for stored, jobs in by_times.items():
        try:
            plans += _plans(stored, jobs, now, until)
        except Exception as error:  # also a stored field that is not what it should be
            _set_aside(jobs, _reason(error))
            set_aside += len(jobs)
    _rest_idle(claimed, until)
    created, written = write_plans(plans)
    return {
        "runs": created,
        "existing": sum(len(plan.runs) for plan in written) - created,
        "spans": sum(len(plan.spans) for plan in written),
        "set_aside": set_aside,
        "stuck": len(plans) - len(written),
    }


def _plans(
    stored: _TimesAsStored, jobs: Sequence[ClaimedJob], now: datetime, until: datetime
) -> list[CursorPlan]:
    """Decide once for all jobs with the same times: of those due together, few differ."""
    times = stored.decoded()
    assert times.next_run_at is not None
    plan = plan_times(
        times,
        now=now,
        until=until,
        oldest_row=oldest_row(now, times.next_run_at),
        tzdata=tzdata_version(),
    )
    seed = os.urandom(10 * len(jobs))
    return [plan_cursor(job, plan, seed[10 * n : 10 * n + 10]) for n, job in enumerate(jobs)]


def _claimed_job(job: Any) -> ClaimedJob:
    return ClaimedJob(job.job_id, job.tenant_id, job.version, job.region, job.tier)


def _rest_idle(claimed: Sequence[tuple[Any, Any]], until: datetime) -> None:
    """Stop the cursors of jobs that were switched off by a path that forgot them."""
    idle = [cursor for cursor, job in claimed if not job.enabled or job.is_deleted]
    advance(
        [cursor.job_id for cursor in idle],
        [Standing(None, until, cursor.last_wall_time, cursor.tzdata) for cursor in idle],
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ScheduleError):
        return str(error)
    logging.getLogger(__name__).error("a job can't be planned", exc_info=error)
    return f"what is stored of it can't be read: {type(error).__name__}: {error}"


def _set_aside(jobs: Sequence[ClaimedJob], reason: str) -> None:
    for job in jobs:
        store.execute("set_aside_job", job_id=job.job_id, reason=reason, tzdata=tzdata_version())
        emit("planner.set_aside", "A job can't be planned and was switched off.",
             job_id=job.job_id, reason=reason)  # fmt: skip


def oldest_row(now: datetime, earliest: datetime) -> datetime:
    """Where rows may begin, for someone who comes to occurrences from `earliest` on.

    What is older has no partition and can only be counted. Yesterday always has one: only who
    comes later than that looks which others there are.
    """
    today = now.astimezone(UTC).date()
    yesterday = datetime.combine(today - timedelta(days=1), time_of_day(), UTC)
    if earliest >= yesterday:
        return yesterday
    return oldest_instant(connection, today, settings.RETENTION_DAYS)
