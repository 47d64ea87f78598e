"""Reads jobs for API and admin: one, or a list, each with the next time that a customer expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now

from jobs.domain.preview import Occurrence, describe_occurrence
from jobs.domain.spec import JobSpec
from jobs.domain.timing import CatchUp, dst_to_json, misfire_to_json
from jobs.models import Job
from jobs.rows import occurrences_after, schedule_of, shown_schedule, spec_of
from jobs.run_effects import run_effects
from scheduler_project.lib.instants import format_instant
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job with what its row says and the next occurrence that hasn't come yet.

    `next_run_at` is the earlier of the cursor's and the planned ones': the cursor has already
    moved past what is planned.
    """

    job: Job
    spec: JobSpec
    schedule: dict[str, Any]
    next_run_at: datetime | None

    def next_runs(self, count: int) -> list[datetime]:
        """The next `count` occurrences, `next_run_at` first."""
        if self.next_run_at is None:
            return []
        return [self.next_run_at, *occurrences_after(self.job, self.next_run_at, count - 1)]

    def next_occurrences(self, count: int) -> list[Occurrence]:
        """The same, with what the wall shows then and the notes of the preview."""
        schedule = schedule_of(self.job)
        if schedule is None:
            return []
        return [describe_occurrence(schedule, instant) for instant in self.next_runs(count)]

    @property
    def dst(self) -> dict[str, str]:
        """What the job does when the clock changes, defaults included."""
        return dst_to_json(self.spec.dst)

    @property
    def misfire(self) -> dict[str, Any]:
        """What becomes of late occurrences, defaults included."""
        return misfire_to_json(self.spec.misfire)

    @property
    def pause(self) -> dict[str, Any] | None:
        """Why and until when the job rests, or why it was set aside; None when it does neither."""
        stored = self.job.pause
        if not stored:
            return None
        return {
            "until": _shown_instant(stored.get("until")),
            "reason": stored.get("reason", ""),
            "since": _shown_instant(stored.get("since")),
            "by": stored.get("by", ""),
        }

    @property
    def resume(self) -> dict[str, str]:
        """What runs of the occurrences that the pause holds back."""
        pause = self.spec.pause
        return {"catch_up": (pause.catch_up if pause else CatchUp.NONE).value}

    def first_run_at(self) -> datetime | None:
        """What `next_run_at` was when this version of the job was made."""
        following = occurrences_after(self.job, self.job.updated_at, 1)
        return following[0] if following else None


def jobs_of(
    tenant: Tenant,
    *,
    enabled: bool | None = None,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> QuerySet[Job]:
    """The tenant's jobs that aren't deleted and match all that is given (names exactly)."""
    jobs = _with_cursor(Job.objects.filter(tenant=tenant, deleted_at=None))
    if enabled is not None:
        jobs = jobs.filter(enabled=enabled)
    if name is not None:
        jobs = jobs.filter(name=name)
    if labels:
        jobs = jobs.filter(labels__contains=dict(labels))
    return jobs


def job_find(tenant: Tenant, job_id: UUID) -> Job | None:
    """The tenant's job of this id, or None; a deleted one isn't found."""
    return jobs_of(tenant).filter(job_id=job_id).first()


def job_existed(tenant: Tenant, job_id: UUID) -> bool:
    """Whether the tenant has or had a job of this id: the history of a deleted one is readable."""
    return Job.objects.filter(job_id=job_id, tenant=tenant).exists()


def shown_jobs(jobs: Sequence[Job]) -> list[ShownJob]:
    """The jobs as customers see them; one query more when some are planned ahead."""
    ahead = [job.job_id for job in jobs if _may_be_planned_ahead(job)]
    planned = run_effects().next_planned(ahead) if ahead else {}
    return [_shown(job, planned.get(job.job_id)) for job in jobs]


def _with_cursor(jobs: QuerySet[Job]) -> QuerySet[Job]:
    is_ahead = Q(schedulecursor__planned_through__gt=Now())
    return jobs.select_related("schedulecursor").annotate(
        is_planned_ahead=ExpressionWrapper(is_ahead, output_field=BooleanField())
    )


def _may_be_planned_ahead(job: Job) -> bool:
    """False for a job that was never planned, and for one read by `jobs_of` that isn't now."""
    never_planned = job.schedulecursor.planned_through is None
    return not never_planned and getattr(job, "is_planned_ahead", True)


def _shown(job: Job, planned: datetime | None) -> ShownJob:
    instants = [instant for instant in (planned, job.schedulecursor.next_run_at) if instant]
    return ShownJob(
        job=job,
        spec=spec_of(job),
        schedule=shown_schedule(job),
        next_run_at=min(instants, default=None),
    )


def _shown_instant(stored: str | None) -> str | None:
    return None if stored is None else format_instant(datetime.fromisoformat(stored))
