"""Creates, changes and deletes jobs: the one path for API, admin and commands.

Every change is one transaction in which the database's clock decides, the cursor is locked first
(lock order: cursor → job guard → run), planned runs are withdrawn, the cursor is set anew and a
version row says what the job was from then on (architecture §3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction

from jobs.domain.counting import nominal_interval_s
from jobs.domain.policies import (
    FieldProblem,
    label_problems,
    overlap_problems,
    retry_problems,
    task_problems,
)
from jobs.domain.schedule import (
    AtSchedule,
    Schedule,
    ScheduleError,
    check_at_in_future,
    parse_schedule,
    schedule_to_json,
    tzdata_version,
)
from jobs.domain.sharding import shard_of
from jobs.domain.spec import JobChanges, JobSpec, changed_spec, resuming, spec_of_new
from jobs.domain.timing import (
    CatchUp,
    bounds_problems,
    dst_to_json,
    held_back_since,
    misfire_problems,
    misfire_to_json,
    pause_problems,
    pause_to_json,
)
from jobs.errors import (
    InvalidJobError,
    JobNotFoundError,
    JobQuotaExceededError,
    StaleVersionError,
    schedule_problem,
)
from jobs.models import Job, ScheduleCursor
from jobs.rows import ceilings_of, next_of, schedule_of, spec_of
from jobs.run_effects import run_effects
from jobs.versions import (
    add_version,
    database_clock,
    first_after,
    save_changed,
    set_cursor,
    version_of,
)
from scheduler_project.lib.insert_together import insert_together
from scheduler_project.lib.transactions import one_transaction
from tenants.models import Tenant

# Creations of a tenant this near to its `max_jobs` take turns: two at once can't pass the limit,
# and nobody else pays for a lock. Larger than the number of requests served at once.
_TURNS_NEAR_LIMIT = 200


def job_create(tenant: Tenant, said: JobChanges, *, changed_by: str) -> Job:
    """Store a new job with its version 1 and its cursor; return it.

    `said` has a schedule, and a task with image and timeout. Raises InvalidJobError (fields, the
    tenant's ceilings, `at` in the past) and JobQuotaExceededError.
    """
    with one_transaction():
        now, jobs = _clock_and_jobs(tenant)
        spec = spec_of_new(said, ceilings_of(tenant))
        job = Job(job_id=uuid4(), tenant=tenant, created_at=now, updated_at=now)
        schedule = _checked(job, spec, said, before=None, current=None, now=now)
        _check_job_quota(tenant, jobs)
        _write(job, spec, schedule)
        job.pause = spec.pause and pause_to_json(spec.pause, since=now, by=changed_by)
        _check_fires(job, now)
        cursor = ScheduleCursor(
            job=job,
            shard=shard_of(job.job_id, settings.SHARDS),
            next_run_at=first_after(job, now),
            paused_until=spec.pause.until if spec.pause and spec.enabled else None,
            tzdata=tzdata_version(),
        )
        insert_together(job, version_of(job, now, changed_by), cursor)
    return job


def job_update(
    tenant: Tenant,
    job_id: UUID,
    changes: JobChanges,
    *,
    expected_version: int | None,
    changed_by: str,
) -> Job:
    """Change a job and return it; `expected_version` None takes any version (`If-Match: *`).

    Only a change of what decides when it runs (schedule, its bounds, dst, enabled, pause) moves
    the schedule: anything else leaves cursor and planned runs alone. What came due before the
    change is settled first, by what the job said then. A change to what is so already writes
    nothing. Raises JobNotFoundError, StaleVersionError and InvalidJobError.
    """
    with transaction.atomic():
        job, now = _lock(tenant, job_id, expected_version)
        before, current = _as_of(job, now), schedule_of(job)
        spec = changed_spec(before, changes)
        schedule = _checked(job, spec, changes, before=before, current=current, now=now)
        if schedule is not None and schedule == current:  # "60m" for "1h" changes nothing
            spec = replace(spec, schedule=before.schedule)
        is_moved = schedule != current or _times(spec) != _times(before)
        if not is_moved and spec == before:
            return job
        is_settled = is_moved and not _only_until_moves(before, spec, schedule == current)
        if is_settled:
            is_resumed = spec.enabled and spec.pause is None
            catch_up = resuming(before.pause, changes) if is_resumed else CatchUp.NONE
            run_effects().settle(job_id, now=now, catch_up=catch_up)
        job.pause = _changed_pause(job, before, spec, is_settled, now, changed_by)
        _write(job, spec, schedule)
        if schedule != current:
            _check_fires(job, now)
        save_changed(job, now)
        add_version(job, now, changed_by)
        if spec.misfire.deadline != before.misfire.deadline:
            run_effects().set_deadline(job_id, spec.misfire.deadline)
        if is_moved:
            _move_schedule(job, now, begins_to_rest=_is_active(before) and not _is_active(spec))
    return job


def job_set_enabled(
    tenant: Tenant,
    job_id: UUID,
    enabled: bool,
    *,
    expected_version: int | None = None,
    changed_by: str,
) -> Job:
    """Switch a job on (from the next occurrence after now, no catching up) or off."""
    changes = JobChanges(enabled=enabled)
    return job_update(
        tenant, job_id, changes, expected_version=expected_version, changed_by=changed_by
    )


def job_delete(
    tenant: Tenant,
    job_id: UUID,
    *,
    expected_version: int | None = None,
    cancel_running: bool = False,
    changed_by: str,
) -> None:
    """Delete a job: nothing of it starts any more; its history stays readable.

    A running run goes on unless `cancel_running`. Raises JobNotFoundError (the second time, too)
    and StaleVersionError.
    """
    with transaction.atomic():
        job, now = _lock(tenant, job_id, expected_version)
        effects = run_effects()
        effects.settle(job_id, now=now, catch_up=CatchUp.NONE)
        job.deleted_at = now
        if spec_of(job).pause is not None:  # settled: it holds nothing back any more
            job.pause = None
        save_changed(job, now)
        add_version(job, now, changed_by)
        set_cursor(job, now)
        effects.withdraw_planned(job_id, now=now)
        effects.stop_waiting(job_id, status="cancelled", reason="job_deleted")
        if cancel_running:
            effects.request_cancel_running(job_id)


def job_hold(tenant: Tenant, job_id: UUID) -> Job:
    """Return the job and keep it from being changed or deleted until the transaction ends.

    For run-now: a shared lock on the cursor, which many may hold at once while an edit or a
    delete waits its turn. The caller has opened the transaction. Raises JobNotFoundError.
    """
    with connection.cursor() as sql:
        sql.execute(
            "SELECT FROM schedule_cursors WHERE job_id = %s AND EXISTS "
            "(SELECT FROM jobs WHERE job_id = %s AND tenant_id = %s) FOR SHARE",
            [job_id, job_id, tenant.pk],
        )
    return _read(tenant, job_id)


def jobs_hold(tenant: Tenant, job_ids: Collection[UUID]) -> dict[UUID, Job]:
    """As `job_hold` for several jobs, in order of id; what is not there is missing."""
    with connection.cursor() as sql:
        sql.execute(
            "SELECT FROM schedule_cursors WHERE job_id IN (SELECT job_id FROM jobs"
            " WHERE job_id = ANY(%s) AND tenant_id = %s) ORDER BY job_id FOR SHARE",
            [list(job_ids), tenant.pk],
        )
    found = Job.objects.filter(job_id__in=job_ids, tenant=tenant, deleted_at=None)
    return {job.job_id: job for job in found}


def job_lock(tenant: Tenant, job_id: UUID) -> tuple[Job, datetime]:
    """Return the job, for the caller's transaction alone, and the database's clock.

    As an edit holds it: planner, edits and deletes wait or pass by. Raises JobNotFoundError.
    """
    return _lock(tenant, job_id, None)


def _lock(tenant: Tenant, job_id: UUID, expected_version: int | None) -> tuple[Job, datetime]:
    """Lock the job's cursor; return the job as it is now, and now by the database's clock."""
    of_tenant = Job.objects.filter(job_id=job_id, tenant=tenant).values("job_id")
    cursor = ScheduleCursor.objects.select_for_update().filter(job_id__in=of_tenant).first()
    if cursor is None:
        raise JobNotFoundError
    job = _read(tenant, job_id)
    job.schedulecursor = cursor
    if expected_version is not None and job.version != expected_version:
        raise StaleVersionError(job.version)
    return job, database_clock()


def _read(tenant: Tenant, job_id: UUID) -> Job:
    # A statement after the lock's: its snapshot is from after the wait, and sees what the change
    # before us wrote.
    job = Job.objects.filter(job_id=job_id, tenant=tenant, deleted_at=None).first()
    if job is None:
        raise JobNotFoundError
    job.tenant = tenant
    return job


def _as_of(job: Job, now: datetime) -> JobSpec:
    """What the job says at `now`: a pause that is over is none, noticed by the duty or not."""
    spec = spec_of(job)
    return replace(spec, pause=None) if spec.pause and spec.pause.is_over(now) else spec


def _times(spec: JobSpec) -> tuple[object, ...]:
    """What decides when a job runs, beside its schedule."""
    rests = spec.pause is not None
    return (spec.enabled, spec.start_at, spec.end_at, spec.dst, rests, rests and spec.pause.until)  # type: ignore[union-attr]


def _only_until_moves(before: JobSpec, spec: JobSpec, is_same_schedule: bool) -> bool:
    """True when a pause only gets another end: what it held back so far stays held back."""
    if not is_same_schedule or before.pause is None or spec.pause is None:
        return False
    return _times(replace(spec, pause=before.pause)) == _times(before)


def _is_active(spec: JobSpec) -> bool:
    return spec.enabled and spec.pause is None


def _changed_pause(
    job: Job, before: JobSpec, spec: JobSpec, is_settled: bool, now: datetime, changed_by: str
) -> dict[str, Any] | None:
    """What to store as the job's pause after the change."""
    stored: dict[str, Any] | None = job.pause
    is_set_aside = bool(stored) and "since" not in (stored or {})
    if (spec.pause == before.pause and not is_settled) or (is_set_aside and not spec.enabled):
        return stored
    if spec.pause is None:
        return None
    since = held_back_since(stored) if stored and before.pause and not is_settled else now
    by = stored["by"] if stored and spec.pause == before.pause else changed_by
    return pause_to_json(spec.pause, since=since, by=by)


def _checked(
    job: Job,
    spec: JobSpec,
    said: JobChanges,
    *,
    before: JobSpec | None,
    current: Schedule | None,
    now: datetime,
) -> Schedule | None:
    """The schedule of `spec`; raises InvalidJobError with all that is wrong at once.

    What a change doesn't touch isn't judged again: a tenant whose ceilings were lowered can still
    switch its job off.
    """
    problems: list[FieldProblem] = []
    schedule = current
    if before is None or _is_schedule_new(spec, before) or (spec.enabled and current is None):
        try:
            schedule = _parsed_schedule(job, spec, current, now)
        except ScheduleError as error:
            problems.append(schedule_problem(error))
    if before is None or spec.task != before.task:
        problems += task_problems(spec.task, ceilings_of(job.tenant))
    if before is None or spec.retry != before.retry:
        problems += retry_problems(spec.retry)
    overlap = (spec.overlap, spec.queue_limit)
    if before is None or overlap != (before.overlap, before.queue_limit):
        problems += overlap_problems(*overlap)
    if before is None or spec.labels != before.labels:
        problems += label_problems(spec.labels)
    if before is None or spec.misfire != before.misfire:
        problems += misfire_problems(spec.misfire)
    if before is None or (spec.start_at, spec.end_at) != (before.start_at, before.end_at):
        problems += bounds_problems(spec.start_at, spec.end_at)
    if before is None or spec.pause != before.pause:
        problems += pause_problems(spec.pause, now)
    # One that is over and that nobody has noticed yet is there too: ended twice does no harm.
    if said.resume not in (None, CatchUp.NONE) and not (spec.pause or job.pause):
        problems.append(_RESUMES_NOTHING)
    if schedule is not None and schedule != current:
        problems += _interval_problems(job.tenant, schedule)
    if problems:
        raise InvalidJobError(problems)
    return schedule


_RESUMES_NOTHING = FieldProblem(
    ("resume", "catch_up"),
    "not_paused",
    "the job is not paused, so there is nothing to catch up",
    "POST …/backfill runs the occurrences of a time that has passed",
)


def _is_schedule_new(spec: JobSpec, before: JobSpec) -> bool:
    # A new start_at is a new anchor for an interval.
    return spec.schedule != before.schedule or spec.start_at != before.start_at


def _parsed_schedule(job: Job, spec: JobSpec, current: Schedule | None, now: datetime) -> Schedule:
    schedule = parse_schedule(spec.schedule, anchor=spec.start_at or job.created_at)
    # Sent again unchanged (a whole job written back), a past `at` is no new wish to run.
    if isinstance(schedule, AtSchedule) and schedule != current:
        check_at_in_future(schedule.at, now)
    return schedule


def _check_fires(job: Job, now: datetime) -> None:
    """Raise InvalidJobError when the bounds leave a new schedule without any occurrence."""
    if job.start_at is None and job.end_at is None:
        return
    if next_of(job, now) is None:
        raise InvalidJobError(
            [
                FieldProblem(
                    ("end_at",),
                    "never_fires",
                    "the schedule has no occurrence from now on between start_at and end_at",
                    "other bounds; to switch a job off send enabled: false",
                )
            ]
        )


def _interval_problems(tenant: Tenant, schedule: Schedule) -> Iterator[FieldProblem]:
    interval_s = nominal_interval_s(schedule)
    if interval_s is not None and interval_s < tenant.min_interval_s:
        yield FieldProblem(
            ("schedule",),
            "too_frequent",
            f"occurrences are {interval_s} s apart; your account's least is "
            f"{tenant.min_interval_s} s",
        )


def _check_job_quota(tenant: Tenant, jobs: int) -> None:
    """Raise JobQuotaExceededError when the tenant, who had `jobs`, may have no further one."""
    limit = tenant.max_jobs
    if jobs < limit - _TURNS_NEAR_LIMIT:
        return
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    # Counted again after the lock, with a snapshot from after the wait.
    _, jobs = _clock_and_jobs(tenant)
    if jobs >= limit:
        raise JobQuotaExceededError(limit)


def _clock_and_jobs(tenant: Tenant) -> tuple[datetime, int]:
    """The database's clock at this moment, and the tenant's jobs, counted up to its limit.

    Both in one round trip. Index: jobs_by_tenant. Not prepared: planned for any limit, it would be
    expected to end early, and walk the table instead of the index.
    """
    with connection.cursor() as sql:
        sql.execute(
            "SELECT clock_timestamp(), (SELECT count(*) FROM (SELECT FROM jobs WHERE tenant_id = %s"
            " AND deleted_at IS NULL LIMIT %s) AS counted)",
            [tenant.pk, tenant.max_jobs],
        )
        now, count = sql.fetchone()
    return now, count


def _write(job: Job, spec: JobSpec, schedule: Schedule | None) -> None:
    """Put `spec` into the row; a schedule that can't be read stays as it is."""
    job.name, job.description = spec.name, spec.description
    job.labels = dict(spec.labels)
    job.task, job.retry = spec.task.to_json(), spec.retry.to_json()
    job.overlap, job.queue_limit = spec.overlap, spec.queue_limit
    job.enabled = spec.enabled
    job.start_at, job.end_at = spec.start_at, spec.end_at
    job.late_after_s, job.auto_pause_after = spec.late_after_s, spec.auto_pause_after
    job.dst, job.misfire = dst_to_json(spec.dst), misfire_to_json(spec.misfire)
    if schedule is not None:
        job.schedule = schedule_to_json(schedule)


def _move_schedule(job: Job, now: datetime, *, begins_to_rest: bool) -> None:
    """Withdraw what was planned and set the cursor to the first occurrence after now."""
    effects = run_effects()
    effects.withdraw_planned(job.job_id, now=now)
    if begins_to_rest:
        effects.stop_waiting(job.job_id, status="skipped", reason="paused")
    set_cursor(job, now)
