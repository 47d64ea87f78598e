"""Which runs does a due cursor make, and where does it stand afterwards?"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs.domain.misfire import Cursor, Decision, Misfire, MissedPolicy, decide
from jobs.domain.schedule import parse_dst, schedule_from_json
from runs.domain.run_id import make_run_id
from runs.domain.state import RunStatus, Trigger


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
    next_run_at: datetime
    last_wall_time: str


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
    wall = datetime.fromisoformat(job.last_wall_time) if job.last_wall_time else None
    cursor = Cursor(
        schedule=schedule_from_json(job.schedule),
        next_run_at=job.next_run_at,
        dst=parse_dst(job.dst),
        start_at=job.start_at,
        end_at=job.end_at,
        last_wall_time=wall,
    )
    decision = decide(
        cursor, misfire_from_json(job.misfire), now=now, until=until, oldest_row=oldest_row
    )
    return CursorPlan(
        runs=_runs(job, decision, random_bytes),
        spans=[
            PlannedSpan(job.job_id, span.first, span.last, span.count, span.reason.value)
            for span in decision.spans
        ],
        move=CursorMove(
            job_id=job.job_id,
            next_run_at=decision.next_run_at,
            planned_through=until if decision.next_run_at is None else _before(decision, until),
            last_wall_time=decision.last_wall_time.isoformat() if decision.last_wall_time else "",
            tzdata=tzdata,
        ),
    )


def misfire_from_json(data: Mapping[str, Any]) -> Misfire:
    """Read a job's stored policy for lateness; what is missing takes the product's default."""
    default = Misfire()
    deadline_s = data.get("deadline_s")
    return Misfire(
        policy=MissedPolicy(data.get("policy", default.policy)),
        grace=timedelta(seconds=data["grace_s"]) if "grace_s" in data else default.grace,
        deadline=None if deadline_s is None else timedelta(seconds=deadline_s),
        max_catch_up=data.get("max_catch_up", default.max_catch_up),
    )


def _before(decision: Decision, until: datetime) -> datetime:
    """The instant up to which every occurrence is decided: short of the next one, if it is near."""
    assert decision.next_run_at is not None
    return min(until, decision.next_run_at - timedelta(microseconds=1))


def _runs(job: ClaimedJob, decision: Decision, random_bytes: bytes) -> list[PlannedRun]:
    wanted = [(at, Trigger.CATCH_UP, RunStatus.QUEUED, "") for at in decision.catch_up]
    wanted += [(at, Trigger.SCHEDULE, RunStatus.QUEUED, "") for at in decision.live]
    wanted += [
        (skipped.scheduled_for, Trigger.SCHEDULE, RunStatus.SKIPPED, skipped.reason.value)
        for skipped in decision.skipped
    ]
    seed = int.from_bytes(random_bytes, "big")
    return [
        PlannedRun(
            run_id=make_run_id(at, ((seed + n) % (1 << 80)).to_bytes(10, "big")),
            scheduled_for=at,
            job_id=job.job_id,
            job_version=job.version,
            tenant_id=job.tenant_id,
            region=job.region,
            tier=job.tier,
            trigger=trigger.value,
            status=status.value,
            due_at=at,
            skip_reason=reason,
        )
        for n, (at, trigger, status, reason) in enumerate(wanted)
    ]
