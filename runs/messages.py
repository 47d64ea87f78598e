"""Celery messages built by hand, so that a burst of them goes to Redis in a few round trips.

Celery's own `send_task` is one round trip and half a millisecond of work each. The layout is
protocol 2 in kombu's Redis envelope; a test compares every field with what Celery itself sends.
"""

import base64
import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

RUN_TASK = "workers.run"

_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"
# Callbacks and the like: a run has none.
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_PERSISTENT = 2


@dataclass(frozen=True)
class Message:
    """A hint for a worker's own queue. `eta_epoch_s` None: at once."""

    run_id: UUID
    attempt: int
    queue: str
    eta_epoch_s: float | None

    @property
    def task_id(self) -> str:
        """The task's id, by which Flower shows the run: `run_id:attempt`."""
        return f"{self.run_id}:{self.attempt}"

    @property
    def eta(self) -> datetime | None:
        """When the worker should look at the run; a hint, as its clock is not the database's."""
        return None if self.eta_epoch_s is None else datetime.fromtimestamp(self.eta_epoch_s, UTC)


def redis_envelope(message: Message) -> bytes:
    """Return what kombu's Redis transport keeps in the queue's list for this message."""
    args = [str(message.run_id)]
    body = json.dumps([args, {}, _EMBED]).encode()
    task_id, eta = message.task_id, message.eta
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": RUN_TASK,
                "id": task_id,
                "shadow": None,
                "eta": None if eta is None else eta.isoformat(),
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": task_id,
                "parent_id": None,
                "argsrepr": repr(args),
                "kwargsrepr": "{}",
                "origin": _ORIGIN,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": task_id,
                "delivery_mode": _PERSISTENT,
                "delivery_info": {"exchange": "", "routing_key": message.queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid4()),
            },
        }
    ).encode()
