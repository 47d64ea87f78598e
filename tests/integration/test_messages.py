"""Messages built by hand are, field by field, those that Celery sends."""

import base64
import json
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import current_app
from kombu import Queue

from runs import transport
from runs.messages import Message, redis_envelope

RUN_ID = UUID("01a22892-fb78-7edd-976a-0d6cb54d75d6")
# Who sent it and when it was sent are each message's own.
OWN = {"delivery_tag", "reply_to", "origin"}


def comparable(envelope: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope)
    message["body"] = json.loads(base64.b64decode(message["body"]))
    for part in ("headers", "properties"):
        message[part] = {name: v for name, v in message[part].items() if name not in OWN}
    return message


@pytest.mark.parametrize("eta_epoch_s", [None, 1_795_976_444.5, 1_795_976_444.0])
def test_a_message_built_by_hand_is_what_celery_sends(
    redis_server: "redis.Redis", eta_epoch_s: float | None
) -> None:
    message = Message(RUN_ID, 3, "runs.by-celery", eta_epoch_s)
    with current_app.connection_for_write() as connection:
        exchange = current_app.amqp.default_exchange
        Queue(message.queue, exchange, routing_key=message.queue)(connection).declare()
        transport._send_task(connection, message)
    sent = comparable(redis_server.lpop("runs.by-celery"))  # type: ignore[arg-type]

    # Ours goes straight to the queue, past the exchange.
    assert sent["properties"]["delivery_info"].pop("exchange") == exchange.name
    ours = comparable(redis_envelope(message))
    assert ours["properties"]["delivery_info"].pop("exchange") == ""
    assert ours == sent


def test_a_burst_goes_to_each_workers_own_queue_in_order(redis_server: "redis.Redis") -> None:
    messages = [
        Message(UUID(int=n), 1, f"runs.{n % 3}", None if n % 2 else 1e9) for n in range(3_000)
    ]

    assert transport.send(messages) == 3_000

    for queue in range(3):
        found = [json.loads(raw) for raw in redis_server.lrange(f"runs.{queue}", 0, -1)]  # type: ignore[union-attr]
        # A worker takes from the list's end.
        assert [message["headers"]["id"] for message in reversed(found)] == [
            message.task_id for message in messages if message.queue == f"runs.{queue}"
        ]
