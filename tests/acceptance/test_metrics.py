"""What real processes count and show: a few runs, several processes, a leader that dies."""

import os
import signal
from collections.abc import Iterable

import pytest
from prometheus_client.mmap_dict import MmapedDict

from tests.acceptance.test_run_path import ended, one_off
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest

FLEET = 'runs_waiting{reason="time"}'


def total(stack: StackUnderTest, processes: Iterable[Process], name: str) -> float:
    """The sum over instances, as Prometheus would make it."""
    return sum(stack.metrics_of(process).get(name, 0) for process in processes)


def leaders(stack: StackUnderTest) -> list[Process]:
    """The schedulers that show the fleet's gauges now."""
    living = [scheduler for scheduler in stack.schedulers if scheduler.is_alive]
    return [scheduler for scheduler in living if FLEET in stack.metrics_of(scheduler)]


def counting_processes(stack: StackUnderTest) -> list[int]:
    """The processes of the API that have counted a run, dead ones included."""
    pids = []
    for path in sorted((stack.directory / "metrics").glob("counter_*.db")):
        values = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
        if any('"runs_planned_total"' in key and value for key, value, *_ in values):
            pids.append(int(path.stem.removeprefix("counter_")))
    return pids


@pytest.mark.stack(schedulers=2, workers=2)
def test_what_became_of_a_few_runs_is_counted_once(stack: StackUnderTest) -> None:
    good = [one_off(stack, "true", in_s=2) for _ in range(3)]
    failing = one_off(stack, "false", in_s=2)
    retried = one_off(
        stack,
        "sh",
        "-c",
        '[ "$ATTEMPT" -ge 2 ] || exit 7',
        in_s=2,
        retry={"max_attempts": 2, "backoff": "fixed", "base_s": 1},
    )
    by_hand = stack.client.post(f"/v1/jobs/{good[0]['job_id']}/runs").json()
    late = one_off(stack, "true", in_s=3_600)
    waiting = stack.client.post(f"/v1/jobs/{late['job_id']}/runs").json()
    cancelled = stack.client.post(f"/v1/runs/{waiting['run_id']}/cancel")
    assert cancelled.status_code == 202
    for job in (*good[1:], failing, retried):
        ended(stack, job)
    poll(
        lambda: stack.client.get(f"/v1/runs/{by_hand['run_id']}").json()["finished_at"],
        30,
        "the run by hand has ended",
    )
    poll(
        lambda: len(stack.rows("SELECT FROM runs WHERE finished_at IS NULL")) == 0, 30, "all ended"
    )

    everybody = [*stack.schedulers, *stack.workers, stack.api]
    runs = len(stack.rows("SELECT FROM runs"))
    by_status = dict(stack.rows("SELECT status, count(*)::int FROM runs GROUP BY status"))
    attempts = len(stack.rows("SELECT FROM run_attempts WHERE started_at IS NOT NULL"))
    first_starts = len(stack.rows("SELECT FROM run_attempts WHERE attempt = 1"))
    # What a worker has committed is counted a moment later.
    finished = 'runs_completed_total{status="succeeded"}'
    poll(lambda: total(stack, everybody, finished) == by_status["succeeded"], 10, "all is counted")
    expected = {
        "runs_planned_total": runs,
        "runs_started_total": attempts,
        **{
            f'runs_completed_total{{status="{status}"}}': by_status.get(status, 0)
            for status in ("succeeded", "failed", "cancelled", "skipped")
        },
        "run_failures_total": 2,
        "run_retries_total": 1,
        "dead_letters_total": 1,
        "lease_expiries_total": 0,
        'dispatch_lag_seconds_count{region="default",tier="container"}': first_starts,
        "shards_owned": 64,
        "slots_used": 0,
        "slots_free": 8,
    }
    shown = {name: total(stack, everybody, name) for name in expected}
    assert shown == expected
    assert total(stack, everybody, "runs_placed_total") >= attempts
    lag_s = total(stack, everybody, 'dispatch_lag_seconds_sum{region="default",tier="container"}')
    (stored_s,) = stack.rows(
        "SELECT sum(greatest(0, extract(epoch FROM a.started_at - r.due_at)))::float8"
        " FROM runs r JOIN run_attempts a USING (run_id, scheduled_for) WHERE a.attempt = 1"
    )[0]
    assert lag_s == pytest.approx(stored_s, abs=0.001)
    for process in everybody:
        skew_s = poll(
            lambda process=process: stack.metrics_of(process).get("clock_skew_seconds"),  # type: ignore[misc]
            10,
            f"{process.name} shows its clock",
        )
        assert skew_s is not None
        assert abs(skew_s) < 0.5, "one machine has one clock"


@pytest.mark.stack(schedulers=2, workers=1, api=False, env={"SHARD_TERM_S": "3"})
def test_the_fleet_s_gauges_are_shown_by_one_and_by_another_when_that_one_dies(
    stack: StackUnderTest,
) -> None:
    poll(lambda: len(leaders(stack)) == 1, 30, "one scheduler shows the fleet's gauges")
    (leader,) = leaders(stack)
    shown = stack.metrics_of(leader)
    assert shown["planner_lag_seconds"] == 0
    assert shown["dispatcher_lag_seconds"] == 0
    assert shown["database_connections_max"] == 400
    poll(
        lambda: any(
            value
            for name, value in stack.metrics_of(leader).items()
            if name.startswith("database_connections{") and 'role="worker"' in name
        ),
        20,
        "the workers' connections are shown",
    )

    leader.freeze()
    (other,) = [scheduler for scheduler in stack.schedulers if scheduler is not leader]
    poll(lambda: FLEET in stack.metrics_of(other), 30, "the other one has taken over")
    leader.thaw()
    assert FLEET not in stack.metrics_of(leader), "it woke up and believes that it still leads"

    other.kill()
    poll(lambda: leaders(stack) == [leader], 30, "a dead leader is replaced")


@pytest.mark.stack(schedulers=0, workers=0, warden=False, api_processes=2)
def test_two_processes_of_an_api_are_counted_together(stack: StackUnderTest) -> None:
    job = one_off(stack, "true", in_s=3_600)
    made = 0
    while len(counting_processes(stack)) < 2:
        # A connection of its own may be taken by either process.
        answer = stack.client.post(
            f"/v1/jobs/{job['job_id']}/runs", headers={"Connection": "close"}
        )
        assert answer.status_code == 201
        made += 1
        assert made < 500, "only one process works"
    # Whichever process answers.
    assert {stack.metrics_of(stack.api)["runs_planned_total"] for _ in range(10)} == {made}

    one, _ = counting_processes(stack)
    os.kill(one, signal.SIGKILL)
    poll(
        lambda: f"Worker (pid:{one}) was sent SIGKILL" in stack.api.output(), 30, "one is replaced"
    )
    assert stack.metrics_of(stack.api)["runs_planned_total"] == made, "what it counted is lost"

    stack.api.restart()
    poll(stack.api_is_ready, 60, "the API is ready again")
    assert stack.metrics_of(stack.api)["runs_planned_total"] == 0, "a former life was counted, too"


@pytest.mark.stack(schedulers=0, workers=0, warden=False)
def test_nobody_who_comes_through_the_proxy_sees_the_metrics(stack: StackUnderTest) -> None:
    assert stack.client.get("/metrics").status_code == 200
    for header in ("X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"):
        answer = stack.client.get("/metrics", headers={header: "https"})
        assert answer.status_code == 404
        assert answer.headers["Content-Type"] == "application/problem+json"
