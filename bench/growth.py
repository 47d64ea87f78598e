"""Does it slow down as its tables grow?

    python -m bench.growth [--quick] [--jobs N] [--runs N] [--due N] [--rounds N]

Two databases side by side: one has 2,000 jobs and 10,000 runs of the last day, the other 2,000,000
jobs and 10,000,000 runs of the last thirty days, seeded set-wise. In each round, in both of them,
50,000 further jobs fall due in one second and one planner plans them; then a tenant's newest 50
runs, and the runs of one job, are asked for through the whole API, without a network. Prints a JSON
line for each round and the medians: the planner shall keep 0.9 of its rate, and a page take 1.5
times as long at most.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

import psycopg

from bench.database_cost import WATCHED
from bench.plan import LATEST_START_S, as_admin, product, seed
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers

QUESTION = "growth"
PLANNER_LIMIT, PAGE_LIMIT = 0.9, 1.5
DAYS = 30
_SMALL_JOBS, _SMALL_RUNS = 2_000, 10_000
_PAGES, _WARM_PAGES = 200, 20
_WRITERS = 2

_NUMBER_JOBS = """
CREATE TABLE past_jobs AS
SELECT n, gen_random_uuid() AS job_id, t.tenant_id
  FROM generate_series(0, %(jobs)s::int - 1) AS n
  JOIN (SELECT tenant_id, row_number() OVER (ORDER BY tenant_id) - 1 AS place FROM tenants) AS t
    ON t.place = n %% (SELECT count(*) FROM tenants)
"""
_ADD_JOBS = """
INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst, flexible_window_s,
    misfire, overlap, queue_limit, task, retry, region, tier, enabled, version)
SELECT job_id, tenant_id, 'report ' || n, '', '{"team": "billing"}',
       '{"cron": "0 9 * * 1-5", "time_zone": "Asia/Kolkata"}', '{}', 0, '{}', 'skip', 10,
       '{"image": "registry.example/acme/report:3", "args": ["--daily"], "env": {},
         "timeout_s": 900, "resources": {"cpu": 1.0, "memory_mb": 512}}',
       '{"max_attempts": 3, "backoff": "exponential", "base_s": 10.0, "max_s": 3600.0,
         "jitter": "full"}', 'default', 'container', true, 1
  FROM past_jobs
"""
# Of the same shards as those that fall due, and after them: the next day or the one after.
_ADD_CURSORS = """
INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)
SELECT job_id, abs(hashtext(job_id::text)) % 64,
       now() + interval '1 day' + make_interval(secs => random() * 86400), '', ''
  FROM past_jobs
"""
# One day's runs, of as many jobs in turn: each as it looks when it has succeeded.
_ADD_RUNS = """
INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id, region, tier,
    trigger, status, due_at, ready_at, attempt, failures, lease_losses, fence, created_at,
    placed_at, leased_at, prepared_at, go_at, started_at, finished_at, skip_reason, outcome,
    exit_code)
SELECT uuidv7(at - clock_timestamp()), at, job_id, '00000000-0000-0000-0000-000000000000', 1,
       tenant_id, 'default', 'container', 'schedule', 'succeeded', at, at, 1, 0, 0, 1,
       at - interval '75 s', at - interval '59.75 s', at - interval '4.99 s',
       at - interval '4.92 s', at + interval '0.004 s', at + interval '0.156 s',
       at + interval '2.312 s', '', 'succeeded', 0
  FROM (SELECT job_id, tenant_id,
               date_trunc('milliseconds', %(day)s + make_interval(secs => random() * 86390)) AS at
          FROM generate_series(%(first)s::int, %(last)s::int) AS run
          JOIN past_jobs ON n = run %% %(jobs)s) AS spread
"""
# Hourly, and due within a minute: the occurrence after it is out of sight.
_MAKE_DUE = """
WITH due AS (
    UPDATE jobs SET schedule = schedule || jsonb_build_object(
        'cron', extract(minute FROM now() + interval '1 minute')::int || ' * * * *')
     WHERE job_id IN (SELECT job_id FROM due_jobs)
    RETURNING job_id
)
UPDATE schedule_cursors c
   SET next_run_at = date_trunc('minute', now() + interval '1 minute'), planned_through = NULL,
       last_wall_time = '', tzdata = ''
  FROM due WHERE c.job_id = due.job_id
"""


@dataclass(frozen=True)
class World:
    """One of the two databases, and what its pages are asked with."""

    name: str
    servers: Servers
    jobs: int
    runs: int
    key: str
    job_id: str


def days_of(runs: int, days: int) -> list[tuple[int, int, int]]:
    """(days ago, first, last) numbers of runs for each day: all of them, spread evenly."""
    cuts = [runs * n // days for n in range(days + 1)]
    return [(n + 1, cuts[n], cuts[n + 1] - 1) for n in range(days)]


@contextmanager
def world(name: str, *, jobs: int, runs: int, due: int, days: int) -> Iterator[World]:
    """Servers with as many jobs and runs; `due` more jobs, of 200 tenants, wait for their round."""
    with own_servers(DURABLE | WATCHED, f"-{name}") as servers:
        key = str(_in_child(servers, "--prepare", f"--due={due}")["key"])
        began = time.monotonic()
        with as_admin(servers) as connection:
            connection.execute("CREATE TABLE due_jobs AS SELECT job_id FROM jobs")
            connection.execute(_NUMBER_JOBS, {"jobs": jobs})
            connection.execute("CREATE UNIQUE INDEX ON past_jobs (n)")
            connection.execute("ANALYZE past_jobs")
            connection.execute(_ADD_JOBS)
            connection.execute(_ADD_CURSORS)
        _add_runs(servers, jobs, days_of(runs, days))
        with as_admin(servers) as connection:
            connection.execute("VACUUM (ANALYZE) jobs, schedule_cursors, runs")
            (job_id,) = connection.execute(
                "SELECT job_id::text FROM past_jobs WHERE n = 0"
            ).fetchone() or ("",)
            (size,) = connection.execute(
                "SELECT pg_database_size(current_database()) / 1e9"
            ).fetchone() or (0,)
        line(f"{QUESTION}: seeded", of=name, jobs=jobs, runs=runs, gigabytes=float(size),
             seconds=time.monotonic() - began)  # fmt: skip
        yield World(name, servers, jobs, runs, key, job_id)


def _add_runs(servers: Servers, jobs: int, days: list[tuple[int, int, int]]) -> None:
    """Write the days, on as many connections as there are processors here."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    failures: list[BaseException] = []

    def write(mine: list[tuple[int, int, int]]) -> None:
        try:
            with as_admin(servers) as connection:
                for ago, first, last in mine:
                    day = today - timedelta(days=ago)
                    connection.execute(
                        _ADD_RUNS, {"day": day, "first": first, "last": last, "jobs": jobs}
                    )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(days[n::_WRITERS],)) for n in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _in_child(servers: Servers, *arguments: str) -> dict[str, float | str]:
    """What a process of this program, on those servers, answers."""
    limits = {"RATE_LIMIT_READ_PER_S": "1000000", "RATE_LIMIT_READ_BURST": "10000000"}
    child = servers.python("-m", "bench.growth", *arguments, **limits)
    said, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"bench.growth {' '.join(arguments)} failed")
    answer: dict[str, float | str] = json.loads(said)
    return answer


def prepare(due: int) -> None:
    """In a child: partitions of the past, 200 tenants with the jobs to be due, a tenant's key."""
    import django

    django.setup()
    from django.db import connection

    from runs.partitions import create_partitions
    from tenants.domain.scope import SCOPES
    from tenants.models import Tenant
    from tenants.services import apikey_issue

    today = datetime.now(UTC).date()
    create_partitions(connection, today=today, days_back=DAYS, days_ahead=2)
    # `seed` makes its own connection: it needs only the address.
    server = connection.settings_dict
    url = (
        f"postgresql://{server['USER']}:{server['PASSWORD']}@{server['HOST']}:{server['PORT']}"
        f"/{server['NAME']}"
    )
    with psycopg.connect(url, autocommit=True) as plain:
        seed(plain, due)
    tenant = Tenant.objects.order_by("tenant_id").first()
    assert tenant is not None
    issued = apikey_issue(tenant=tenant, name="bench", scopes=SCOPES)
    print(json.dumps({"key": issued.text}))


def ask_pages(key: str, job_id: str) -> None:
    """In a child: the median milliseconds of both pages."""
    import django

    django.setup()
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    client = Client(headers={"authorization": f"Bearer {key}"})
    paths = {"tenant": "/v1/runs?limit=50", "job": f"/v1/jobs/{job_id}/runs?limit=50"}
    taken: dict[str, list[float]] = {name: [] for name in paths}
    rows: dict[str, float] = {}
    for _ in range(_WARM_PAGES + _PAGES):
        for name, path in paths.items():
            began = time.perf_counter()
            answer = client.get(path)
            taken[name].append((time.perf_counter() - began) * 1_000)
            if answer.status_code != 200:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.content!r}")
            rows[f"{name}_rows"] = len(answer.json()["runs"])
    print(json.dumps({name: median(ms[_WARM_PAGES:]) for name, ms in taken.items()} | rows))


def planned_per_s(of: World, due: int) -> float:
    """Make the jobs due, plan them, and forget their runs."""
    with as_admin(of.servers) as connection:
        connection.execute("DELETE FROM runs WHERE finished_at IS NULL")
        while not 4 <= datetime.now(UTC).second < LATEST_START_S:
            time.sleep(0.1)
        connection.execute(_MAKE_DUE)
        connection.execute("VACUUM (ANALYZE) schedule_cursors")
        connection.execute("CHECKPOINT")
    taken, _ = product(of.servers, 1, due)
    return due / taken


def measure(worlds: list[World], due: int, rounds: int) -> None:
    """All rounds, in turns, and the medians' ratios."""
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for of in worlds if number % 2 == 0 else reversed(worlds):
            pages = _in_child(of.servers, f"--key={of.key}", f"--job={of.job_id}")
            facts = {
                "planner, runs/s": planned_per_s(of, due),
                "page of a tenant's runs, ms": float(pages["tenant"]),
                "page of a job's runs, ms": float(pages["job"]),
            }
            for figure, value in facts.items():
                found.setdefault((figure, of.name), []).append(value)
            line(f"{QUESTION}: round {number + 1}", of=of.name, tenant_rows=pages["tenant_rows"],
                 job_rows=pages["job_rows"], **facts)  # fmt: skip
    grown = worlds[-1]
    for figure in dict.fromkeys(figure for figure, _ in found):
        small_value, grown_value = (median(found[figure, of.name]) for of in worlds)
        is_rate = figure.startswith("planner")
        line(QUESTION, of=figure, small=small_value, grown=grown_value,
             ratio=grown_value / small_value, limit=PLANNER_LIMIT if is_rate else PAGE_LIMIT,
             more_is_better=is_rate, jobs=grown.jobs, runs=grown.runs, due=due,
             rounds=rounds)  # fmt: skip


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fiftieth of everything, one round")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--due", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    part = 50 if asked.quick else 1
    due = asked.due or max(5_000, 50_000 // part)
    if asked.prepare:
        prepare(due)
        return
    if asked.key:
        ask_pages(asked.key, asked.job)
        return
    jobs, runs = asked.jobs or 2_000_000 // part, asked.runs or 10_000_000 // part
    with (
        world("small", jobs=_SMALL_JOBS, runs=_SMALL_RUNS, due=due, days=1) as small,
        world("grown", jobs=jobs, runs=runs, due=due, days=DAYS) as grown,
    ):
        measure([small, grown], due, asked.rounds or (1 if asked.quick else 3))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
