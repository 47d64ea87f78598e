"""Which runs does a due cursor make, and where does it stand afterwards?

Its rule: jobs with the same times have the same plan, so a million jobs over some thousand
schedules cost some thousand decisions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from jobs.domain.misfire import (
    Cursor,
    Decision,
    Misfire,
    MissedPolicy,
    MissedSpan,
    decide,
    decide_held_back,
)
from jobs.domain.schedule import parse_dst, schedule_from_json
from jobs.domain.timing import (
    CatchUp,
    held_back_since,
    misfire_from_json,
    pause_from_json,
)
from runs.domain.run_id import make_run_ids
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


class JobTimes(NamedTuple):
    """All that decides when a job's runs fall due: the same for two jobs, the same plan.

    `schedule`, `dst` and `misfire` as they are stored, decoded.
    """

    schedule: Mapping[str, Any]
    dst: Mapping[str, Any]
    misfire: Mapping[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    next_run_at: datetime | None
    last_wall_time: str


class ClaimedJob(NamedTuple):
    """Whose run it is, and where it may run, as the planner has read it."""

    job_id: UUID
    tenant_id: UUID
    version: int
    region: str
    tier: str


class PlannedRun(NamedTuple):
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


class Standing(NamedTuple):
    """Where a cursor stands after planning; `next_run_at` None: the schedule has ended."""

    next_run_at: datetime | None
    planned_through: datetime
    last_wall_time: str
    tzdata: str


class Occurrence(NamedTuple):
    """What becomes of one occurrence, whichever of the jobs with these times it is of."""

    scheduled_for: datetime
    ready_at: datetime
    deadline_at: datetime | None
    trigger: str
    status: str
    skip_reason: str


@dataclass(frozen=True)
class TimesPlan:
    """What planning decides for every cursor with the same times."""

    occurrences: Sequence[Occurrence]
    spans: Sequence[MissedSpan]
    standing: Standing


@dataclass(frozen=True)
class CursorPlan:
    """All that planning one cursor writes, in one transaction."""

    job_id: UUID
    runs: Sequence[PlannedRun]
    spans: Sequence[PlannedSpan]
    standing: Standing


def plan_times(
    times: JobTimes, *, now: datetime, until: datetime, oldest_row: datetime, tzdata: str
) -> TimesPlan:
    """Plan every occurrence up to `until`, the end of the look-ahead.

    `oldest_row` is where the oldest partition begins. Raises ScheduleError for times that can't
    be planned.
    """
    misfire = misfire_from_json(times.misfire)
    decision = decide(_cursor(times), misfire, now=now, until=until, oldest_row=oldest_row)
    return TimesPlan(
        _occurrences(decision, misfire, now),
        decision.spans,
        Standing(
            next_run_at=decision.next_run_at,
            planned_through=until if decision.next_run_at is None else _before(decision, until),
            last_wall_time=decision.last_wall_time.isoformat() if decision.last_wall_time else "",
            tzdata=tzdata,
        ),
    )


def plan_cursor(job: ClaimedJob, plan: TimesPlan, random_bytes: bytes) -> CursorPlan:
    """What the plan of its times writes for one job.

    `random_bytes` seeds the run ids: ten bytes, made distinct per run by counting.
    """
    return CursorPlan(
        job_id=job.job_id,
        runs=_runs(job, plan.occurrences, random_bytes),
        spans=_spans(job, plan.spans),
        standing=plan.standing,
    )


def plan_held_back(
    job: ClaimedJob,
    times: JobTimes,
    pause_data: Mapping[str, Any],
    catch_up: CatchUp,
    *,
    now: datetime,
    oldest_row: datetime,
    random_bytes: bytes,
) -> tuple[Sequence[PlannedRun], Sequence[PlannedSpan]]:
    """Account for what the job's pause has held back: up to its end, or (still on) up to now.

    A pause that is over goes by its own `catch_up`, one that is ended now by the one given.
    Raises ScheduleError for a job that can't be planned.
    """
    pause = pause_from_json(pause_data)
    assert pause is not None
    is_over = pause.is_over(now)
    # Up to and with this moment; the occurrence at a pause's own end runs again.
    end = pause.until if is_over and pause.until is not None else now + _RESOLUTION
    cursor = _cursor(times, next_run_at=held_back_since(pause_data) + _RESOLUTION)
    misfire = replace(
        misfire_from_json(times.misfire),
        policy=_POLICIES[pause.catch_up if is_over else catch_up],
    )
    decision = decide_held_back(cursor, misfire, end=end, now=now, oldest_row=oldest_row)
    occurrences = _occurrences(decision, misfire, now)
    return _runs(job, occurrences, random_bytes), _spans(job, decision.spans)


def _cursor(times: JobTimes, *, next_run_at: datetime | None = None) -> Cursor:
    first = next_run_at or times.next_run_at
    assert first is not None
    wall = datetime.fromisoformat(times.last_wall_time) if times.last_wall_time else None
    return Cursor(
        schedule=schedule_from_json(times.schedule),
        next_run_at=first,
        dst=parse_dst(times.dst),
        start_at=times.start_at,
        end_at=times.end_at,
        # What was held back lies before what is planned: that has no say over it.
        last_wall_time=wall if next_run_at is None else None,
    )


def _spans(job: ClaimedJob, spans: Iterable[MissedSpan]) -> list[PlannedSpan]:
    return [
        PlannedSpan(job.job_id, span.first, span.last, span.count, span.reason.value)
        for span in spans
    ]


def _before(decision: Decision, until: datetime) -> datetime:
    """The instant up to which every occurrence is decided: short of the next one, if it is near."""
    assert decision.next_run_at is not None
    return min(until, decision.next_run_at - timedelta(microseconds=1))


def _occurrences(decision: Decision, misfire: Misfire, now: datetime) -> list[Occurrence]:
    def deadline(at: datetime) -> datetime | None:
        return None if misfire.deadline is None else at + misfire.deadline

    queued, live = RunStatus.QUEUED.value, Trigger.SCHEDULE.value
    wanted = [
        Occurrence(at, now + n * CATCH_UP_SPACING, deadline(at), Trigger.CATCH_UP.value, queued, "")
        for n, at in enumerate(decision.catch_up)
    ]
    wanted += [Occurrence(at, at, deadline(at), live, queued, "") for at in decision.live]
    wanted += [
        Occurrence(
            one.scheduled_for,
            one.scheduled_for,
            deadline(one.scheduled_for),
            live,
            RunStatus.SKIPPED.value,
            one.reason.value,
        )
        for one in decision.skipped
    ]
    return wanted


def _runs(
    job: ClaimedJob, occurrences: Sequence[Occurrence], random_bytes: bytes
) -> list[PlannedRun]:
    job_id, tenant_id, version, region, tier = job
    return [
        PlannedRun(
            run_id, at, job_id, version, tenant_id, region, tier, trigger, status, at, ready_at,
            deadline_at, skip_reason,
        )
        for run_id, (at, ready_at, deadline_at, trigger, status, skip_reason) in zip(
            make_run_ids([one.scheduled_for for one in occurrences], random_bytes),
            occurrences,
            strict=True,
        )
    ]  # fmt: skip


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
        placed.append(run._replace(ready_at=run.ready_at + shift))
    return placed
