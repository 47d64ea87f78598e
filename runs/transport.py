"""The one seam to Celery: sends a message for each placed run, and forgets it.

A message says only "look at this run". Whether it arrives, twice or never, decides nothing: the
worker asks the row, and looks by itself each second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from celery import current_app
from kombu.exceptions import OperationalError

from scheduler_project.lib.events import emit

RUN_TASK = "workers.run"


@dataclass(frozen=True)
class Message:
    """A hint for a worker's own queue. `eta_epoch_s` None: at once."""

    run_id: UUID
    attempt: int
    queue: str
    eta_epoch_s: float | None


def send(messages: Sequence[Message]) -> int:
    """Send the messages over one connection; return how many the broker took.

    A broker that is away loses nothing: the rows are placed, and their workers find them.
    """
    if not messages:
        return 0
    sent = 0
    try:
        with current_app.producer_or_acquire() as producer:
            for message in messages:
                current_app.send_task(
                    RUN_TASK,
                    args=[str(message.run_id)],
                    task_id=f"{message.run_id}:{message.attempt}",
                    # The default exchange: no binding is left behind when the session ends.
                    exchange="",
                    routing_key=message.queue,
                    eta=_instant(message.eta_epoch_s),
                    producer=producer,
                    ignore_result=True,
                )
                sent += 1
    except (OperationalError, OSError) as error:
        emit(
            "transport.broker_away",
            "The broker did not take messages; workers will find their runs by themselves.",
            unsent=len(messages) - sent,
            error=f"{type(error).__name__}: {error}",
        )
    return sent


def _instant(epoch_s: float | None) -> datetime | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC)
