"""A job's row read as domain values; its rule: what is stored is read as strictly as a request."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from jobs.domain.misfire import Misfire
from jobs.domain.policies import Ceilings, Retry, Task
from jobs.domain.schedule import (
    DEFAULT_DST,
    Schedule,
    ScheduleError,
    next_occurrences,
    parse_dst,
    schedule_from_json,
)
from jobs.domain.spec import JobSpec
from jobs.domain.timing import misfire_from_json, pause_from_json
from jobs.models import Job
from tenants.models import Tenant

Value = TypeVar("Value")

_RESOLUTION: Final = timedelta(microseconds=1)


def ceilings_of(tenant: Tenant) -> Ceilings:
    """What the tenant's jobs may ask for at most."""
    return Ceilings(
        timeout_s=tenant.max_timeout_s,
        cpu=float(tenant.max_cpu),
        memory_mb=tenant.max_memory_mb,
        image_prefixes=tuple(tenant.image_allow_list),
    )


def spec_of(job: Job) -> JobSpec:
    """What the customer said about the job; the schedule in the API's form."""
    task, resources = job.task, job.task.get("resources", {})
    return JobSpec(
        schedule=shown_schedule(job),
        task=Task(
            image=task["image"],
            timeout_s=task["timeout_s"],
            args=tuple(task.get("args", ())),
            env=task.get("env", {}),
            **resources,
        ),
        retry=Retry.from_json(job.retry),
        overlap=job.overlap,
        queue_limit=job.queue_limit,
        name=job.name,
        description=job.description,
        labels=job.labels,
        enabled=job.enabled,
        start_at=job.start_at,
        end_at=job.end_at,
        dst=_readable(parse_dst, job.dst, DEFAULT_DST),
        misfire=_readable(misfire_from_json, job.misfire, Misfire()),
        pause=pause_from_json(job.pause),
        late_after_s=job.late_after_s,
        auto_pause_after=job.auto_pause_after,
    )


def _readable(read: Callable[[Any], Value], stored: Any, default: Value) -> Value:
    """What is stored, or the default where another path wrote what this product refuses.

    The planner sets such a job aside; it can still be read, and any change of it mends it.
    """
    try:
        return read(stored)
    except (TypeError, ValueError):
        return default


def shown_schedule(job: Job) -> dict[str, Any]:
    """The schedule as the customer wrote it; the anchor of an interval is ours."""
    return {name: value for name, value in job.schedule.items() if name != "anchor"}


def schedule_of(job: Job) -> Schedule | None:
    """The job's schedule; None when another path wrote one that this product refuses.

    Such a job has no next time and can still be read, mended and deleted.
    """
    try:
        return schedule_from_json(job.schedule)
    except ScheduleError:
        return None


def occurrences_after(job: Job, instant: datetime, count: int) -> list[datetime]:
    """The job's next `count` occurrences later than `instant` that aren't held back.

    None when it is off, deleted, or paused without an end.
    """
    if not job.enabled or job.deleted_at is not None:
        return []
    pause = pause_from_json(job.pause)
    if pause is not None and pause.until is None:
        return []
    if pause is not None and pause.until is not None:
        instant = max(instant, pause.until - _RESOLUTION)  # the occurrence at the end runs again
    return _following(job, instant, count)


def next_of(job: Job, instant: datetime) -> datetime | None:
    """The first occurrence of the job's schedule later than `instant`, on or off."""
    following = _following(job, instant, 1)
    return following[0] if following else None


def _following(job: Job, instant: datetime, count: int) -> list[datetime]:
    schedule = schedule_of(job)
    if schedule is None:
        return []
    return next_occurrences(
        schedule,
        instant,
        count,
        dst=parse_dst(job.dst),
        start_at=job.start_at,
        end_at=job.end_at,
    )


def version_policies(job: Job) -> dict[str, Any]:
    """What a job version keeps besides schedule and task."""
    return {
        "start_at": job.start_at and job.start_at.isoformat(),
        "end_at": job.end_at and job.end_at.isoformat(),
        "dst": job.dst,
        "misfire": job.misfire,
        "overlap": job.overlap,
        "queue_limit": job.queue_limit,
        "flexible_window_s": job.flexible_window_s,
        "pause": job.pause,
        "retry": job.retry,
        "late_after_s": job.late_after_s,
        "auto_pause_after": job.auto_pause_after,
    }
