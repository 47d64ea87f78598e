"""Processes are stopped in order and started anew while work is under way: a release goes out."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.test_run_path import SHORT_LEASE, ended, in_seconds, one_off, the_run
from tests.acceptance.test_worker_faults import STAYS, session_of, worker_of
from tests.support.engine_witness import EngineWitness
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest


def started(stack: StackUnderTest, job: dict[str, Any]) -> bool:
    return any(run["started_at"] for run in stack.runs_of(job))


@pytest.mark.stack(schedulers=2, workers=2, env={"WORKER_DRAIN_S": "30", "WORKER_SLOTS": "6"})
def test_a_rolling_restart_during_a_burst_loses_nothing_and_fails_nothing(
    stack: StackUnderTest,
) -> None:
    long = [one_off(stack, "sh", "-c", "sleep 4; echo whole", in_s=1) for _ in range(2)]
    short = [one_off(stack, "sh", "-c", "sleep 1; echo whole", in_s=5 + n / 2) for n in range(50)]
    poll(lambda: all(started(stack, job) for job in long), 20, "the burst is under way")
    lives = {process.name: process.pid for process in [*stack.workers, *stack.schedulers]}

    for process in [*stack.workers, *stack.schedulers]:
        assert process.stop(within_s=40) == 0, f"{process.name} did not end in order"
        process.start()
        poll(lambda: stack.accepting_workers() == 2, 30, f"all work again after {process.name}")

    assert all(
        process.pid != lives[process.name] for process in [*stack.workers, *stack.schedulers]
    )
    ends = [ended(stack, job, within_s=60) for job in [*long, *short]]
    assert {run["status"] for run in ends} == {"succeeded"}
    assert {run["output_tail"] for run in ends} == {"whole\n"}
    assert {len(run["attempts"]) for run in ends} == {1}
    assert stack.rows("SELECT sum(failures), sum(lease_losses), count(*) FROM runs") == [(0, 0, 52)]
    late = max(
        datetime.fromisoformat(run["started_at"]) - datetime.fromisoformat(run["due_at"])
        for run in ends
    )
    assert late < timedelta(seconds=10), f"one started {late} after its time"


@pytest.mark.stack(schedulers=1, workers=2, env={"WORKER_DRAIN_S": "30"})
def test_what_a_leaving_worker_has_prepared_starts_on_time_elsewhere(
    stack: StackUnderTest,
) -> None:
    at = in_seconds(10)
    jobs = [one_off(stack, "true", schedule={"at": at}) for _ in range(6)]
    prepared = "SELECT count(*) FROM runs WHERE status = 'leased'"
    poll(lambda: stack.rows(prepared) == [(6,)], 20, "all are prepared")
    leaving, staying = worker_of(stack, jobs[0])
    given_to_it = {
        str(run_id)
        for (run_id,) in stack.rows(
            "SELECT run_id FROM runs WHERE lease_owner = %s",
            session_of(stack, leaving)["session_id"],
        )
    }

    assert leaving.stop(within_s=20) == 0

    ends = [ended(stack, job) for job in jobs]
    other = str(session_of(stack, staying)["session_id"])
    owners = {
        str(run_id): str(session)
        for run_id, session in stack.rows("SELECT run_id, session_id FROM run_attempts")
    }
    moved = [run for run in ends if run["run_id"] in given_to_it]
    assert moved
    for run in moved:
        late = datetime.fromisoformat(run["attempts"][0]["go_at"]) - datetime.fromisoformat(at)
        assert owners[run["run_id"]] == other
        assert late < timedelta(seconds=1), f"its go came {late} after its time"
    assert {(run["status"], len(run["attempts"])) for run in ends} == {("succeeded", 1)}


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE | {"WORKER_DRAIN_S": "2"})
def test_what_still_runs_at_the_drain_limit_is_ended_and_run_again_elsewhere(
    stack: StackUnderTest,
) -> None:
    with EngineWitness(stack.engine, stack.instance) as witness:
        job = one_off(stack, *STAYS, in_s=1)
        poll(lambda: witness.alive(), 30, "its container runs")
        leaving, _ = worker_of(stack, job)

        assert leaving.stop(within_s=20) == 0

        run = ended(stack, job)
        assert [each["outcome"] for each in run["attempts"]] == ["lease_expired", "succeeded"]
        assert witness.overlaps() == []
        assert stack.rows("SELECT failures, lease_losses FROM runs") == [(0, 1)]
        assert the_run(stack, job)["status"] == "succeeded"
