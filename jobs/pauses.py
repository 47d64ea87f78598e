"""Ends the pauses whose time has come, by the database's clock; a duty of the scheduler.

Nothing punctual hangs on it: the occurrences from a pause's end on are planned by the cursor, as
always. This only counts what the pause held back, and says in the job that the pause is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from jobs.domain.timing import CatchUp
from jobs.models import Job, ScheduleCursor
from jobs.run_effects import run_effects
from jobs.versions import add_version, database_clock, save_changed

_BATCH = 200


def end_pauses_once() -> dict[str, int]:
    """End up to one batch of pauses that are over; returns how many were `resumed`."""
    over = ScheduleCursor.objects.filter(paused_until__lte=Now()).order_by("paused_until")
    job_ids = list(over.values_list("job_id", flat=True)[:_BATCH])
    return {"resumed": sum(_end_pause(job_id) for job_id in job_ids)}


def is_behind(counts: Mapping[str, int]) -> bool:
    """Return whether the batch was full, so that more pauses are likely to be over."""
    return counts["resumed"] >= _BATCH


def _end_pause(job_id: UUID) -> bool:
    """End the job's pause in a transaction of its own; False when an edit was faster."""
    with transaction.atomic():
        cursor = (
            ScheduleCursor.objects.select_for_update(skip_locked=True)
            .filter(job_id=job_id, paused_until__lte=Now())
            .first()
        )
        if cursor is None:
            return False
        job = Job.objects.get(job_id=job_id)
        now = database_clock()
        run_effects().settle(job_id, now=now, catch_up=CatchUp.NONE)
        job.pause = None
        save_changed(job, now)
        add_version(job, now, "scheduler", "the pause ended")
        # Only this column: the planner may have moved the cursor on, and does so at this moment
        # in `settle`.
        ScheduleCursor.objects.filter(job_id=job_id).update(paused_until=None)
    return True
