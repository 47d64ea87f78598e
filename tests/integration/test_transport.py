"""Messages are hints: a broker that is away, hangs or refuses costs nobody more than a moment."""

import socket
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from celery import Celery

from runs import transport
from runs.transport import Message

_TIMEOUT_S = 0.3


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _broker_hangs(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    app = Celery("test", broker=f"redis://127.0.0.1:{silent_port}/0", set_as_current=False)
    app.conf.broker_transport_options = {
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
        "max_retries": 1,
        "interval_start": 0,
    }
    app.conf.task_publish_retry = False
    monkeypatch.setattr(transport, "current_app", app)
    monkeypatch.setattr(transport, "_silent_until", 0.0)
    yield
    app.close()


def a_message() -> Message:
    return Message(uuid4(), 1, "runs.somewhere", None)


def test_a_broker_that_hangs_costs_one_time_out_and_then_nothing_for_a_while() -> None:
    began = time.monotonic()
    sent = [transport.send([a_message()] * 50) for _ in range(20)]
    took_s = time.monotonic() - began

    assert sent == [0] * 20
    assert took_s < 5 * _TIMEOUT_S, "twenty batches waited for one time-out"


def test_the_broker_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "QUIET_AFTER_FAILURE_S", 0.0)
    transport.send([a_message()])
    began = time.monotonic()

    transport.send([a_message()])

    assert time.monotonic() - began >= _TIMEOUT_S / 2, "it was asked"


def test_queues_that_cannot_be_deleted_are_left_and_raise_nothing() -> None:
    assert transport.forget_queues(["runs.a", "runs.b"]) == 0
