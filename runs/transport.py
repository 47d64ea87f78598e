"""The one seam to Celery: sends a message for each placed run, and forgets it.

A message says only "look at this run". Whether it arrives, twice or never, decides nothing: the
worker asks the row, and looks by itself each second.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from celery import current_app
from kombu import Connection, Queue
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as RedisChannel
from redis.exceptions import RedisError

from runs.messages import RUN_TASK, Message, redis_envelope
from scheduler_project.lib.events import emit

__all__ = ["RUN_TASK", "Message", "forget_queues", "send", "send_deliveries"]

DELIVER_TASK = "notifications.deliver"
NOTIFICATIONS_QUEUE = "notifications"

# Three times as long as a broker that hangs may take for its answer.
QUIET_AFTER_FAILURE_S = 15.0
# Messages in one command: a longer one would hold Redis up for others.
_PIPELINE = 1_000

_silent_until = 0.0


def send(messages: Sequence[Message]) -> int:
    """Send the messages over one connection; return how many the broker took.

    A broker that is away loses nothing: the rows are placed, and their workers find them. It is
    then left alone for a while, because one that hangs costs a time-out at each attempt, and the
    dispatcher must place runs meanwhile.
    """
    if not messages or time.monotonic() < _silent_until:
        return 0
    sent = 0
    try:
        with _broker_connection() as connection:
            if isinstance(connection.default_channel, RedisChannel):
                for batch in _batches(messages):
                    _push(connection.default_channel, batch)
                    sent += len(batch)
            else:  # another broker by URL: Celery knows how
                for message in messages:
                    _send_task(connection, message)
                    sent += 1
    except (OperationalError, RedisError, OSError) as error:
        _note_broker_away(len(messages) - sent, error)
    return sent


@contextmanager
def _broker_connection() -> Iterator[Connection]:
    with current_app.connection_or_acquire() as connection:
        yield connection


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), _PIPELINE):
        yield messages[start : start + _PIPELINE]


def _push(channel: RedisChannel, batch: Sequence[Message]) -> None:
    """One command for each queue, all in one round trip; straight to the queue, past exchanges.

    A binding lives in Redis as well: with one on the way, a Redis that was emptied would drop every
    message until the worker declared its queue again.
    """
    by_queue: dict[str, list[bytes]] = defaultdict(list)
    for message in batch:
        by_queue[message.queue].append(redis_envelope(message))
    with channel.conn_or_acquire() as client:
        pipeline = client.pipeline(transaction=False)
        for queue, envelopes in by_queue.items():
            pipeline.lpush(queue, *envelopes)
        pipeline.execute()


def _send_task(connection: Connection, message: Message) -> None:
    current_app.send_task(
        RUN_TASK,
        args=[str(message.run_id)],
        task_id=message.task_id,
        # The exchange that a worker binds its queue to, see workers/lifecycle.py.
        exchange=current_app.amqp.default_exchange.name,
        routing_key=message.queue,
        eta=message.eta,
        connection=connection,
        ignore_result=True,
    )


def forget_queues(queues: Sequence[str]) -> int:
    """Delete the queues of sessions that are over, with their bindings; return how many.

    What is still in them are hints about runs that have other owners by now. A broker that is
    away keeps them: an empty list costs nothing, and nobody reads it.
    """
    forgotten = 0
    try:
        with current_app.connection_for_write() as connection:
            for name in queues:
                queue = Queue(
                    name,
                    current_app.amqp.default_exchange,
                    routing_key=name,
                    channel=connection.default_channel,
                )
                # On Redis kombu deletes only what this very process has declared: without this, the
                # queues of a worker that died would stay, with their bindings.
                queue.declare()
                queue.delete()
                forgotten += 1
    except (OperationalError, OSError) as error:
        emit(
            "transport.queues_left",
            "Queues of ended sessions could not be deleted.",
            left=len(queues) - forgotten,
            error=f"{type(error).__name__}: {error}",
        )
    return forgotten


def send_deliveries(claims: Sequence[tuple[UUID, UUID]]) -> int:
    """Send a task for each claimed delivery (its id, its claim); return how many the broker took.

    They are the first ones of `claims`: what is not among them was not sent.
    """
    if not claims or time.monotonic() < _silent_until:
        return 0
    sent = 0
    try:
        with _broker_connection() as connection:
            for delivery_id, claim in claims:
                current_app.send_task(
                    DELIVER_TASK,
                    args=[str(delivery_id), str(claim)],
                    queue=NOTIFICATIONS_QUEUE,
                    connection=connection,
                )
                sent += 1
    except (OperationalError, RedisError, OSError) as error:
        _note_broker_away(len(claims) - sent, error)
    return sent


def _note_broker_away(unsent: int, error: Exception) -> None:
    global _silent_until
    _silent_until = time.monotonic() + QUIET_AFTER_FAILURE_S
    emit(
        "transport.broker_away",
        "The broker did not take messages; what they are about is in the rows.",
        unsent=unsent,
        error=f"{type(error).__name__}: {error}",
    )
