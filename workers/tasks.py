"""The Celery tasks: each takes an id, makes one call and returns."""

from uuid import UUID

from celery import shared_task

from runs.transport import RUN_TASK
from workers.lifecycle import current_worker


@shared_task(name=RUN_TASK, ignore_result=True)
def run(run_id: str) -> str:
    """Look at a run that was placed on this worker, and run it if its row says so."""
    return current_worker().execute(UUID(run_id))
