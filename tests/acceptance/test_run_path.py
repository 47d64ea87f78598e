"""The path of a run on real parts: API, schedulers, broker, workers, containers."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest

Run = dict[str, Any]


def in_seconds(seconds: float) -> str:
    """An instant so many seconds from now, as the API takes it."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_off(stack: StackUnderTest, *args: str, in_s: float = 3, **fields: Any) -> dict[str, Any]:
    """A job that runs its arguments once, soon."""
    task = {"image": stack.demo_image, "args": list(args), "timeout_s": 60}
    body: dict[str, Any] = {"schedule": {"at": in_seconds(in_s)}, "task": task, "overlap": "allow"}
    timeout_s = fields.pop("timeout_s", None)
    if timeout_s:
        task["timeout_s"] = timeout_s
    env = fields.pop("env", None)
    if env:
        task["env"] = env
    return stack.job_create(**body | fields)


def the_run(stack: StackUnderTest, job: dict[str, Any]) -> Run:
    """The one run of a job, with attempts and output; {} while there is none."""
    runs = stack.runs_of(job)
    if not runs:
        return {}
    assert len(runs) == 1, runs
    detail: Run = stack.client.get(f"/v1/runs/{runs[0]['run_id']}").json()
    return detail


def ended(stack: StackUnderTest, job: dict[str, Any], within_s: float = 30) -> Run:
    """The run of a job once it is final."""

    def final() -> Run | None:
        run = the_run(stack, job)
        return run if run.get("status") in ("succeeded", "failed", "cancelled", "skipped") else None

    run = poll(final, within_s, f"the run of {job['job_id']} is final")
    assert run is not None
    return run


def has(stack: StackUnderTest, job: dict[str, Any], status: str) -> Callable[[], bool]:
    return lambda: the_run(stack, job).get("status") == status


@pytest.mark.stack(schedulers=1, workers=2)
def test_a_newer_run_takes_the_place_of_one_that_runs_and_never_beside_it(
    stack: StackUnderTest,
) -> None:
    job = one_off(stack, "sleep", "3", in_s=3_600, overlap="replace")
    runs: list[str] = []
    for _ in range(3):
        runs.append(stack.client.post(f"/v1/jobs/{job['job_id']}/runs").json()["run_id"])
        poll(lambda: stack.containers(running_only=True), 20, "a container runs")

    def all_ended() -> list[Run]:
        shown = [stack.client.get(f"/v1/runs/{run_id}").json() for run_id in runs]
        return shown if all(run["finished_at"] for run in shown) else []

    first, second, third = poll(all_ended, 40, "all are over")

    assert (first["status"], third["status"]) == ("cancelled", "succeeded")
    assert (second["status"], second["skip_reason"]) == ("skipped", "replaced")
    assert first["replaced_by"] in runs[1:]
    assert second["replaced_by"] == third["run_id"]
    # The two containers were on one engine, whose clock says it.
    (stopped,), (last,) = first["attempts"], third["attempts"]
    assert datetime.fromisoformat(stopped["finished_at"]) <= datetime.fromisoformat(
        last["started_at"]
    )


@pytest.mark.stack(schedulers=2, workers=2)
def test_a_customers_post_becomes_a_container_on_its_second_and_a_result(
    stack: StackUnderTest,
) -> None:
    job = one_off(
        stack, "sh", "-c", "env; exit 0", in_s=8, env={"COLOUR": "blue==", "LINE": "a\nb"}
    )
    failing = one_off(
        stack,
        "sh",
        "-c",
        '[ "$ATTEMPT" -ge 3 ] && echo third || exit 7',
        in_s=1,
        retry={"max_attempts": 3, "backoff": "fixed", "base_s": 1},
    )
    too_long = one_off(stack, "sleep", "60", in_s=1, timeout_s=2)
    shell_words = one_off(stack, "echo", "$(id)", ";", "`ls`", "", "a b", in_s=1)

    run = ended(stack, job)
    said = dict(line.split("=", 1) for line in run["output_tail"].splitlines() if "=" in line)
    assert run["status"] == "succeeded"
    assert run["exit_code"] == 0
    assert said["RUN_ID"] == run["run_id"]
    assert said["JOB_ID"] == job["job_id"]
    assert said["ATTEMPT"] == "1"
    assert said["FENCE"] == str(run["attempts"][0]["fence"])
    assert said["COLOUR"] == "blue=="
    assert datetime.fromisoformat(said["SCHEDULED_FOR"]) == datetime.fromisoformat(
        run["scheduled_for"]
    )
    lag = datetime.fromisoformat(run["started_at"]) - datetime.fromisoformat(run["due_at"])
    assert timedelta(0) <= lag < timedelta(seconds=1), f"it started {lag} after its second"

    third = ended(stack, failing)
    assert third["status"] == "succeeded"
    assert [attempt["exit_code"] for attempt in third["attempts"]] == [7, 7, 0]
    assert [attempt["attempt"] for attempt in third["attempts"]] == [1, 2, 3]
    fences = [attempt["fence"] for attempt in third["attempts"]]
    assert fences == sorted(set(fences))

    killed = ended(stack, too_long)
    (attempt,) = killed["attempts"]
    took = datetime.fromisoformat(attempt["finished_at"]) - datetime.fromisoformat(
        attempt["started_at"]
    )
    assert (killed["status"], killed["outcome"]) == ("failed", "timed_out")
    assert timedelta(seconds=1) < took < timedelta(seconds=4)

    assert ended(stack, shell_words)["output_tail"] == "$(id) ; `ls`  a b\n"
    poll(lambda: not stack.containers(), 10, "every container is removed")


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_message_delivered_many_times_runs_the_run_once(stack: StackUnderTest) -> None:
    job = one_off(stack, "sleep", "2", in_s=10)
    poll(lambda: the_run(stack, job).get("placed_at"), 20, "the run is placed")
    run_id, queue = stack.rows(
        "SELECT r.run_id, s.queue FROM runs r JOIN worker_sessions s"
        " ON s.session_id = r.lease_owner WHERE r.job_id = %s",
        job["job_id"],
    )[0]

    for n in range(20):
        stack.send_again(str(run_id), queue, f"{run_id}:again-{n}")

    run = ended(stack, job)
    assert run["status"] == "succeeded"
    assert len(run["attempts"]) == 1


@pytest.mark.stack(schedulers=1, workers=2)
def test_redis_emptied_while_runs_wait_loses_and_doubles_nothing(stack: StackUnderTest) -> None:
    jobs = [one_off(stack, "true", in_s=14 + n % 2) for n in range(8)]
    poll(
        lambda: all(the_run(stack, job).get("placed_at") for job in jobs),
        12,
        "every run is placed and its message sent",
    )
    with redis.Redis.from_url(stack.environment["REDIS_URL"]) as client:
        client.flushall()
    for worker in stack.workers:  # what they have fetched already is lost as well
        worker.kill()
        worker.start()

    for job in jobs:
        run = ended(stack, job)
        assert run["status"] == "succeeded"
        assert len(run["attempts"]) == 1
        started = datetime.fromisoformat(run["started_at"])
        late = started - datetime.fromisoformat(run["due_at"])
        assert late < timedelta(seconds=3), f"it started {late} late"


@pytest.mark.stack(schedulers=2, workers=2)
def test_redis_stopped_and_started_under_load_loses_nothing(stack: StackUnderTest) -> None:
    jobs = [one_off(stack, "sleep", "1", in_s=4 + n / 2) for n in range(20)]
    poll(lambda: any(run.get("started_at") for run in stack.runs_of(jobs[0])), 20, "load")

    stack.redis.stop()
    during = one_off(stack, "true", in_s=2)
    assert ended(stack, during)["status"] == "succeeded", "runs go on without the broker"
    stack.redis.start()

    def all_final() -> bool:
        stack.revive()  # what a supervisor does
        return all(
            run["status"] == "succeeded" for job in jobs for run in stack.runs_of(job)
        ) and all(stack.runs_of(job) for job in jobs)

    poll(all_final, 60, "every run has succeeded")
    assert stack.rows("SELECT count(*) FROM run_attempts WHERE go_at IS NOT NULL")[0][0] == 21


SHORT_LEASE = {
    "LEASE_S": "8",
    "HEARTBEAT_S": "2",
    "WORKER_MARGIN_S": "3",
    "WARDEN_MARGIN_S": "1.5",
    "REAP_AFTER_S": "0.5",
}


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE)
def test_the_run_of_a_killed_worker_is_run_again_and_its_container_is_dead_before(
    stack: StackUnderTest,
) -> None:
    job = one_off(stack, "sh", "-c", '[ "$ATTEMPT" -ge 2 ] && echo again || sleep 600', in_s=1)
    poll(has(stack, job, "running"), 20, "the run is under way")
    poll(lambda: stack.containers(running_only=True), 10, "its container runs")
    owner = stack.rows(
        "SELECT s.pid FROM runs r JOIN worker_sessions s ON s.session_id = r.lease_owner"
        " WHERE r.job_id = %s",
        job["job_id"],
    )[0][0]
    (worker,) = [worker for worker in stack.workers if worker.pid == owner]

    worker.kill()

    run = ended(stack, job, within_s=40)
    first, second = run["attempts"]
    assert (run["status"], run["output_tail"]) == ("succeeded", "again\n")
    assert (first["outcome"], second["outcome"]) == ("lease_expired", "succeeded")
    assert second["fence"] > first["fence"]
    poll(lambda: not stack.containers(), 15, "every container is removed")


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE)
def test_a_frozen_worker_that_wakes_up_changes_nothing(stack: StackUnderTest) -> None:
    job = one_off(
        stack, "sh", "-c", '[ "$ATTEMPT" -ge 2 ] && echo second || sleep 14; echo first', in_s=1
    )
    poll(has(stack, job, "running"), 20, "the run is under way")
    poll(lambda: stack.containers(running_only=True), 10, "its container runs")
    owner = stack.rows(
        "SELECT s.pid FROM runs r JOIN worker_sessions s ON s.session_id = r.lease_owner"
        " WHERE r.job_id = %s",
        job["job_id"],
    )[0][0]
    (worker,) = [worker for worker in stack.workers if worker.pid == owner]

    worker.freeze()
    run = ended(stack, job, within_s=40)
    worker.thaw()
    poll(lambda: not worker.is_alive, 30, "the old life ends, since its lease is lost")

    after = ended(stack, job)
    assert run["output_tail"].startswith("second")
    assert (after["status"], after["attempts"]) == (run["status"], run["attempts"])
    poll(lambda: not stack.containers(), 15, "every container is removed")


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_run_is_cancelled_once_its_container_is_dead(stack: StackUnderTest) -> None:
    job = one_off(stack, "sleep", "600", in_s=1)
    poll(lambda: stack.containers(running_only=True), 20, "its container runs")
    run_id = stack.runs_of(job)[0]["run_id"]

    answer = stack.client.post(f"/v1/runs/{run_id}/cancel")

    assert answer.status_code == 202
    assert ended(stack, job)["status"] == "cancelled"
    assert not stack.containers(running_only=True)
    assert stack.client.post(f"/v1/runs/{run_id}/cancel").status_code == 409


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_worker_that_is_stopped_hands_back_what_it_prepared(stack: StackUnderTest) -> None:
    running = one_off(stack, "sh", "-c", "sleep 4; echo whole", in_s=1)
    waiting = one_off(stack, "echo", "elsewhere", in_s=9)
    poll(lambda: stack.containers(running_only=True), 20, "the first runs")
    poll(lambda: the_run(stack, waiting).get("placed_at"), 20, "the second is placed")

    stack.environment["WORKER_DRAIN_S"] = "20"
    (worker,) = stack.workers
    worker.stop(within_s=30)
    worker.start()

    first, second = ended(stack, running), ended(stack, waiting)
    assert second["status"] == "succeeded"
    assert len(second["attempts"]) == 1
    assert first["status"] == "succeeded"


@pytest.mark.stack(schedulers=2, workers=1)
def test_two_scheduler_processes_make_one_run_of_each_occurrence(stack: StackUnderTest) -> None:
    with stack.db() as connection:
        tenant = connection.execute("SELECT tenant_id FROM tenants LIMIT 1").fetchone()
        assert tenant is not None
        # Switched off in time: what counts here is what is planned, not what runs.
        connection.execute(
            "UPDATE worker_sessions SET cordoned = true; UPDATE tenants SET max_jobs = 100000"
        )
        for n in range(30):  # rounds: each lets 40 cursors fall due at the same moment
            connection.execute(
                "WITH job AS (INSERT INTO jobs (job_id, tenant_id, name, description, labels,"
                " schedule, dst, flexible_window_s, misfire, overlap, queue_limit, task, retry,"
                " region, tier, enabled, version)"
                " SELECT gen_random_uuid(), %s, 'race', '', '{}',"
                " jsonb_build_object('cron', '*/5 * * * *', 'time_zone', 'UTC'), '{}', 0, '{}',"
                " 'allow', 10, '{\"image\": \"x\", \"timeout_s\": 1}', '{}', 'default',"
                " 'container', true, 1 FROM generate_series(1, 40) RETURNING job_id)"
                " INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time,"
                " tzdata) SELECT job_id, 0, date_trunc('hour', now()), '', '' FROM job",
                [tenant[0]],
            )
            poll(
                lambda: (
                    stack.rows(
                        "SELECT count(*) FROM schedule_cursors WHERE next_run_at <= now()"
                        " + interval '70 seconds'"
                    )[0][0]
                    == 0
                ),
                20,
                f"round {n} is planned",
            )
    doubled = stack.rows("SELECT job_id, scheduled_for FROM runs GROUP BY 1, 2 HAVING count(*) > 1")
    jobs = stack.rows("SELECT count(DISTINCT job_id) FROM runs")[0][0]
    assert doubled == []
    assert jobs == 30 * 40
