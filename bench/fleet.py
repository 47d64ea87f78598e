"""The product's own processes on a benchmark's servers; their containers do nothing.

Owns how a burst is made: as many jobs as asked, of some tenants, all for the one same instant.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from bench.no_op_log import lines_of
from bench.plan import as_admin
from bench.servers import Servers
from scheduler_project.stack import programs
from tests.support.processes import Process

TENANTS = 50
_READY_S = 60
_LONGEST_S = 240.0
# So long without a start, and what has not run by then is lost.
_QUIET_S = 30.0

_ADD_JOBS = """
WITH added AS (
    INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst,
                      flexible_window_s, misfire, overlap, queue_limit, task, retry,
                      region, tier, enabled, version)
    SELECT gen_random_uuid(), (%(tenants)s::uuid[])[1 + n %% %(owners)s], 'job ' || n, '', '{}',
           jsonb_build_object('at', to_char(to_timestamp(%(due)s) AT TIME ZONE 'UTC',
                                            'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
           '{}', 0, '{}', 'allow', 10, '{"image": "a/b:1", "timeout_s": 60}', '{}',
           'default', 'container', true, 1
      FROM generate_series(1, %(jobs)s) AS n
    RETURNING job_id
)
INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)
SELECT job_id, abs(hashtext(job_id::text)) %% 64, to_timestamp(%(due)s), '', '' FROM added
"""


@dataclass(frozen=True)
class Sizes:
    """Of one round: how many runs, worker processes, and slots of each."""

    runs: int
    workers: int
    slots: int
    prepared: int

    @property
    def threads(self) -> int:
        return self.slots + self.prepared


@dataclass
class Fleet:
    """Processes to kill() and start(); `starts` is the file with a line for each container."""

    starts: Path
    workers: list[Process] = field(default_factory=list)
    schedulers: list[Process] = field(default_factory=list)


@contextmanager
def fleet_on(
    servers: Servers,
    sizes: Sizes,
    *,
    schedulers: int = 1,
    scheduler_app: str = "scheduler_project",
    **settings: str,
) -> Iterator[Fleet]:
    """Workers that accept runs; the schedulers are the caller's to start. All end with the block.

    `settings` are of all these processes; `scheduler_app` is the schedulers' Celery application.
    """
    fleet = Fleet(fresh_log(servers, "product"))
    environment = servers.process_environment() | {
        "NO_OP_LOG": str(fleet.starts),
        "WORKER_SLOTS": str(sizes.slots),
        "WORKER_PREPARED_LIMIT": str(sizes.prepared),
        "WORKER_DRAIN_S": "1",
        **settings,
    }
    log = servers.directory / "product.log"
    for number in range(sizes.workers):
        command = programs.worker_command(f"w{number}", sizes.slots, sizes.prepared)
        role = environment | {"PROCESS_ROLE": "worker"}
        with_no_op = _of_application(command, "bench.no_op_container")
        fleet.workers.append(Process(f"worker-{number}", with_no_op, role, log))
    for number in range(schedulers):
        command = _of_application(programs.scheduler_command(), scheduler_app)
        role = environment | {"PROCESS_ROLE": "scheduler"}
        fleet.schedulers.append(Process(f"scheduler-{number}", command, role, log))
    with (
        as_admin(servers) as connection,
        a_warden_that_is_alive(Path(environment["DEADLINES_DIR"]), environment["NODE"]),
        ended_together([*fleet.schedulers, *fleet.workers]),
    ):
        for worker in fleet.workers:
            worker.start()
        wait_for(lambda: _accepting(connection) == sizes.workers, _READY_S, "workers accept runs")
        yield fleet


def _of_application(command: list[str], application: str) -> list[str]:
    return [application if word == "scheduler_project" else word for word in command]


@contextmanager
def ended_together(processes: Sequence[Process]) -> Iterator[None]:
    """End them in order after the block, those that run by then."""
    with ExitStack() as stack:
        for process in reversed(processes):
            stack.callback(process.stop, 20)
        yield


@contextmanager
def a_warden_that_is_alive(directory: Path, node: str) -> Iterator[None]:
    """The stamps of a warden. The real one guards an engine's containers, and there are none."""
    from workers.deadlines import write_warden_alive

    directory.mkdir(parents=True, exist_ok=True)
    over = threading.Event()

    def stamp() -> None:
        while not over.wait(1.0):
            write_warden_alive(directory, node=node, engine_answers=True)

    write_warden_alive(directory, node=node, engine_answers=True)
    thread = threading.Thread(target=stamp, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def clear(connection: psycopg.Connection) -> None:
    """Forget all jobs, runs, sessions and leases of an earlier round."""
    connection.execute(
        "TRUNCATE runs, run_attempts, run_outputs, run_events, worker_sessions,"
        " schedule_cursors, shard_leases"
    )
    connection.execute("DELETE FROM jobs")


def make_tenants(count: int = TENANTS) -> list[UUID]:
    """Tenants without limits; this process must be one of the product's (`bench.servers.use`)."""
    from tests.support.factories import make_tenant

    return [make_tenant(max_jobs=10**6, max_concurrent_runs=100_000).pk for _ in range(count)]


def add_jobs(connection: psycopg.Connection, tenants: list[UUID], jobs: int, due: float) -> None:
    """Jobs for one instant, a full second of the epoch, as the API would have left them."""
    connection.execute(
        _ADD_JOBS, {"tenants": tenants, "owners": len(tenants), "jobs": jobs, "due": due}
    )


def wait_for(check: Callable[[], bool], within_s: float, what: str) -> None:
    """Look until it is so; RuntimeError after `within_s`."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)


def wait_for_drain(path: Path, runs: int, due: float) -> None:
    """Until all have run, or none has for a while: what has not run by then is lost."""
    deadline = due + _LONGEST_S
    seen, changed_at = 0, time.time()
    while time.time() < deadline:
        time.sleep(0.2)
        if (now_seen := lines_of(path)) != seen:
            seen, changed_at = now_seen, time.time()
        if seen >= runs and time.time() > changed_at + 1:  # a doubled one may still come
            return
        if time.time() > max(changed_at, due) + _QUIET_S:
            return


def wait_until_completed(connection: psycopg.Connection) -> None:
    """Until every run has its last state."""
    wait_for(lambda: _unfinished(connection) == 0, 60, "all runs are completed")


def fresh_log(servers: Servers, name: str) -> Path:
    """An empty file for the lines of one round."""
    path = servers.directory / f"{name}-{uuid4().hex[:8]}.lines"
    path.touch()
    return path


def one(connection: psycopg.Connection, query: str) -> Any:
    """The one value of a statement."""
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def _accepting(connection: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM worker_sessions WHERE accepting AND ended_at IS NULL"
    return int(one(connection, query))


def _unfinished(connection: psycopg.Connection) -> int:
    return int(one(connection, "SELECT count(*) FROM runs WHERE finished_at IS NULL"))
