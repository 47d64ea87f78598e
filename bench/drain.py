"""How fast is a burst of runs that do nothing drained, beside bare Celery?

    python -m bench.drain [--quick] [--runs N] [--rounds N] [--workers N] [--slots N]
                          [--only product,celery]

10,000 runs fall due in one second. A run is a line in a file, with its name and the time: lag,
drain rate, lost and doubled are read from there, for everybody. The product plans, places, sends,
leases, gives the go and completes each, with one scheduler and as many workers as asked; its
containers do nothing (`bench/no_op_container.py`). Bare Celery has as many worker processes, of as
many threads: once with the cure of `lib/due_timers.py`, and once as it comes. Prints a JSON line
for each round, one with the medians of each, and what the product's path from plan to completion
has cost the database.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from bench.database_cost import WATCHED, Cost, cost_of, median_cost
from bench.no_op_log import Drain, judge, lines_of
from bench.plan import as_admin
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use
from scheduler_project.stack import programs
from scheduler_project.stack.layout import CHECKOUT

QUESTION = "drain"
TARGET = 0.5
TENANTS = 50
# From the start of a round to the instant: planned, placed and sent ahead, as in production.
AHEAD_S = 25
_QUIET_S = 6.0
_LONGEST_S = 240.0

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


@contextmanager
def running(
    commands: list[list[str]], environment: dict[str, str], log: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes, with their output in `log`; ended by TERM, then KILL, at the end."""
    with ExitStack() as stack, log.open("ab") as output:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command, env=environment, cwd=CHECKOUT, stdout=output, stderr=output
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
        if time.time() > max(changed_at, due) + _QUIET_S * 5:
            return


def fresh_log(servers: Servers, name: str) -> Path:
    path = servers.directory / f"{name}-{uuid4().hex[:8]}.lines"
    path.touch()
    return path


def product(servers: Servers, sizes: Sizes) -> tuple[Drain, Cost, float]:
    """One burst of the product; the third figure is when the last completion was written."""
    from tests.support.factories import make_tenant

    path = fresh_log(servers, "product")
    due = float(int(time.time()) + AHEAD_S)
    with as_admin(servers) as connection:
        connection.execute(
            "TRUNCATE runs, run_attempts, run_outputs, run_events, worker_sessions,"
            " schedule_cursors, shard_leases"
        )
        connection.execute("DELETE FROM jobs")
    tenants = [make_tenant(max_jobs=10**6, max_concurrent_runs=100_000).pk for _ in range(TENANTS)]
    environment = servers.process_environment() | {
        "NO_OP_LOG": str(path),
        "WORKER_SLOTS": str(sizes.slots),
        "WORKER_PREPARED_LIMIT": str(sizes.prepared),
        "WORKER_DRAIN_S": "1",
    }
    workers = [
        _with_no_op_containers(programs.worker_command(f"w{n}", sizes.slots, sizes.prepared))
        for n in range(sizes.workers)
    ]
    log = servers.directory / "product.log"
    with (
        as_admin(servers) as connection,
        cost_of(connection) as cost,
        a_warden_that_is_alive(Path(environment["DEADLINES_DIR"]), environment["NODE"]),
        running(workers, environment | {"PROCESS_ROLE": "worker"}, log),
    ):
        wait_for(lambda: _accepting(connection) == sizes.workers, 60, "workers accept runs")
        with running(
            [programs.scheduler_command()], environment | {"PROCESS_ROLE": "scheduler"}, log
        ):
            connection.execute(
                _ADD_JOBS,
                {"tenants": tenants, "owners": TENANTS, "jobs": sizes.runs, "due": due},
            )
            if time.time() > due - 5:
                raise RuntimeError("the burst fell due before it was set up")
            wait_for_drain(path, sizes.runs, due)
            wait_for(lambda: _unfinished(connection) == 0, 60, "all runs are completed")
    names = [str(row[0]) for row in connection_rows(servers, "SELECT run_id FROM runs")]
    (last,) = connection_rows(
        servers, "SELECT extract(epoch FROM max(finished_at))::float8 FROM runs"
        " WHERE status = 'succeeded'"
    )  # fmt: skip
    if len(names) != sizes.runs:
        raise RuntimeError(f"{len(names)} runs were planned for {sizes.runs} jobs")
    return judge(path, names, due), cost, last[0] - due


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


def connection_rows(servers: Servers, query: str) -> list[Any]:
    with as_admin(servers) as connection:
        return connection.execute(query).fetchall()


def _accepting(connection: Any) -> int:
    query = "SELECT count(*) FROM worker_sessions WHERE accepting AND ended_at IS NULL"
    return int(connection.execute(query).fetchone()[0])


def _unfinished(connection: Any) -> int:
    query = "SELECT count(*) FROM runs WHERE finished_at IS NULL"
    return int(connection.execute(query).fetchone()[0])


def _with_no_op_containers(command: list[str]) -> list[str]:
    return ["bench.no_op_container" if word == "scheduler_project" else word for word in command]


def celery_as_it_comes(servers: Servers, sizes: Sizes) -> Drain:
    """Bare Celery without the cure of `lib/due_timers.py`."""
    return celery(servers, sizes, due_timers="")


def celery(servers: Servers, sizes: Sizes, due_timers: str = "1") -> Drain:
    """Bare Celery on as many workers of as many threads: one message a run, with its ETA."""
    servers.redis.flush()
    path = fresh_log(servers, "celery")
    environment = servers.process_environment() | {
        "NO_OP_LOG": str(path),
        "DUE_TIMERS": due_timers,
    }
    command = [
        sys.executable, "-m", "celery", "-A", "bench.peers.bare_celery", "worker", "--pool=threads",
        f"--concurrency={sizes.threads}", "--without-gossip", "--without-mingle",
        "--loglevel=WARNING",
    ]  # fmt: skip
    workers = [[*command, f"--hostname=bare{n}@%h"] for n in range(sizes.workers)]
    os.environ |= {"NO_OP_LOG": str(path), "REDIS_URL": servers.redis.url}
    from bench.peers.bare_celery import app, no_op

    names = [str(uuid4()) for _ in range(sizes.runs)]
    with running(workers, environment, servers.directory / "celery.log"):
        wait_for(lambda: _consumers(servers) >= sizes.workers, 60, "Celery's workers consume")
        due = float(int(time.time()) + AHEAD_S + sizes.runs // 800)
        eta = datetime.fromtimestamp(due, UTC)
        with app.producer_pool.acquire(block=True) as producer:
            for name in names:
                no_op.apply_async((name,), eta=eta, producer=producer)
        if time.time() > due - 2:
            raise RuntimeError("the burst fell due before it was sent")
        wait_for_drain(path, sizes.runs, due)
    return judge(path, names, due)


def _consumers(servers: Servers) -> int:
    """How many connections wait for messages."""
    import redis

    with redis.Redis.from_url(servers.redis.url) as client:
        return sum(each["cmd"].lower() == "brpop" for each in client.client_list())


def measure(servers: Servers, sizes: Sizes, rounds: int, contenders: list[str]) -> None:
    """All rounds, in turns, and the medians of each contender."""
    everybody: dict[str, Callable[[Servers, Sizes], Drain]] = {
        "celery": celery,
        "celery as it comes": celery_as_it_comes,
    }
    drains: dict[str, list[Drain]] = {}
    costs: list[Cost] = []
    for number in range(rounds):
        for name in contenders:
            if name == "product":
                drain, cost, completed_s = product(servers, sizes)
                costs.append(cost)
                more: dict[str, Any] = {"completed_s": completed_s} | asdict(cost)
            else:
                drain, more = everybody[name](servers, sizes), {}
            drains.setdefault(name, []).append(drain)
            line(f"{QUESTION}: round {number + 1}", of=name, **asdict(drain), **more)
    rates = {name: median(d.runs_per_s for d in of) for name, of in drains.items()}
    for name, of in drains.items():
        facts: dict[str, Any] = {
            "lag_p50_s": median(d.lag_p50_s for d in of),
            "lag_p99_s": median(d.lag_p99_s for d in of),
            "drained_s": median(d.drained_s for d in of),
            "runs_per_s": rates[name],
            "lost": sum(d.lost for d in of),
            "doubled": sum(d.doubled for d in of),
            "early": sum(d.early for d in of),
        }
        if name == "product":
            facts |= median_cost(costs).per_run(sizes.runs)
            if "celery" in rates:
                facts |= {"ratio": rates[name] / rates["celery"], "target": TARGET}
        line(QUESTION, of=name, rounds=rounds, **asdict(sizes), **facts)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 runs, one round")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--prepared", type=int, default=96)
    parser.add_argument("--only", type=lambda words: words.split(","))
    asked = parser.parse_args()
    everybody = ["product", "celery"]
    if not asked.quick:
        everybody.append("celery as it comes")
    sizes = Sizes(
        asked.runs or (2_000 if asked.quick else 10_000),
        asked.workers,
        asked.slots,
        asked.prepared,
    )
    rounds = asked.rounds or (1 if asked.quick else 3)
    with own_servers(DURABLE | WATCHED) as servers:
        use(servers)
        measure(servers, sizes, rounds, asked.only or everybody)


if __name__ == "__main__":
    main()
