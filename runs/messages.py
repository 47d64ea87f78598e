"""Celery messages built by hand, so that a burst of them goes to Redis in a few round trips.

Celery's own `send_task` is one round trip and half a millisecond of work each. The layout is
protocol 2 in kombu's Redis envelope; a test compares every field with what Celery itself sends.
"""

import base64
import json
import os
import re
import socket
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID, uuid4

RUN_TASK = "workers.run"

_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"
# Callbacks and the like: a run has none.
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_PERSISTENT = 2


class Message(NamedTuple):
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
    run_id, task_id, eta = str(message.run_id), message.task_id, message.eta
    body = base64.b64encode(_BODY.replace(b"RUN-ID", run_id.encode())).decode()
    # An id is hexadecimal and an instant digits: neither needs escaping inside a JSON text.
    return _ENVELOPE.format(
        body=body,
        run_id=run_id,
        task_id=task_id,
        eta="null" if eta is None else _eta_text(eta),
        queue=_json_text(message.queue),
        tag=uuid4(),
    ).encode()


def _template() -> str:
    """The envelope of any run, with a place for what is each message's own.

    Made once by the same `json.dumps` that would else make it for each message, at four times
    the cost of the rest of a message's way.
    """
    envelope = {
        "body": "@body@",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": RUN_TASK,
            "id": "@task_id@",
            "shadow": None,
            "eta": "@@eta@@",
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": "@task_id@",
            "parent_id": None,
            "argsrepr": "['@run_id@']",
            "kwargsrepr": "{}",
            "origin": _ORIGIN,
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": "@task_id@",
            "delivery_mode": _PERSISTENT,
            "delivery_info": {"exchange": "", "routing_key": "@@queue@@"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "@tag@",
        },
    }
    text = json.dumps(envelope).replace("{", "{{").replace("}", "}}")
    # A place with doubled marks takes a whole JSON value, quotes and all.
    text = re.sub(r'"@@(\w+)@@"', r"{\1}", text)
    return re.sub(r"@(\w+)@", r"{\1}", text)


@lru_cache(maxsize=1_000)
def _json_text(value: str) -> str:
    return json.dumps(value)


@lru_cache(maxsize=1_000)
def _eta_text(eta: datetime) -> str:
    return json.dumps(eta.isoformat())


_BODY = json.dumps([["RUN-ID"], {}, _EMBED]).encode()
_ENVELOPE = _template()
