"""A database that is away for long: containers are frozen by the engine's pause, then go on or die.

Whoever of worker and warden is lost while they are frozen, nothing stays frozen for ever.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.conftest import StackFactory
from tests.acceptance.test_run_path import ended, one_off, the_run
from tests.acceptance.test_worker_faults import point_at, session_of
from tests.support.dark_line import DarkLine
from tests.support.engine_witness import EngineWitness
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest

# After the last answered heartbeat: frozen at 6 s, killed by the worker at 15.6 s, by the warden
# at 18 s; the lease ends at 20 s.
LONG_LEASE = {
    "LEASE_S": "20",
    "HEARTBEAT_S": "2",
    "WORKER_MARGIN_S": "14",
    "WARDEN_MARGIN_S": "2",
    "REAP_AFTER_S": "0.5",
    "WORKER_SLOTS": "4",
}
LEASE = timedelta(seconds=20)
FROZEN_BY_S, WORKER_KILLS_S, WARDEN_KILLS_S = 6, 15.6, 18
# Works for eight seconds of its own time; the second attempt says only that it is one.
WORK = (
    "sh",
    "-c",
    '[ "$ATTEMPT" -ge 2 ] && exec echo again; for i in $(seq 80); do sleep 0.1; done; echo whole',
)


@dataclass
class CutOff:
    """A worker whose way to the database can be cut, and what became of its containers."""

    stack: StackUnderTest
    line: DarkLine
    witness: EngineWitness

    def states(self) -> list[str]:
        return sorted(container.status for container in self.stack.containers())

    def job(self, **task: Any) -> dict[str, Any]:
        """A one-off whose container runs."""
        alive = len(self.witness.alive())
        job = one_off(self.stack, *WORK, in_s=1, **task)
        poll(lambda: len(self.witness.alive()) > alive, 30, "its container runs")
        return job

    def freeze_by_silence(self) -> None:
        """Cut the line; return when every container is paused."""
        self.line.cut()
        poll(lambda: set(self.states()) == {"paused"}, FROZEN_BY_S + 4, "its container is paused")

    def lease_ends_at(self) -> datetime:
        found: datetime = session_of(self.stack, self.stack.workers[0])["lease_expires_at"]
        return found

    def died_at(self) -> datetime:
        """When the container of the first attempt died, once it has."""
        poll(lambda: not self.witness.alive(), 20, "it is dead")
        (life,) = self.witness.of_attempt(1)
        assert life.died_at is not None
        return life.died_at

    def is_run_again(self, job: dict[str, Any]) -> None:
        """The line is mended, who is dead is started again: the second attempt succeeds."""
        self.line.mend()

        def again() -> bool:
            self.stack.revive()
            return the_run(self.stack, job).get("status") == "succeeded"

        poll(again, 60, "it was run again")
        outcomes = [attempt["outcome"] for attempt in the_run(self.stack, job)["attempts"]]
        assert outcomes == ["lease_expired", "succeeded"]
        assert self.witness.overlaps() == []
        poll(lambda: self.states() == [], 20, "nothing is left")


@pytest.fixture
def cut_off(make_stack: StackFactory) -> Iterator[CutOff]:
    stack = make_stack(schedulers=1, workers=1, env=LONG_LEASE)
    with (
        DarkLine(stack.postgres.server.port) as line,
        EngineWitness(stack.engine, stack.instance) as witness,
    ):
        point_at(stack.workers[0], line)
        stack.start()
        yield CutOff(stack, line, witness)


def test_an_outage_that_ends_in_time_costs_no_container_its_work_or_its_time_limit(
    cut_off: CutOff,
) -> None:
    jobs = [cut_off.job(timeout_s=10) for _ in range(2)]

    cut_off.freeze_by_silence()
    until = time.monotonic() + 4
    poll(lambda: time.monotonic() > until, 5)
    assert cut_off.states() == ["paused"] * 2
    cut_off.line.mend()

    poll(lambda: "paused" not in cut_off.states(), 8, "they go on")
    for job in jobs:
        run = ended(cut_off.stack, job, within_s=30)
        assert (run["status"], run["output_tail"]) == ("succeeded", "whole\n")
        assert len(run["attempts"]) == 1
        (attempt,) = run["attempts"]
        began, end = (datetime.fromisoformat(attempt[at]) for at in ("started_at", "finished_at"))
        assert end - began > timedelta(seconds=10), "the time that it stood still did not count"


def test_a_database_that_restarts_within_the_lease_finds_the_work_whole(
    make_stack: StackFactory,
) -> None:
    stack = make_stack(schedulers=1, workers=1, env=LONG_LEASE)
    stack.start()
    job = one_off(stack, *WORK, in_s=1)
    poll(lambda: stack.containers(running_only=True), 30, "its container runs")

    stack.postgres.stop()
    poll(lambda: [each.status for each in stack.containers()] == ["paused"], 12, "it is paused")
    stack.postgres.start()

    run = ended(stack, job, within_s=40)
    assert (run["status"], run["output_tail"]) == ("succeeded", "whole\n")
    assert len(run["attempts"]) == 1


def test_an_outage_that_lasts_ends_what_is_frozen_before_the_lease_ends(cut_off: CutOff) -> None:
    job = cut_off.job()
    cut_off.freeze_by_silence()
    lease_ends_at = cut_off.lease_ends_at()

    died_at = cut_off.died_at()

    # The database renewed it a moment after the worker sent; the second heartbeat may be lost.
    assert died_at > lease_ends_at - LEASE + timedelta(seconds=WORKER_KILLS_S - 1)
    assert died_at < lease_ends_at - LEASE + timedelta(seconds=WARDEN_KILLS_S)
    cut_off.is_run_again(job)


def kill_worker(cut_off: CutOff) -> None:
    cut_off.stack.workers[0].kill()


def freeze_worker(cut_off: CutOff) -> None:
    cut_off.stack.workers[0].freeze()


def kill_warden(cut_off: CutOff) -> None:
    cut_off.stack.warden.kill()


@pytest.mark.parametrize(
    ("fault", "dead_within_s"),
    [(kill_worker, 3), (freeze_worker, WARDEN_KILLS_S), (kill_warden, WORKER_KILLS_S)],
)
def test_whichever_of_worker_and_warden_is_lost_the_other_ends_what_is_frozen(
    cut_off: CutOff, fault: Callable[[CutOff], None], dead_within_s: float
) -> None:
    job = cut_off.job()
    cut_off.freeze_by_silence()
    lease_ends_at = cut_off.lease_ends_at()

    began = time.monotonic()
    fault(cut_off)

    assert cut_off.died_at() < lease_ends_at
    assert time.monotonic() - began < dead_within_s
    (worker,) = cut_off.stack.workers
    if fault is freeze_worker:
        worker.thaw()
    cut_off.is_run_again(job)


def test_when_worker_and_warden_both_die_the_next_warden_ends_what_is_frozen(
    cut_off: CutOff,
) -> None:
    job = cut_off.job()
    cut_off.freeze_by_silence()

    kill_warden(cut_off)
    kill_worker(cut_off)
    assert cut_off.states() == ["paused"]
    cut_off.stack.warden.start()

    cut_off.died_at()
    cut_off.is_run_again(job)
