"""The database restarts, is away, or was never there: what workers and their containers do."""

import pytest

from tests.acceptance.test_run_path import SHORT_LEASE, ended, has, one_off, the_run
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest


@pytest.mark.stack(schedulers=1, workers=1)
def test_containers_outlive_a_restart_of_the_database_that_is_shorter_than_the_lease(
    stack: StackUnderTest,
) -> None:
    jobs = [one_off(stack, "sh", "-c", "sleep 12; echo whole", in_s=1) for _ in range(3)]
    poll(lambda: len(stack.containers(running_only=True)) == 3, 30, "three containers run")

    stack.postgres.stop()
    during = len(stack.containers(running_only=True))
    stack.postgres.start()

    assert during == 3
    for job in jobs:
        run = ended(stack, job, within_s=60)
        assert (run["status"], run["output_tail"]) == ("succeeded", "whole\n")
        assert len(run["attempts"]) == 1


@pytest.mark.stack(schedulers=1, workers=1, env=SHORT_LEASE)
def test_a_database_that_is_away_longer_than_the_lease_finds_no_container_of_before(
    stack: StackUnderTest,
) -> None:
    job = one_off(stack, "sh", "-c", '[ "$ATTEMPT" -ge 2 ] && echo again || sleep 600', in_s=1)
    poll(lambda: stack.containers(running_only=True), 30, "its container runs")

    stack.postgres.stop()
    # Worker: lease − margin = 5 s after its last heartbeat, the database's own expiry at 8 s.
    poll(lambda: not stack.containers(running_only=True), 8, "its container is dead")
    stack.postgres.start()

    def again() -> bool:
        stack.revive()  # its session is over: the worker ends, and a supervisor starts it again
        return the_run(stack, job).get("status") == "succeeded"

    poll(again, 60, "it was run again")
    first, second = the_run(stack, job)["attempts"]
    assert first["outcome"] == "lease_expired"
    assert second["fence"] > first["fence"]


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_worker_that_finds_no_database_ends_so_that_it_is_started_again(
    stack: StackUnderTest,
) -> None:
    (worker,) = stack.workers
    worker.stop()
    stack.postgres.stop()

    worker.start()
    poll(lambda: not worker.is_alive, 30, "the worker ends")

    stack.postgres.start()
    worker.start()
    poll(lambda: stack.accepting_workers() == 1, 30, "its next life takes runs")


@pytest.mark.stack(schedulers=1, workers=2)
def test_an_idle_worker_that_is_stopped_leaves_what_it_was_given_to_the_other(
    stack: StackUnderTest,
) -> None:
    jobs = [one_off(stack, "true", in_s=20 + n / 10) for n in range(6)]
    poll(lambda: all(the_run(stack, job).get("placed_at") for job in jobs), 20, "all are placed")
    leaving, staying = stack.workers

    leaving.stop()

    for job in jobs:
        poll(has(stack, job, "succeeded"), 40, "it has run")
        assert len(the_run(stack, job)["attempts"]) == 1
    assert staying.is_alive
