"""After an upgrade of the zone data: finds and fixes the jobs whose next instants have moved.

The planner does the same for a job that it comes to first. A job is looked at under its cursor's
lock, and is afterwards stamped with the edition that its instants are made by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from jobs.domain.instant import format_instant
from jobs.domain.rezoning import Position, Rezoned, rezone
from jobs.domain.schedule import CronSchedule, format_wall, parse_wall, tzdata_version
from jobs.domain.timing import pause_from_json
from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from jobs.rows import schedule_of, spec_of
from jobs.run_effects import run_effects
from jobs.versions import add_version, database_clock, save_changed

_BATCH = 500
# A country that crosses the date line moves its clock by a day; nothing moves farther.
_FARTHEST_MOVE = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class MovedJob:
    """A job whose next instants the zone data moved; both are in order and may be empty."""

    job: Job
    edition_before: str
    before: tuple[datetime, ...]
    after: tuple[datetime, ...]

    @property
    def cause(self) -> str:
        """What the job's new version says."""
        first, then = self.before[0], self.after[0] if self.after else None
        moved_to = "none" if then is None else format_instant(then)
        return (
            f"tzdata {self.edition_before or 'unknown'} → {tzdata_version()}: "
            f"{format_instant(first)} → {moved_to}"
        )


def recompute_schedules(*, apply: bool) -> Iterator[MovedJob]:
    """Each job that older zone data planned and whose instants have moved; fixed if `apply`.

    With `apply` the others are stamped with this edition. Jobs that another process holds at the
    moment are passed over: it is planning them with its own data, and they can be asked for again.
    """
    last = UUID(int=0)
    while True:
        with transaction.atomic():
            cursors = list(
                ScheduleCursor.objects.select_for_update(skip_locked=True)
                .filter(job_id__gt=last, next_run_at__isnull=False)
                .exclude(tzdata=tzdata_version())
                .order_by("job_id")[:_BATCH]
            )
            older = [cursor for cursor in cursors if cursor.tzdata < tzdata_version()]
            moved = recompute_locked(older, apply=apply)
        yield from moved
        if len(cursors) < _BATCH:
            return
        last = cursors[-1].job_id


def recompute_locked(cursors: Sequence[ScheduleCursor], *, apply: bool) -> list[MovedJob]:
    """The jobs of these cursors that have moved; fixed if `apply`. The caller holds the locks."""
    now = database_clock()
    jobs = Job.objects.in_bulk([cursor.job_id for cursor in cursors])
    planned = run_effects().planned_ahead(list(jobs), now=now)
    decided = _decided_to(cursors, now)
    moved: list[tuple[MovedJob, Rezoned]] = []
    unmoved: list[UUID] = []
    for cursor in cursors:
        job = jobs[cursor.job_id]
        job.schedulecursor = cursor
        ahead = tuple(planned.get(job.job_id, ()))
        rezoned = _rezoned(job, decided[job.job_id], ahead)
        if rezoned is None or not rezoned.is_moved:
            unmoved.append(job.job_id)
        else:
            found = MovedJob(job, cursor.tzdata, rezoned.before, rezoned.after)
            moved.append((found, rezoned))
    if apply and moved:
        # All guards before any run (lock order), since this transaction changes many jobs.
        run_effects().hold_guards([found.job.job_id for found, _ in moved])
        for found, rezoned in moved:
            _fix(found, rezoned, now)
    if apply and unmoved:
        ScheduleCursor.objects.filter(job_id__in=unmoved).update(tzdata=tzdata_version())
    return [found for found, _ in moved]


def _decided_to(cursors: Sequence[ScheduleCursor], now: datetime) -> dict[UUID, datetime]:
    """Up to when the occurrences of each job are decided: the latest trace of that up to now."""
    ids = [cursor.job_id for cursor in cursors]
    earliest = now - _FARTHEST_MOVE
    found = {cursor.job_id: [earliest] for cursor in cursors}
    for cursor in cursors:
        if cursor.planned_through is not None and cursor.planned_through <= now:
            found[cursor.job_id].append(cursor.planned_through)
    versions = JobVersion.objects.filter(job__in=ids, effective_from__range=(earliest, now))
    spans = MissedSpan.objects.filter(job__in=ids, to_at__range=(earliest, now))
    traces = [
        *versions.values_list("job", Max("effective_from")).order_by(),
        *spans.values_list("job", Max("to_at")).order_by(),
        *run_effects().latest_occurrences(ids, since=earliest, until=now).items(),
    ]
    for job_id, instant in traces:
        found[job_id].append(instant)
    return {job_id: max(instants) for job_id, instants in found.items()}


def _rezoned(job: Job, decided_to: datetime, planned: tuple[datetime, ...]) -> Rezoned | None:
    """What the rules in force make of the job; None when they have no say over it."""
    schedule, cursor = schedule_of(job), job.schedulecursor
    if not isinstance(schedule, CronSchedule) or not (planned or cursor.next_run_at):
        return None
    position = Position(cursor.next_run_at, decided_to, planned, parse_wall(cursor.last_wall_time))
    pause = pause_from_json(job.pause)
    return rezone(
        schedule,
        position,
        dst=spec_of(job).dst,
        start_at=job.start_at,
        end_at=job.end_at,
        paused_until=None if pause is None else pause.until,
    )


def _fix(moved: MovedJob, rezoned: Rezoned, now: datetime) -> None:
    """Withdraw what was planned by the old rules, and let the job go on by the new."""
    job, cursor = moved.job, moved.job.schedulecursor
    run_effects().withdraw_planned(job.job_id, now=now)
    save_changed(job, now)
    wall = format_wall(rezoned.last_wall_time)
    add_version(
        job, rezoned.effective_from, "recompute_schedules", moved.cause, last_wall_time=wall
    )
    cursor.next_run_at = rezoned.after[0] if rezoned.after else None
    cursor.last_wall_time = wall
    cursor.tzdata = tzdata_version()
    cursor.save(update_fields=["next_run_at", "last_wall_time", "tzdata"])
