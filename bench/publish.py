"""How fast are waiting runs placed on workers and their messages sent, beside sending alone?

    python -m bench.publish [--quick] [--runs N] [--rounds N]

20,000 runs of 200 tenants fall due in one second and wait for places. In each round the product's
dispatcher places them on four sessions in fair order and sends a message for each; then bare kombu
sends the very same messages to as many queues, in pipelines of as many commands on one connection,
and does nothing else. Prints a JSON line for each round and one with the medians, and what placing
has cost the database.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from contextlib import nullcontext
from dataclasses import asdict
from statistics import median
from typing import Any
from uuid import uuid4

from bench.database_cost import WATCHED, Cost, cost_of, median_cost
from bench.plan import as_admin
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use

TENANTS, SESSIONS, PIPELINE = 200, 4, 1_000
QUESTION = "place and publish"
TARGET, TARGET_PER_S = 0.5, 3_400

_ADD_RUNS = """
INSERT INTO runs (run_id, scheduled_for, job_id, job_version, tenant_id, region, tier, trigger,
                  status, due_at, ready_at)
SELECT gen_random_uuid(), at, gen_random_uuid(), 1, (%(tenants)s::uuid[])[1 + n %% %(owners)s],
       'default', 'container', 'schedule', 'queued', at, at
  FROM (SELECT date_trunc('second', now()) + interval '40 seconds' AS at) AS due,
       generate_series(1, %(runs)s) AS n
"""


def seed() -> list[str]:
    """Tenants without a limit; returns their ids."""
    from tests.support.factories import make_tenant

    return [str(make_tenant(max_concurrent_runs=100_000).pk) for _ in range(TENANTS)]


def reset(servers: Servers, tenants: list[str], runs: int) -> None:
    """As many waiting runs as asked, and sessions with a place for each."""
    from tests.support.factories import make_session

    with as_admin(servers) as connection:
        connection.execute("TRUNCATE runs, worker_sessions")
        connection.execute(_ADD_RUNS, {"tenants": tenants, "owners": len(tenants), "runs": runs})
        connection.execute("VACUUM (ANALYZE) runs")
        for _ in range(SESSIONS):
            make_session(slots=runs, prepared_limit=runs)
        # Nobody beats for them here.
        connection.execute(
            "UPDATE worker_sessions SET last_seen_at = now() + interval '1 hour',"
            " lease_expires_at = now() + interval '1 hour'"
        )
    servers.redis.flush()


def dispatcher_process() -> None:
    """Dispatch until nothing waits; the parent says when to begin."""
    import django

    django.setup()
    from django.db import connection

    from runs.dispatcher import dispatch_once
    from runs.transport import Message, send
    from scheduler_project.lib.garbage import collect_rarely

    connection.ensure_connection()
    send([Message(uuid4(), 1, "warm", None)])
    collect_rarely()
    print("ready", flush=True)
    input()
    began, placed, sent = time.perf_counter(), 0, 0
    while (counts := dispatch_once())["placed"]:
        placed += counts["placed"]
        sent += counts["sent"]
    taken = time.perf_counter() - began
    print(json.dumps({"seconds": taken, "placed": placed, "sent": sent}), flush=True)


def product(servers: Servers, runs: int) -> tuple[float, Cost]:
    """Place and send with the product; returns the seconds, and the cost."""
    process = servers.python("-m", "bench.publish", "--dispatcher")
    assert _answer(process) == "ready"
    with as_admin(servers) as connection, cost_of(connection) as cost:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        result = json.loads(_answer(process))
        process.wait()
    if result["placed"] != runs or result["sent"] != runs:
        raise RuntimeError(f"of {runs} runs: {result}")
    return float(result["seconds"]), cost


def bare(servers: Servers, runs: int) -> float:
    """Send as many messages by kombu and nothing else; returns the seconds."""
    from celery import Celery
    from kombu import Producer

    app = Celery(broker=servers.redis.url)
    ids = [(str(uuid4()), f"runs.{n % SESSIONS}") for n in range(runs)]
    with app.connection_for_write() as connection:
        channel: Any = connection.channel()
        producer = Producer(channel, serializer="json")
        with channel.conn_or_acquire() as client:
            client.ping()
            began = time.perf_counter()
            for start in range(0, runs, PIPELINE):
                pipeline = client.pipeline(transaction=False)
                # kombu asks this for a client before each command.
                channel.conn_or_acquire = lambda client=None, to=pipeline: nullcontext(to)
                for run_id, queue in ids[start : start + PIPELINE]:
                    message = app.amqp.as_task_v2(
                        f"{run_id}:1", "workers.run", (run_id,), {}, ignore_result=True
                    )
                    producer.publish(
                        message.body, headers=message.headers, exchange="", routing_key=queue,
                        **message.properties,
                    )  # fmt: skip
                pipeline.execute()
            taken = time.perf_counter() - began
            arrived = sum(client.llen(f"runs.{n}") for n in range(SESSIONS))
    if arrived != runs:
        raise RuntimeError(f"{arrived} of {runs} bare messages arrived")
    return taken


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def measure(servers: Servers, runs: int, rounds: int) -> None:
    """All rounds, in turns, and their medians."""
    tenants = seed()
    seconds: dict[str, list[float]] = {"product": [], "bare": []}
    costs: list[Cost] = []
    for number in range(rounds):
        reset(servers, tenants, runs)
        taken, cost = product(servers, runs)
        costs.append(cost)
        seconds["product"].append(taken)
        servers.redis.flush()
        seconds["bare"].append(bare(servers, runs))
        line(f"{QUESTION}: round {number + 1}", product_s=taken, bare_s=seconds["bare"][-1],
             **asdict(cost))  # fmt: skip
    rates = {name: runs / median(taken) for name, taken in seconds.items()}
    line(QUESTION, runs=runs, rounds=rounds, runs_per_s=rates["product"], target_per_s=TARGET_PER_S,
         bare_messages_per_s=rates["bare"], ratio=rates["product"] / rates["bare"], target=TARGET,
         **median_cost(costs).per_run(runs))  # fmt: skip


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 runs")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dispatcher", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.dispatcher:
        dispatcher_process()
        return
    with own_servers(DURABLE | WATCHED) as servers:
        use(servers)
        measure(servers, asked.runs or (5_000 if asked.quick else 20_000), asked.rounds)


if __name__ == "__main__":
    main()
