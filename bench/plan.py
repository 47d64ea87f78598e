"""How fast are due jobs turned into runs, beside what PostgreSQL can write at all?

    python -m bench.plan [--quick] [--jobs N] [--planners N] [--rounds N]

200,000 jobs of 200 tenants, over some hundred schedules, fall due in one second. In each round
the product's planner plans them, in as many scheduler processes as asked, each with its share of
the shards; then the very same rows are written by COPY into the same tables with the same indexes,
and one joined UPDATE moves all cursors: the bare limit, on one connection and on as many as there
are planners. Prints a JSON line for each round and one with the medians.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from statistics import median
from zoneinfo import ZoneInfo

import psycopg

from bench.database_cost import WATCHED, Cost, cost_of, median_cost
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use
from scheduler_project.stack.postgres import DATABASE

TENANTS, SHARDS = 200, 64
LATEST_START_S = 30
QUESTION = "plan"
TARGET = 0.5

_ADD_JOBS = """
WITH added AS (
    INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst,
                      flexible_window_s, misfire, overlap, queue_limit, task, retry,
                      region, tier, enabled, version)
    SELECT gen_random_uuid(), (%(tenants)s::uuid[])[1 + n %% %(owners)s], 'job ' || n, '', '{}',
           jsonb_build_object('time_zone', (%(zones)s::text[])[1 + n %% %(kinds)s]),
           '{}', 0, '{}', 'allow', 10, '{"image": "a/b:1", "timeout_s": 60}', '{}',
           'default', 'container', true, 1
      FROM generate_series(1, %(jobs)s) AS n
    RETURNING job_id
)
INSERT INTO schedule_cursors (job_id, shard, last_wall_time, tzdata)
SELECT job_id, abs(hashtext(job_id::text)) %% 64, '', '' FROM added
"""
# Hourly, and due within a minute: the occurrence after it is out of sight.
_SET_MINUTE = """
UPDATE jobs SET schedule = schedule || jsonb_build_object(
    'cron', extract(minute FROM now() + interval '1 minute')::int || ' * * * *')
"""
_MAKE_DUE = """
UPDATE schedule_cursors SET next_run_at = date_trunc('minute', now() + interval '1 minute'),
       planned_through = NULL, last_wall_time = '', tzdata = ''
"""


def as_admin(servers: Servers) -> psycopg.Connection:
    """A connection that may look at everybody's statistics, and ask for a checkpoint."""
    server = servers.postgres.server
    return psycopg.connect(server.admin_url, dbname=DATABASE, autocommit=True)


def seed(connection: psycopg.Connection, jobs: int) -> None:
    """Add the tenants and jobs, each in one of some hundred zones; each round makes them due."""
    from jobs.domain.schedule import time_zone_names
    from tests.support.factories import make_tenant

    now = datetime.now(UTC)
    zones = [name for name in sorted(time_zone_names()) if is_whole_hours(name, now)]
    tenants = [make_tenant(max_jobs=10**6).pk for _ in range(TENANTS)]
    parameters = {
        "tenants": tenants,
        "owners": len(tenants),
        "zones": zones,
        "kinds": len(zones),
        "jobs": jobs,
    }
    connection.execute(_ADD_JOBS, parameters)


def is_whole_hours(zone: str, at: datetime) -> bool:
    """Whether the zone's minutes are those of UTC, so that an hourly job is due with all others."""
    offset = at.astimezone(ZoneInfo(zone)).utcoffset()
    return offset is not None and not offset % timedelta(hours=1)


def reset(connection: psycopg.Connection) -> None:
    """Forget all runs, make every job due in the coming minute, and settle the tables.

    Begins early in a minute, so that a round doesn't meet the end of it: there the planner keeps
    quiet.
    """
    connection.execute("TRUNCATE runs")
    while not 4 <= datetime.now(UTC).second < LATEST_START_S:
        time.sleep(0.1)
    with connection.transaction():  # of one moment
        connection.execute(_SET_MINUTE)
        connection.execute(_MAKE_DUE)
    connection.execute("VACUUM (ANALYZE) jobs, schedule_cursors")
    connection.execute("CHECKPOINT")


def planner_process(number: int, planners: int) -> None:
    """Plan the shards of one scheduler until nothing is due; the parent says when to begin."""
    import django

    django.setup()
    from django.db import connection

    from runs.planner import Planner, plan_once
    from scheduler_project.lib.garbage import collect_rarely

    shards = [shard for shard in range(SHARDS) if shard % planners == number]
    connection.ensure_connection()
    plan_once([SHARDS])  # warm: everything is imported, nothing is due there
    print("ready", flush=True)
    sys.stdin.readline()
    planner = Planner(lambda: shards)
    collect_rarely()
    began, runs, rounds = time.perf_counter(), 0, 0
    while (counts := planner.run_once())["jobs"]:
        runs += counts["runs"]
        rounds += 1
    taken = time.perf_counter() - began
    print(json.dumps({"runs": runs, "seconds": taken, "rounds": rounds}), flush=True)


def product(servers: Servers, planners: int, jobs: int) -> tuple[float, Cost]:
    """Plan with the product; returns the seconds of the slowest planner, and the cost."""
    processes = [
        servers.python("-m", "bench.plan", "--planner", str(number), "--planners", str(planners))
        for number in range(planners)
    ]
    for process in processes:
        assert _answer(process) == "ready"
    with as_admin(servers) as connection, cost_of(connection) as cost:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(_answer(process)) for process in processes]
        for process in processes:
            process.wait()
    planned = sum(result["runs"] for result in results)
    if planned != jobs:
        raise RuntimeError(f"{planned} runs were planned for {jobs} jobs")
    return max(result["seconds"] for result in results), cost


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def bare(servers: Servers, writers: int) -> float:
    """Write what the product has written, as bare as can be; returns the seconds.

    The rows come ready-made: reading them out again is not measured. Each writer has its share.
    """
    columns = (
        "run_id, scheduled_for, job_id, manual_key, job_version, tenant_id, region, tier,"
        " trigger, status, due_at, ready_at, attempt, failures, lease_losses, fence,"
        " skip_reason, outcome"
    )
    with as_admin(servers) as connection:
        rows: list[bytes] = []
        with connection.cursor().copy(f"COPY (SELECT {columns} FROM runs) TO STDOUT") as copy:
            rows = [bytes(row) for row in copy]
        connection.execute("DROP TABLE IF EXISTS moved")
        connection.execute(
            "CREATE TABLE moved AS SELECT row_number() OVER () %% %s AS writer, job_id,"
            " next_run_at, planned_through, last_wall_time, tzdata FROM schedule_cursors",
            [writers],
        )
        connection.execute("ANALYZE moved")
        reset(connection)
    begin = threading.Barrier(writers + 1)
    threads = [
        threading.Thread(
            target=_bare_writer,
            args=(servers.postgres.server.admin_url, columns, rows[number::writers], number, begin),
        )
        for number in range(writers)
    ]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _bare_writer(
    server: str, columns: str, rows: list[bytes], number: int, begin: threading.Barrier
) -> None:
    data = io.BytesIO(b"".join(rows))
    with psycopg.connect(server, dbname=DATABASE) as connection:
        begin.wait()
        with connection.cursor().copy(f"COPY runs ({columns}) FROM STDIN") as copy:
            while block := data.read(1 << 20):
                copy.write(block)
        connection.execute(
            "UPDATE schedule_cursors c SET next_run_at = m.next_run_at,"
            " planned_through = m.planned_through, last_wall_time = m.last_wall_time,"
            " tzdata = m.tzdata FROM moved m WHERE m.job_id = c.job_id AND m.writer = %s",
            [number],
        )


def measure(servers: Servers, jobs: int, planners: int, rounds: int) -> None:
    """All rounds, in turns, and their medians."""
    seconds: dict[str, list[float]] = {}
    costs: list[Cost] = []
    for number in range(rounds):
        with as_admin(servers) as connection:
            reset(connection)
        taken, cost = product(servers, planners, jobs)
        costs.append(cost)
        seconds.setdefault("product", []).append(taken)
        seconds.setdefault("bare", []).append(bare(servers, 1))
        line(f"{QUESTION}: round {number + 1}", product_s=taken, bare_s=seconds["bare"][-1],
             **asdict(cost))  # fmt: skip
        if planners > 1:
            with as_admin(servers) as connection:
                reset(connection)
            product(servers, planners, jobs)
            seconds.setdefault("bare, as many", []).append(bare(servers, planners))
    rates = {name: jobs / median(taken) for name, taken in seconds.items()}
    facts: dict[str, float] = median_cost(costs).per_run(jobs)
    line(QUESTION, jobs=jobs, planners=planners, rounds=rounds, runs_per_s=rates["product"],
         bare_rows_per_s=rates["bare"], ratio=rates["product"] / rates["bare"], target=TARGET,
         bare_as_many_per_s=rates.get("bare, as many"), **facts)  # fmt: skip


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, 3 rounds")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--planners", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--planner", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.planner is not None:
        planner_process(asked.planner, asked.planners)
        return
    jobs = asked.jobs or (20_000 if asked.quick else 200_000)
    with own_servers(DURABLE | WATCHED) as servers:
        use(servers)
        with as_admin(servers) as connection:
            seed(connection, jobs)
        measure(servers, jobs, asked.planners, asked.rounds)


if __name__ == "__main__":
    main()
