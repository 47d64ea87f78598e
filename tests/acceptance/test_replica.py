"""Lists from a second PostgreSQL that streams from the first, and what happens when it does not."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, LiteralString

import psutil
import psycopg
import pytest

from tests.acceptance.conftest import StackFactory
from tests.acceptance.test_run_path import in_seconds
from tests.support.polling import poll
from tests.support.servers import PostgresServer, start_replica
from tests.support.stack_under_test import StackUnderTest


@dataclass
class Replicated:
    """An API on a primary and a replica, and what a test does to the replica."""

    stack: StackUnderTest
    replica: PostgresServer

    def job(self) -> str:
        """A new job's id."""
        schedule = {"at": in_seconds(3_600)}
        task = {"image": self.stack.demo_image, "timeout_s": 60}
        return str(self.stack.job_create(schedule=schedule, task=task)["job_id"])

    def jobs(self) -> list[str]:
        answer = self.stack.client.get("/v1/jobs?limit=200")
        assert answer.status_code == 200, answer.text
        return [job["job_id"] for job in answer.json()["jobs"]]

    def runs(self, path: str = "/v1/runs") -> list[str]:
        answer = self.stack.client.get(path)
        assert answer.status_code == 200, answer.text
        return [run["run_id"] for run in answer.json()["runs"]]

    def lag_s(self) -> float:
        return self.stack.metrics_of(self.stack.api).get("replica_lag_seconds", float("inf"))

    def serves(self) -> bool:
        """Whether lists come from the replica, as the API says."""
        return self.lag_s() < self.bound_s

    @property
    def bound_s(self) -> float:
        return float(self.stack.environment["REPLICA_MAX_LAG_S"])

    def pause_replay(self) -> None:
        """Let the replica show no newer commit; asked for is not yet paused."""
        self.on_replica("SELECT pg_wal_replay_pause()")
        state: LiteralString = "SELECT pg_get_wal_replay_pause_state()"
        poll(lambda: self.on_replica(state) == "paused", 10, "the replay is paused")

    def on_replica(self, statement: LiteralString) -> object:
        """Execute as superuser; the first value of the answer, if there is one."""
        url = self.replica.server.admin_url.rpartition("/")[0] + "/scheduler"
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


@pytest.fixture
def replicated(make_stack: StackFactory, request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """An API whose lists a replica serves, as soon as that has been looked at."""
    bound_s = getattr(request, "param", "5")
    stack = make_stack(schedulers=0, workers=0, warden=False, env={"REPLICA_MAX_LAG_S": bound_s})
    replica = start_replica(stack.postgres, stack.directory, stack.directory)
    try:
        own = {"DATABASE_REPLICA_URL": replica.url}
        stack.api.environment = {**stack.api.environment, **own}
        stack.start()
        made = Replicated(stack, replica)
        poll(made.serves, 30, "the replica serves lists")
        yield made
    finally:
        replica.kill()


@pytest.mark.parametrize("replicated", ["30"], indirect=True)
def test_lists_come_from_the_replica_and_single_objects_from_the_primary(
    replicated: Replicated,
) -> None:
    known = replicated.job()
    client = replicated.stack.client
    run = client.post(f"/v1/jobs/{known}/runs").json()["run_id"]
    poll(lambda: replicated.jobs() == [known], 10, "the replica has the job")
    poll(lambda: replicated.runs() == [run], 10, "and its run")
    replicated.pause_replay()

    new = replicated.job()
    second = client.post(f"/v1/jobs/{new}/runs").json()["run_id"]

    assert replicated.jobs() == [known], "the list came from the primary"
    assert replicated.runs() == [run]
    assert replicated.runs(f"/v1/jobs/{new}/runs") == []
    assert client.get(f"/v1/jobs/{new}").status_code == 200
    assert client.get(f"/v1/runs/{second}").status_code == 200
    assert client.get("/v1/usage").json()["quotas"]["max_jobs"]["used"] == 2

    replicated.on_replica("SELECT pg_wal_replay_resume()")
    poll(lambda: replicated.jobs() == [new, known], 10, "the replica has caught up")


@pytest.mark.parametrize("replicated", ["2"], indirect=True)
def test_a_replica_that_falls_behind_is_passed_over_until_it_has_caught_up(
    replicated: Replicated,
) -> None:
    replicated.pause_replay()
    job = replicated.job()
    poll(lambda: replicated.jobs() == [job], 10, "the primary serves the list")
    # The metric is as old as the last look; who reads a list asks the clock.
    poll(lambda: not replicated.serves(), 10, "the metric says so")
    replicated.on_replica("SELECT pg_wal_replay_resume()")
    poll(replicated.serves, 10, "the replica serves again")
    assert replicated.jobs() == [job]


@pytest.mark.parametrize("replicated", ["2"], indirect=True)
def test_a_replica_cut_off_from_the_primary_is_passed_over_though_it_believes_to_be_at_the_end(
    replicated: Replicated,
) -> None:
    replicated.on_replica("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")
    replicated.on_replica("SELECT pg_reload_conf()")
    poll(
        lambda: replicated.on_replica("SELECT count(*) FROM pg_stat_wal_receiver") == 0,
        20,
        "nothing is received any more",
    )
    job = replicated.job()
    believes = "SELECT pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn()"
    assert replicated.on_replica(believes) is True
    poll(lambda: replicated.jobs() == [job], 10, "the primary serves the list")


@pytest.mark.parametrize("replicated", ["30"], indirect=True)
def test_a_replica_that_dies_costs_no_request_its_answer(replicated: Replicated) -> None:
    jobs = [replicated.job()]
    poll(lambda: replicated.jobs() == jobs, 10, "the replica has the job")
    replicated.replica.kill()
    jobs.insert(0, replicated.job())
    assert replicated.jobs() == jobs, "it fell back at once, long before the bound"
    replicated.replica.start()
    poll(replicated.serves, 30, "the replica is back")
    poll(lambda: replicated.jobs() == jobs, 10, "and has caught up")


@pytest.mark.parametrize("replicated", ["30"], indirect=True)
def test_a_frozen_replica_makes_nobody_wait_for_it(replicated: Replicated) -> None:
    jobs = [replicated.job()]
    poll(lambda: replicated.jobs() == jobs, 10, "the replica has the job")
    server = psutil.Process(replicated.replica.process.pid)
    processes = [server, *server.children(recursive=True)]  # a group of its own each
    for process in processes:
        process.suspend()
    try:
        jobs.insert(0, replicated.job())
        with ThreadPoolExecutor(12) as pool:  # more than the API has threads
            began = time.monotonic()
            answers = list(pool.map(lambda _: replicated.jobs(), range(12)))
        assert answers == [jobs] * 12
        assert time.monotonic() - began < 10
        began = time.monotonic()
        assert replicated.jobs() == jobs
        assert time.monotonic() - began < 1, "the next one asks the primary right away"
    finally:
        for process in processes:
            process.resume()
    poll(replicated.serves, 30, "the replica is trusted again")


@pytest.mark.parametrize("replicated", ["5"], indirect=True)
def test_a_replica_that_was_promoted_is_no_replica_any_more(replicated: Replicated) -> None:
    job = replicated.job()
    poll(lambda: replicated.jobs() == [job], 10, "the replica has the job")
    assert replicated.on_replica("SELECT pg_promote()") is True
    poll(lambda: not replicated.serves(), 10, "it is noticed, though nothing was written since")
    replicated.on_replica("UPDATE jobs SET deleted_at = now()")  # its rows are its own now
    assert replicated.jobs() == [job]


def test_fences_grow_over_a_fail_over(make_stack: StackFactory) -> None:
    """Also over a crash: the sequence is logged ahead of what it has given out."""
    stack = make_stack(schedulers=0, workers=0, warden=False, api=False)
    replica = start_replica(stack.postgres, stack.directory, stack.directory)
    try:
        fences = draw_fences(stack.postgres)
        stack.postgres.kill()
        stack.postgres.start()
        fences += draw_fences(stack.postgres)
        with stack.db() as connection:
            connection.execute("CREATE TABLE mark AS SELECT 1 AS one")
        poll(
            lambda: rows_of(replica, "SELECT to_regclass('mark') IS NOT NULL") == [(True,)],
            20,
            "the replica has what was committed after the last fence",
        )
        stack.postgres.kill()
        assert rows_of(replica, "SELECT pg_promote()", admin=True) == [(True,)]
        fences += draw_fences(replica)
        assert len(fences) == 300
        assert fences == sorted(set(fences))
    finally:
        replica.kill()


def draw_fences(server: PostgresServer) -> list[int]:
    """A hundred, committed as in production: test servers acknowledge before they have written."""
    with psycopg.connect(server.url) as connection:
        connection.execute("SET LOCAL synchronous_commit = on")
        drawn = connection.execute("SELECT nextval('run_fence_seq') FROM generate_series(1, 100)")
        return [fence for (fence,) in drawn.fetchall()]


def rows_of(
    server: PostgresServer, query: LiteralString, *, admin: bool = False
) -> list[tuple[Any, ...]]:
    url = server.server.admin_url if admin else server.url
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()
