"""Which runs does a due cursor make, and where does it stand afterwards?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from jobs.domain.misfire import Cursor, Decision, MissedPolicy, decide, decide_held_back
from jobs.domain.schedule import parse_dst, schedule_from_json
from jobs.domain.timing import (
    CatchUp,
    held_back_since,
    misfire_from_json,
    pause_from_json,
)
from runs.domain.run_id import make_run_id
from runs.domain.state import RunStatus, Trigger

_RESOLUTION: Final = timedelta(microseconds=1)
# At most sixty a minute of one job: work that is late anyway must not arrive as a flood.
CATCH_UP_SPACING: Final = timedelta(seconds=1)

# What a pause's end runs, in the words of the policy for missed occurrences.
_POLICIES: Final = {
    CatchUp.NONE: MissedPolicy.SKIP,
    CatchUp.LATEST: MissedPolicy.RUN_ONCE,
    CatchUp.ALL: MissedPolicy.RUN_ALL,
}


@dataclass(frozen=True)
class ClaimedJob:
    """A claimed cursor with what its job says, as the planner has read it."""

    job_id: UUID
    tenant_id: UUID
    version: int
    schedule: Mapping[str, Any]
    dst: Mapping[str, Any]
    misfire: Mapping[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    region: str
    tier: str
    next_run_at: datetime | None
    last_wall_time: str
    pause: Mapping[str, Any] | None


@dataclass(frozen=True)
class PlannedRun:
    """A run to be inserted."""

    run_id: UUID
    scheduled_for: datetime
    job_id: UUID
    job_version: int
    tenant_id: UUID
    region: str
    tier: str
    trigger: str
    status: str
    due_at: datetime
    ready_at: datetime
    deadline_at: datetime | None
    skip_reason: str


@dataclass(frozen=True)
class PlannedSpan:
    """A counted stretch of occurrences to be inserted; both ends included."""

    job_id: UUID
    from_at: datetime
    to_at: datetime
    count: int
    reason: str


@dataclass(frozen=True)
class CursorMove:
    """Where the cursor stands after planning; `next_run_at` None: the schedule has ended."""

    job_id: UUID
    next_run_at: datetime | None
    planned_through: datetime
    last_wall_time: str
    tzdata: str


@dataclass(frozen=True)
class CursorPlan:
    """All that planning one cursor writes, in one transaction."""

    runs: list[PlannedRun]
    spans: list[PlannedSpan]
    move: CursorMove


def plan_cursor(
    job: ClaimedJob,
    *,
    now: datetime,
    until: datetime,
    oldest_row: datetime,
    tzdata: str,
    random_bytes: bytes,
) -> CursorPlan:
    """Plan every occurrence of one cursor up to `until`, the end of the look-ahead.

    `oldest_row` is where the oldest partition begins; `random_bytes` seeds the run ids (ten bytes,
    made distinct per run by counting). Raises ScheduleError for a job that can't be planned.
    """
    decision = decide(
        _cursor(job), misfire_from_json(job.misfire), now=now, until=until, oldest_row=oldest_row
    )
    return CursorPlan(
        runs=_runs(job, decision, random_bytes, now),
        spans=_spans(job, decision),
        move=CursorMove(
            job_id=job.job_id,
            next_run_at=decision.next_run_at,
            planned_through=until if decision.next_run_at is None else _before(decision, until),
            last_wall_time=decision.last_wall_time.isoformat() if decision.last_wall_time else "",
            tzdata=tzdata,
        ),
    )


def plan_held_back(
    job: ClaimedJob,
    catch_up: CatchUp,
    *,
    now: datetime,
    oldest_row: datetime,
    random_bytes: bytes,
) -> tuple[list[PlannedRun], list[PlannedSpan]]:
    """Account for what the job's pause has held back: up to its end, or (still on) up to now.

    A pause that is over goes by its own `catch_up`, one that is ended now by the one given.
    Raises ScheduleError for a job that can't be planned.
    """
    assert job.pause is not None
    pause = pause_from_json(job.pause)
    assert pause is not None
    is_over = pause.is_over(now)
    # Up to and with this moment; the occurrence at a pause's own end runs again.
    end = pause.until if is_over and pause.until is not None else now + _RESOLUTION
    cursor = _cursor(job, next_run_at=held_back_since(job.pause) + _RESOLUTION)
    misfire = replace(
        misfire_from_json(job.misfire), policy=_POLICIES[pause.catch_up if is_over else catch_up]
    )
    decision = decide_held_back(cursor, misfire, end=end, now=now, oldest_row=oldest_row)
    return _runs(job, decision, random_bytes, now), _spans(job, decision)


def _cursor(job: ClaimedJob, *, next_run_at: datetime | None = None) -> Cursor:
    first = next_run_at or job.next_run_at
    assert first is not None
    wall = datetime.fromisoformat(job.last_wall_time) if job.last_wall_time else None
    return Cursor(
        schedule=schedule_from_json(job.schedule),
        next_run_at=first,
        dst=parse_dst(job.dst),
        start_at=job.start_at,
        end_at=job.end_at,
        # What was held back lies before what is planned: that has no say over it.
        last_wall_time=wall if next_run_at is None else None,
    )


def _spans(job: ClaimedJob, decision: Decision) -> list[PlannedSpan]:
    return [
        PlannedSpan(job.job_id, span.first, span.last, span.count, span.reason.value)
        for span in decision.spans
    ]


def _before(decision: Decision, until: datetime) -> datetime:
    """The instant up to which every occurrence is decided: short of the next one, if it is near."""
    assert decision.next_run_at is not None
    return min(until, decision.next_run_at - timedelta(microseconds=1))


def _runs(
    job: ClaimedJob, decision: Decision, random_bytes: bytes, now: datetime
) -> list[PlannedRun]:
    deadline = misfire_from_json(job.misfire).deadline
    wanted = [
        (at, now + n * CATCH_UP_SPACING, Trigger.CATCH_UP, RunStatus.QUEUED, "")
        for n, at in enumerate(decision.catch_up)
    ]
    wanted += [(at, at, Trigger.SCHEDULE, RunStatus.QUEUED, "") for at in decision.live]
    wanted += [
        (
            one.scheduled_for,
            one.scheduled_for,
            Trigger.SCHEDULE,
            RunStatus.SKIPPED,
            one.reason.value,
        )
        for one in decision.skipped
    ]
    return [
        PlannedRun(
            run_id=run_id,
            scheduled_for=at,
            job_id=job.job_id,
            job_version=job.version,
            tenant_id=job.tenant_id,
            region=job.region,
            tier=job.tier,
            trigger=trigger.value,
            status=status.value,
            due_at=at,
            ready_at=ready_at,
            deadline_at=None if deadline is None else at + deadline,
            skip_reason=reason,
        )
        for run_id, (at, ready_at, trigger, status, reason) in zip(
            run_ids([at for at, *_ in wanted], random_bytes), wanted, strict=True
        )
    ]


def run_ids(instants: Sequence[datetime], random_bytes: bytes) -> list[UUID]:
    """An id for each run, by its nominal instant; ten random bytes, counted on, tell them apart."""
    seed = int.from_bytes(random_bytes, "big")
    return [
        make_run_id(at, ((seed + n) % (1 << 80)).to_bytes(10, "big"))
        for n, at in enumerate(instants)
    ]


def spaced_after(
    runs: Sequence[PlannedRun], busy_until: Mapping[UUID, datetime]
) -> list[PlannedRun]:
    """The runs, with the caught-up ones of a job put behind those that it has waiting already.

    `busy_until` is the last instant at which a paced run of the job is let go, by job.
    """
    placed: list[PlannedRun] = []
    begins: dict[UUID, timedelta] = {}
    for run in runs:
        busy = busy_until.get(run.job_id)
        if run.trigger != Trigger.CATCH_UP or busy is None:
            placed.append(run)
            continue
        shift = begins.setdefault(
            run.job_id, max(busy + CATCH_UP_SPACING - run.ready_at, timedelta())
        )
        placed.append(replace(run, ready_at=run.ready_at + shift))
    return placed
