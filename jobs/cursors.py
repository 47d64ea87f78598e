"""Mends cursors that another path than the services has left wrong; each behind the cursor's lock.

The services never need it: every change of a job sets its cursor in its own transaction.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from jobs.domain.schedule import tzdata_version
from jobs.domain.sharding import shard_of
from jobs.models import Job, ScheduleCursor
from jobs.versions import first_after

# Jobs of which nothing is to be planned.
IS_OFF = Q(enabled=False) | Q(deleted_at__isnull=False)


def cursor_stop(job_id: UUID) -> bool:
    """Let the cursor of a job that is off stand nowhere; False when it is on (again)."""
    with transaction.atomic():
        cursor = ScheduleCursor.objects.select_for_update().filter(job_id=job_id).first()
        if cursor is None or not Job.objects.filter(IS_OFF, job_id=job_id).exists():
            return False
        ScheduleCursor.objects.filter(job_id=job_id).update(next_run_at=None, paused_until=None)
    return True


def cursor_make(job_id: UUID, accounted_until: datetime) -> bool:
    """Give a job without a cursor one that stands after `accounted_until`; False when it has one.

    What fell due since then is late work: the planner runs or counts it, as after an outage.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update().get(job_id=job_id)
        _, is_made = ScheduleCursor.objects.get_or_create(
            job_id=job_id,
            defaults={
                "shard": shard_of(job_id, settings.SHARDS),
                "next_run_at": first_after(job, accounted_until),
                "tzdata": tzdata_version(),
            },
        )
    return is_made
