"""The engine dies, freezes or restarts under running containers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runs.domain.outcome import OutcomeCode
from tests.support.images import ensure_demo_image
from tests.support.private_engine import PrivateEngine
from tests.support.sandboxes import container_spec, eventually
from workers.sandbox.base import EngineUnreachable
from workers.sandbox.docker import DockerSandbox

FOREVER = ("sleep", "600")
CALL_TIMEOUT_S = 2.0


@pytest.fixture
def engine() -> Iterator[PrivateEngine]:
    engine = PrivateEngine()
    try:
        ensure_demo_image(engine.docker_host)
        yield engine
    finally:
        engine.destroy()


@pytest.fixture
def sandbox(engine: PrivateEngine) -> Iterator[DockerSandbox]:
    sandbox = DockerSandbox(
        instance="private",
        node="alpha",
        docker_host=engine.docker_host,
        call_timeout_s=CALL_TIMEOUT_S,
    )
    yield sandbox
    sandbox.close()


def test_a_container_that_the_engine_took_down_is_the_engines_failure(
    engine: PrivateEngine, sandbox: DockerSandbox
) -> None:
    handle = sandbox.prepare(container_spec(FOREVER))
    sandbox.start(handle)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.wait, handle, threading.Event(), 60)
        engine.kill()
        assert not sandbox.ping()
        engine.start()  # without its live-restore option it stops what it finds running
        ended = waiting.result(timeout=60)
    assert ended is not None
    verdict = ended.outcome()
    assert verdict.code is OutcomeCode.ENGINE_UNREACHABLE
    assert (verdict.permanent, verdict.counts_as_attempt) == (False, False)


def test_an_exit_during_an_outage_is_found_with_its_own_code(
    engine: PrivateEngine, sandbox: DockerSandbox
) -> None:
    handle = sandbox.prepare(container_spec(("sh", "-c", "sleep 1; exit 7")))
    sandbox.start(handle)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.wait, handle, threading.Event(), 60)
        engine.freeze()
        init = sandbox._inits[handle.container_id]
        assert init is not None
        assert eventually(lambda: not init.is_alive())
        engine.thaw()
        ended = waiting.result(timeout=60)
    assert ended is not None
    assert ended.outcome().code is OutcomeCode.NON_ZERO_EXIT
    assert ended.exit_code == 7


def test_a_frozen_engine_holds_up_neither_the_time_limit_nor_a_stop_request(
    engine: PrivateEngine, sandbox: DockerSandbox
) -> None:
    handle = sandbox.prepare(container_spec(FOREVER))
    sandbox.start(handle)
    engine.freeze()
    began = time.monotonic()
    assert sandbox.wait(handle, threading.Event(), 1.0) is None
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    assert sandbox.wait(handle, stop, 60) is None
    assert time.monotonic() - began < 2


def test_every_call_to_a_frozen_engine_ends_in_time(
    engine: PrivateEngine, sandbox: DockerSandbox
) -> None:
    assert sandbox.ping()
    engine.freeze()
    began = time.monotonic()
    with pytest.raises(EngineUnreachable):
        sandbox.list_ours()
    with pytest.raises(EngineUnreachable):
        sandbox.prepare(container_spec())
    assert not sandbox.ping()
    assert time.monotonic() - began < 3 * CALL_TIMEOUT_S + 1


def test_after_a_restart_everything_works_again(
    engine: PrivateEngine, sandbox: DockerSandbox
) -> None:
    first = sandbox.prepare(container_spec(FOREVER))
    engine.kill()
    engine.start()
    sandbox.remove(first)
    handle = sandbox.prepare(container_spec())
    sandbox.start(handle)
    ended = sandbox.wait(handle, threading.Event(), 20)
    assert ended is not None
    assert ended.exit_code == 0
