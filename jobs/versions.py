"""Writes a changed job as its next version, and its cursor; every change goes through here.

The caller holds the cursor's lock (lock order: cursor → job guard → run).
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from jobs.domain.schedule import tzdata_version
from jobs.domain.timing import pause_from_json
from jobs.errors import StaleVersionError
from jobs.models import Job, JobVersion
from jobs.rows import occurrences_after, version_policies

# The columns that a change of a job may write.
_CHANGEABLE = (
    "name",
    "description",
    "labels",
    "schedule",
    "start_at",
    "end_at",
    "dst",
    "misfire",
    "overlap",
    "queue_limit",
    "task",
    "retry",
    "late_after_s",
    "auto_pause_after",
    "enabled",
    "pause",
    "deleted_at",
)


def database_clock() -> datetime:
    """The database's clock at this moment: later than any lock waited for before.

    Not `now()`, the beginning of the transaction: of two edits that wait for one another the
    later would then carry the earlier time, and withdraw runs that the first had let go.
    """
    with connection.cursor() as sql:
        sql.execute("SELECT clock_timestamp()")
        (now,) = sql.fetchone()
    assert isinstance(now, datetime)
    return now


def save_changed(job: Job, now: datetime) -> None:
    """Write the changed row as the next version.

    The version stands in the UPDATE's guard, behind the cursor's lock: no row means that somebody
    wrote the job without that lock, and then neither change may win unseen.
    """
    values = {name: getattr(job, name) for name in _CHANGEABLE}
    rows = Job.objects.filter(job_id=job.job_id, version=job.version, deleted_at=None)
    if not rows.update(**values, version=job.version + 1, updated_at=now):
        raise StaleVersionError(job.version)
    job.version, job.updated_at = job.version + 1, now


def add_version(
    job: Job,
    effective_from: datetime,
    changed_by: str,
    cause: str = "",
    *,
    last_wall_time: str = "",
) -> None:
    """Record what the job says from `effective_from` on.

    `last_wall_time`: the version goes on where the one before it stood on the wall, as after new
    zone data; its history can't be verified without.
    """
    version = version_of(job, effective_from, changed_by, cause)
    if last_wall_time:
        version.policies["last_wall_time"] = last_wall_time
    version.save(force_insert=True)


def version_of(job: Job, effective_from: datetime, changed_by: str, cause: str = "") -> JobVersion:
    """What the job says from `effective_from` on, as a row that isn't stored yet."""
    return JobVersion(
        job=job,
        version=job.version,
        schedule=job.schedule,
        policies=version_policies(job),
        task=job.task,
        enabled=job.enabled,
        deleted=job.deleted_at is not None,
        tzdata=tzdata_version(),
        effective_from=effective_from,
        changed_by=changed_by,
        cause=cause[:200],
    )


def set_cursor(job: Job, now: datetime) -> None:
    """Point the locked cursor at the first occurrence after now, or at none.

    A pause with an end leaves the cursor at the first occurrence from that end on: planned ahead
    like any other, it starts on its second, however late the end itself is noticed.
    """
    cursor = job.schedulecursor
    pause = pause_from_json(job.pause) if job.enabled and job.deleted_at is None else None
    cursor.next_run_at = first_after(job, now)
    cursor.paused_until = None if pause is None else pause.until
    # An edit begins a new series: the wall time of the old one must not hold it back.
    cursor.last_wall_time = ""
    cursor.tzdata = tzdata_version()
    cursor.save(update_fields=["next_run_at", "paused_until", "last_wall_time", "tzdata"])


def first_after(job: Job, instant: datetime) -> datetime | None:
    """The job's first occurrence later than `instant`, when it is not off, deleted or paused."""
    following = occurrences_after(job, instant, 1)
    return following[0] if following else None
