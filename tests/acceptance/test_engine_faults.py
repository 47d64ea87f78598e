"""The container engine of a node hangs or dies under a whole stack, and comes back."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from scheduler_project.stack.engine import Engine
from tests.acceptance.test_run_path import SHORT_LEASE, ended, one_off, the_run
from tests.acceptance.test_worker_faults import LEASE, session_of
from tests.support.images import ensure_demo_image
from tests.support.polling import poll
from tests.support.private_engine import PrivateEngine
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template

# As docs/when-things-break.md has it, and the look that tells the database.
NOTICED_S = 7
SILENT = "the container engine does not answer"


@pytest.fixture
def private_engine() -> Iterator[PrivateEngine]:
    engine = PrivateEngine()
    try:
        ensure_demo_image(engine.docker_host)
        yield engine
    finally:
        engine.destroy()


@pytest.fixture
def own(
    private_engine: PrivateEngine, services_directory: Path, stack_template: Template
) -> Iterator[StackUnderTest]:
    """A started stack with one worker, on an engine that nobody else uses."""
    directory = services_directory / "stack-own-engine"
    engine = Engine(private_engine.docker_host)
    stack = StackUnderTest(
        directory, stack_template, engine, schedulers=1, workers=1, env=SHORT_LEASE
    )
    with closing(stack):
        stack.start()
        yield stack
        private_engine.thaw()


def refuses(stack: StackUnderTest, worker: Process) -> bool:
    session = session_of(stack, worker)
    return not session["accepting"] and session["not_accepting_reason"] == SILENT


def test_an_engine_that_hangs_beyond_a_lease_costs_no_run_its_attempt(
    own: StackUnderTest, private_engine: PrivateEngine
) -> None:
    (worker,) = own.workers
    job = one_off(own, "sh", "-c", "sleep 4; echo whole", in_s=1)
    poll(lambda: own.containers(running_only=True), 20, "its container runs")
    before = session_of(own, worker)

    private_engine.freeze()
    poll(lambda: refuses(own, worker), NOTICED_S, "the worker accepts nothing and says why")
    waiting = one_off(own, "true", in_s=1)
    poll(lambda: the_run(own, waiting), 10, "the next run is planned")
    poll(
        lambda: session_of(own, worker)["lease_expires_at"] > before["lease_expires_at"] + LEASE,
        30,
        "it has renewed its lease for longer than one",
    )
    lone = the_run(own, waiting)
    private_engine.thaw()

    run = ended(own, job)
    assert (run["status"], run["output_tail"], len(run["attempts"])) == ("succeeded", "whole\n", 1)
    assert (lone["status"], lone["placed_at"]) == ("queued", None)
    assert ended(own, waiting)["status"] == "succeeded"
    poll(lambda: not own.containers(), 15, "every container is removed")


def test_a_run_whose_engine_died_is_run_again_when_its_container_is_surely_dead(
    own: StackUnderTest, private_engine: PrivateEngine
) -> None:
    (worker,) = own.workers
    again = '[ "$ATTEMPT" -ge 2 ] && sleep 3 && echo again || sleep 600'
    job = one_off(own, "sh", "-c", again, in_s=1)
    poll(lambda: own.containers(running_only=True), 20, "its container runs")
    (container,) = own.containers(running_only=True)
    with own.engine.client() as client:
        init = psutil.Process(client.api.inspect_container(container.id)["State"]["Pid"])

    private_engine.kill()
    poll(lambda: refuses(own, worker), NOTICED_S, "the worker accepts nothing and says why")
    waiting = the_run(own, job)
    assert (waiting["status"], init.is_running()) == ("running", True), "containers outlive it"
    private_engine.start()

    poll(
        lambda: (
            len(the_run(own, job)["attempts"]) == 2
            and the_run(own, job)["attempts"][1]["started_at"]
        ),
        40,
        "its second attempt runs",
    )
    assert not init.is_running(), "the first container is dead"
    run = ended(own, job)
    assert (run["status"], run["output_tail"]) == ("succeeded", "again\n")
    assert own.rows("SELECT failures FROM runs") == [(0,)]
    poll(lambda: not own.containers(), 15, "every container is removed")
