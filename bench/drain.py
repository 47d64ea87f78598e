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
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any
from uuid import UUID, uuid4

from bench.database_cost import WATCHED, Cost, cost_of, median_cost
from bench.fleet import (
    Sizes,
    add_jobs,
    clear,
    ended_together,
    fleet_on,
    fresh_log,
    make_tenants,
    one,
    wait_for,
    wait_for_drain,
    wait_until_completed,
)
from bench.no_op_log import Drain, judge
from bench.plan import as_admin
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use
from tests.support.processes import Process

QUESTION = "drain"
TARGET = 0.5
# From the start of a round to the instant: planned, placed and sent ahead, as in production.
AHEAD_S = 25


def product(servers: Servers, sizes: Sizes, tenants: list[UUID]) -> tuple[Drain, Cost, float]:
    """One burst of the product; the third figure is when the last completion was written."""
    with as_admin(servers) as connection:
        clear(connection)
        with cost_of(connection) as cost, fleet_on(servers, sizes) as fleet:
            due = float(int(time.time()) + AHEAD_S)
            for scheduler in fleet.schedulers:
                scheduler.start()
            add_jobs(connection, tenants, sizes.runs, due)
            wait_for_drain(fleet.starts, sizes.runs, due)
            wait_until_completed(connection)
        names = [str(run_id) for (run_id,) in connection.execute("SELECT run_id FROM runs")]
        last = one(
            connection,
            "SELECT extract(epoch FROM max(finished_at))::float8 FROM runs"
            " WHERE status = 'succeeded'",
        )
    if len(names) != sizes.runs:
        raise RuntimeError(f"{len(names)} runs were planned for {sizes.runs} jobs")
    return judge(fleet.starts, names, due), cost, last - due


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
    workers = [
        Process(
            f"bare-{n}",
            [*command, f"--hostname=bare{n}@%h"],
            environment,
            servers.directory / "celery.log",
        )
        for n in range(sizes.workers)
    ]
    os.environ |= {"NO_OP_LOG": str(path), "REDIS_URL": servers.redis.url}
    from bench.peers.bare_celery import app, no_op

    names = [str(uuid4()) for _ in range(sizes.runs)]
    with ended_together(workers):
        for worker in workers:
            worker.start()
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
    tenants = make_tenants() if "product" in contenders else []
    drains: dict[str, list[Drain]] = {}
    costs: list[Cost] = []
    for number in range(rounds):
        for name in contenders:
            if name == "product":
                drain, cost, completed_s = product(servers, sizes, tenants)
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
