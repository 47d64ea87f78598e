"""Owes tenants word of what happened: rows of the outbox, written in the causing transaction.

Its rule: whoever ends runs calls `note_run_ends` once for the batch, inside its transaction and
after its own writes. A crash before the commit leaves neither the end nor the word of it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from jobs.domain.schedule import ScheduleError
from jobs.domain.spec import JobChanges
from jobs.domain.timing import Pause
from jobs.errors import InvalidJobError, JobNotFoundError, StaleVersionError
from jobs.services import job_lock, job_update
from runs import store
from runs.domain.auto_pause import MOST_FAILURES, should_pause
from runs.domain.delivery import TRY_FOR
from runs.domain.notification import NotificationEvent
from scheduler_project.lib.events import emit
from scheduler_project.lib.instants import format_instant
from tenants.models import Tenant

_BATCH = 500
# The least `late_after_s` there is: a start that is later may be one to tell of.
LEAST_LATE_S = 1.0


def note_run_ends(runs: Iterable[Any]) -> int:
    """Owe word of runs (`run_id`, `scheduled_for`) that just ended or started; returns how many.

    Call it with runs in any state: what is owed is decided by their rows.
    """
    ended = list(runs)
    return store.execute_of_runs("note_run_ends", ended) if ended else 0


def note_late_once() -> dict[str, int]:
    """Owe word of runs that wait longer than their job's `late_after_s`; returns how many."""
    return {"late": store.execute("note_late_runs", limit=_BATCH)}


def note_job_event(
    tenant_id: UUID, event: NotificationEvent, job_id: UUID, payload: Mapping[str, Any]
) -> int:
    """Owe word of something about a job."""
    return store.execute(
        "note_job_event",
        tenant_id=tenant_id,
        event=event.value,
        job_id=job_id,
        payload=json.dumps(payload),
    )


def fan_out_once() -> dict[str, int]:
    """Make the deliveries of one batch of messages; returns how many `messages`, `deliveries`."""
    (row,) = store.fetch("fan_out", limit=_BATCH, try_for_s=TRY_FOR.total_seconds())
    return {"messages": row.messages, "fanned_out": row.deliveries}


def auto_pause_once() -> dict[str, int]:
    """Pause the jobs that have failed as often in a row as they allow; returns how many.

    A duty of its own, because a pause locks the job's cursor, which comes before the guards and
    runs that a completion holds (lock order). The note that it works from was written by that
    completion, and is settled in the transaction of the pause.
    """
    paused = 0
    for _ in range(_BATCH):
        with transaction.atomic():
            notes = store.fetch("take_job_failures", limit=1)
            if not notes:
                break
            paused += _try_to_pause(notes[0].tenant_id, notes[0].job_id)
            store.execute("settle_job_failures", ids=[note.id for note in notes])
    return {"paused": paused}


def _try_to_pause(tenant_id: UUID, job_id: UUID) -> bool:
    """As `_pause_if_failing`; a job that can't be paused holds up nobody else's."""
    try:
        with transaction.atomic():
            return _pause_if_failing(tenant_id, job_id)
    except (InvalidJobError, StaleVersionError, ScheduleError) as error:
        emit("job.not_auto_paused", "A job that fails too often could not be paused.",
             job_id=job_id, error=f"{type(error).__name__}: {error}")  # fmt: skip
        return False


def _pause_if_failing(tenant_id: UUID, job_id: UUID) -> bool:
    tenant = Tenant.objects.get(pk=tenant_id)
    try:
        job, now = job_lock(tenant, job_id)
    except JobNotFoundError:  # deleted since
        return False
    limit = job.auto_pause_after
    if limit is None or not job.enabled or job.pause is not None:
        return False
    ends = store.fetch("newest_ends_of_job", job_id=job_id, limit=min(limit, MOST_FAILURES))
    if not should_pause([row.status for row in ends], limit):
        return False
    reason = f"{limit} runs failed in a row"
    changed = job_update(
        tenant,
        job_id,
        JobChanges(pause=Pause(reason=reason)),
        expected_version=None,
        changed_by="auto_pause_after",
    )
    note_job_event(
        tenant_id,
        NotificationEvent.JOB_AUTO_PAUSED,
        job_id,
        {
            "job_id": str(job_id),
            "job_version": changed.version,
            "job_name": job.name,
            "failures": limit,
            "paused_at": format_instant(now),
        },
    )
    emit("job.auto_paused", "A job failed as often in a row as it allows and was paused.",
         job_id=job_id, failures=limit)  # fmt: skip
    return True


def purge_once() -> dict[str, int]:
    """Delete what is older than the retention, a batch at a time; returns how many rows."""
    limits = {"days": settings.RETENTION_DAYS, "limit": 5_000}
    return {
        "deliveries": store.execute("purge_deliveries", **limits),
        "messages": store.execute("purge_outbox", **limits),
        "webhooks": store.execute("purge_webhooks"),
        "task_results": store.execute("purge_task_results", days=3, limit=5_000),
    }
