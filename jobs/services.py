"""Creates, changes and deletes jobs: the one path for API, admin and commands.

Every change is one transaction in which the database's clock decides, the cursor is locked first
(lock order: cursor → job guard → run), planned runs are withdrawn, the cursor is set anew and a
version row says what the job was from then on (architecture §3).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
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
from jobs.domain.spec import JobChanges, JobSpec, changed_spec, spec_of_new
from jobs.errors import InvalidJobError, JobNotFoundError, JobQuotaExceededError, StaleVersionError
from jobs.models import Job, JobVersion, ScheduleCursor
from jobs.rows import ceilings_of, occurrences_after, schedule_of, spec_of, version_policies
from jobs.run_effects import run_effects
from tenants.models import Tenant

# Creations of a tenant this near to its `max_jobs` take turns: two at once can't pass the limit,
# and nobody else pays for a lock. Larger than the number of requests served at once.
_TURNS_NEAR_LIMIT = 200
# The columns that a change of a job may write.
_CHANGEABLE = (
    "name",
    "description",
    "labels",
    "schedule",
    "overlap",
    "task",
    "retry",
    "enabled",
    "pause",
    "deleted_at",
)


def job_create(tenant: Tenant, said: JobChanges, *, changed_by: str) -> Job:
    """Store a new job with its version 1 and its cursor; return it.

    `said` has a schedule, and a task with image and timeout. Raises InvalidJobError (fields, the
    tenant's ceilings, `at` in the past) and JobQuotaExceededError.
    """
    with transaction.atomic():
        now = _database_clock()
        spec = spec_of_new(said, ceilings_of(tenant))
        job = Job(job_id=uuid4(), tenant=tenant, created_at=now, updated_at=now)
        schedule = _checked(job, spec, before=None, current=None, now=now)
        _check_job_quota(tenant)
        _write(job, spec, schedule)
        job.save(force_insert=True)
        _add_version(job, now, changed_by)
        ScheduleCursor(
            job=job,
            shard=shard_of(job.job_id, settings.SHARDS),
            next_run_at=_first_after(job, now),
            tzdata=tzdata_version(),
        ).save(force_insert=True)
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

    Only a change of the schedule or of `enabled` moves the schedule: anything else leaves cursor
    and planned runs alone. A change to what is so already writes nothing. Raises
    JobNotFoundError, StaleVersionError and InvalidJobError.
    """
    with transaction.atomic():
        job, now = _lock(tenant, job_id, expected_version)
        before, current = spec_of(job), schedule_of(job)
        spec = changed_spec(before, changes)
        schedule = _checked(job, spec, before=before, current=current, now=now)
        is_moved = schedule != current or spec.enabled != before.enabled
        if not is_moved and spec == before:
            return job
        _write(job, spec, schedule)
        _save_changed(job, now)
        _add_version(job, now, changed_by)
        if is_moved:
            _move_schedule(job, now)
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
        job.deleted_at = now
        _save_changed(job, now)
        _add_version(job, now, changed_by)
        _set_cursor(job, now)
        effects = run_effects()
        effects.withdraw_planned(job_id)
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
    return job, _database_clock()


def _read(tenant: Tenant, job_id: UUID) -> Job:
    # A statement after the lock's: its snapshot is from after the wait, and sees what the change
    # before us wrote.
    job = Job.objects.filter(job_id=job_id, tenant=tenant, deleted_at=None).first()
    if job is None:
        raise JobNotFoundError
    job.tenant = tenant
    return job


def _database_clock() -> datetime:
    """The database's clock at this moment.

    Not now(), the transaction's beginning: a change that waited for another's lock would be in
    effect before the one it waited for, and plan from a time gone by.
    """
    with connection.cursor() as sql:
        sql.execute("SELECT clock_timestamp()")
        (now,) = sql.fetchone()
    assert isinstance(now, datetime)
    return now


def _checked(
    job: Job, spec: JobSpec, *, before: JobSpec | None, current: Schedule | None, now: datetime
) -> Schedule | None:
    """The schedule of `spec`; raises InvalidJobError with all that is wrong at once.

    What a change doesn't touch isn't judged again: a tenant whose ceilings were lowered can still
    switch its job off.
    """
    problems: list[FieldProblem] = []
    schedule = current
    if before is None or spec.schedule != before.schedule or (spec.enabled and current is None):
        try:
            schedule = _parsed_schedule(job, spec.schedule, current, now)
        except ScheduleError as error:
            problems.append(_problem_of(error))
    if before is None or spec.task != before.task:
        problems += task_problems(spec.task, ceilings_of(job.tenant))
    if before is None or spec.retry != before.retry:
        problems += retry_problems(spec.retry)
    if before is None or spec.overlap != before.overlap:
        problems += overlap_problems(spec.overlap)
    if before is None or spec.labels != before.labels:
        problems += label_problems(spec.labels)
    if schedule is not None and schedule != current:
        problems += _interval_problems(job.tenant, schedule)
    if problems:
        raise InvalidJobError(problems)
    return schedule


def _parsed_schedule(job: Job, said: object, current: Schedule | None, now: datetime) -> Schedule:
    schedule = parse_schedule(said, anchor=job.start_at or job.created_at)
    # Sent again unchanged (a whole job written back), a past `at` is no new wish to run.
    if isinstance(schedule, AtSchedule) and schedule != current:
        check_at_in_future(schedule.at, now)
    return schedule


def _problem_of(error: ScheduleError) -> FieldProblem:
    parent, _, member = error.field.partition(".")
    path = (parent, member) if member else (parent,)
    return FieldProblem(path, error.code, error.message, error.hint)


def _interval_problems(tenant: Tenant, schedule: Schedule) -> Iterator[FieldProblem]:
    interval_s = nominal_interval_s(schedule)
    if interval_s is not None and interval_s < tenant.min_interval_s:
        yield FieldProblem(
            ("schedule",),
            "too_frequent",
            f"occurrences are {interval_s} s apart; your account's least is "
            f"{tenant.min_interval_s} s",
        )


def _check_job_quota(tenant: Tenant) -> None:
    """Raise JobQuotaExceededError when the tenant may have no further job."""
    limit = tenant.max_jobs
    if _count_jobs(tenant, limit) < limit - _TURNS_NEAR_LIMIT:
        return
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    # Counted again after the lock, with a snapshot from after the wait.
    if _count_jobs(tenant, limit) >= limit:
        raise JobQuotaExceededError(limit)


def _count_jobs(tenant: Tenant, limit: int) -> int:
    """The tenant's jobs, counted up to `limit`. Index: jobs_by_tenant."""
    with connection.cursor() as sql:
        sql.execute(
            "SELECT count(*) FROM (SELECT FROM jobs WHERE tenant_id = %s AND deleted_at IS NULL"
            " LIMIT %s) AS counted",
            [tenant.pk, limit],
        )
        (count,) = sql.fetchone()
    return int(count)


def _write(job: Job, spec: JobSpec, schedule: Schedule | None) -> None:
    """Put `spec` into the row; a schedule that can't be read stays as it is."""
    job.name, job.description = spec.name, spec.description
    job.labels = dict(spec.labels)
    job.task, job.retry = spec.task.to_json(), spec.retry.to_json()
    job.overlap, job.enabled = spec.overlap, spec.enabled
    if schedule is not None:
        job.schedule = schedule_to_json(schedule)
    if spec.enabled:
        job.pause = None


def _save_changed(job: Job, now: datetime) -> None:
    """Write the changed row as the next version.

    The version stands in the UPDATE's guard, behind the cursor's lock: no row means that somebody
    wrote the job without that lock, and then neither change may win unseen.
    """
    values = {name: getattr(job, name) for name in _CHANGEABLE}
    rows = Job.objects.filter(job_id=job.job_id, version=job.version, deleted_at=None)
    if not rows.update(**values, version=job.version + 1, updated_at=now):
        raise StaleVersionError(job.version)
    job.version, job.updated_at = job.version + 1, now


def _add_version(job: Job, now: datetime, changed_by: str) -> None:
    JobVersion.objects.create(
        job=job,
        version=job.version,
        schedule=job.schedule,
        policies=version_policies(job),
        task=job.task,
        enabled=job.enabled,
        deleted=job.deleted_at is not None,
        tzdata=tzdata_version(),
        effective_from=now,
        changed_by=changed_by,
    )


def _move_schedule(job: Job, now: datetime) -> None:
    """Withdraw what was planned and set the cursor to the first occurrence after now."""
    effects = run_effects()
    effects.withdraw_planned(job.job_id)
    if not job.enabled:
        effects.stop_waiting(job.job_id, status="skipped", reason="paused")
    _set_cursor(job, now)


def _set_cursor(job: Job, now: datetime) -> None:
    """Point the locked cursor at the first occurrence after now, or at none."""
    cursor = job.schedulecursor
    cursor.next_run_at = _first_after(job, now)
    # An edit begins a new series: the wall time of the old one must not hold it back.
    cursor.last_wall_time = ""
    cursor.tzdata = tzdata_version()
    cursor.save(update_fields=["next_run_at", "last_wall_time", "tzdata"])


def _first_after(job: Job, instant: datetime) -> datetime | None:
    following = occurrences_after(job, instant, 1)
    return following[0] if following else None
