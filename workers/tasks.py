"""The Celery tasks: each takes an id, makes one call and returns."""

from uuid import UUID

from celery import shared_task

from runs import webhook_delivery
from runs.transport import DELIVER_TASK, RUN_TASK
from workers.lifecycle import current_worker


@shared_task(name=RUN_TASK, ignore_result=True)
def run(run_id: str) -> str:
    """Look at a run that was placed on this worker, and run it if its row says so."""
    return current_worker().execute(UUID(run_id))


@shared_task(name=DELIVER_TASK, ignore_result=False)
def deliver(delivery_id: str, claim: str) -> str:
    """Make one attempt to deliver a message, if its row says so; the result is shown in admin."""
    return webhook_delivery.deliver(UUID(delivery_id), UUID(claim))
