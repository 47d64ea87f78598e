"""What a tenant uses of its counted quotas, for `/v1/me` and `/v1/usage`; one count per limit."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db.models.functions import Now

from jobs.models import Job
from runs.domain.state import RunStatus
from runs.models import Run


def jobs_kept(tenant_id: UUID) -> int:
    """Return how many jobs the tenant has that are not deleted."""
    return Job.objects.filter(tenant_id=tenant_id, deleted_at=None).count()


def runs_held(tenant_id: UUID) -> int:
    """Return how many of the tenant's runs hold a slot now."""
    held = Run.objects.filter(tenant_id=tenant_id, finished_at=None, lease_owner__isnull=False)
    return held.filter(status__in=[RunStatus.LEASED, RunStatus.RUNNING]).count()


def runs_of_the_hour(tenant_id: UUID) -> int:
    """Return how many of the tenant's runs were scheduled in the last hour."""
    now = Now()
    return Run.objects.filter(
        tenant_id=tenant_id,
        scheduled_for__gt=now - timedelta(hours=1),
        scheduled_for__lte=now,
    ).count()


COUNTERS: Final[Mapping[str, Callable[[UUID], int]]] = {
    "max_jobs": jobs_kept,
    "max_concurrent_runs": runs_held,
    "max_runs_per_hour": runs_of_the_hour,
}
