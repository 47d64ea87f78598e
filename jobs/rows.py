"""A job's row read as domain values; its rule: what is stored is read as strictly as a request."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs.domain.policies import Ceilings, Retry, Task
from jobs.domain.schedule import (
    Schedule,
    ScheduleError,
    next_occurrences,
    parse_dst,
    schedule_from_json,
)
from jobs.domain.spec import JobSpec
from jobs.models import Job
from tenants.models import Tenant


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
        retry=Retry(**job.retry),
        overlap=job.overlap,
        name=job.name,
        description=job.description,
        labels=job.labels,
        enabled=job.enabled,
    )


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
    """The job's next `count` occurrences later than `instant`; none when it is off or deleted."""
    schedule = schedule_of(job)
    if schedule is None or not job.enabled or job.deleted_at is not None:
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
    }
