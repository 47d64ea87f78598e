"""The one seam to Celery: sends a message for each placed run, and forgets it.

A message says only "look at this run". Whether it arrives, twice or never, decides nothing: the
worker asks the row, and looks by itself each second.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from celery import current_app
from kombu import Queue
from kombu.exceptions import OperationalError

from scheduler_project.lib.events import emit

RUN_TASK = "workers.run"
# Three times as long as a broker that hangs may take for its answer.
QUIET_AFTER_FAILURE_S = 15.0

_silent_until = 0.0


@dataclass(frozen=True)
class Message:
    """A hint for a worker's own queue. `eta_epoch_s` None: at once."""

    run_id: UUID
    attempt: int
    queue: str
    eta_epoch_s: float | None


def send(messages: Sequence[Message]) -> int:
    """Send the messages over one connection; return how many the broker took.

    A broker that is away loses nothing: the rows are placed, and their workers find them. It is
    then left alone for a while, because one that hangs costs a time-out at each attempt, and the
    dispatcher must place runs meanwhile.
    """
    global _silent_until
    if not messages or time.monotonic() < _silent_until:
        return 0
    sent = 0
    try:
        with current_app.producer_or_acquire() as producer:
            for message in messages:
                current_app.send_task(
                    RUN_TASK,
                    args=[str(message.run_id)],
                    task_id=f"{message.run_id}:{message.attempt}",
                    # Straight to the queue: no look-up of bindings on the way.
                    exchange="",
                    routing_key=message.queue,
                    eta=_instant(message.eta_epoch_s),
                    producer=producer,
                    ignore_result=True,
                )
                sent += 1
    except (OperationalError, OSError) as error:
        _silent_until = time.monotonic() + QUIET_AFTER_FAILURE_S
        emit(
            "transport.broker_away",
            "The broker did not take messages; workers will find their runs by themselves.",
            unsent=len(messages) - sent,
            error=f"{type(error).__name__}: {error}",
        )
    return sent


def forget_queues(queues: Sequence[str]) -> int:
    """Delete the queues of sessions that are over, with their bindings; return how many.

    What is still in them are hints about runs that have other owners by now. A broker that is
    away keeps them: an empty list costs nothing, and nobody reads it.
    """
    forgotten = 0
    try:
        with current_app.connection_for_write() as connection:
            for queue in queues:
                Queue(queue, channel=connection.default_channel).delete()
                forgotten += 1
    except (OperationalError, OSError) as error:
        emit(
            "transport.queues_left",
            "Queues of ended sessions could not be deleted.",
            left=len(queues) - forgotten,
            error=f"{type(error).__name__}: {error}",
        )
    return forgotten


def _instant(epoch_s: float | None) -> datetime | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC)
