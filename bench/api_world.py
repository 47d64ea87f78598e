"""What bench/api.py measures in: servers of its own, 10 tenants, their jobs and their history.

Owns the sizes, and the rule that product and bare project are started by the same command with
the same settings; only the application differs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psycopg

from runs.partitions import TABLES, create_partition_sql
from scheduler_project.stack.layout import CHECKOUT, MARKER
from scheduler_project.stack.ports import first_free
from scheduler_project.stack.programs import api_command
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.servers import PostgresServer, RedisServer, start_postgres, start_redis
from tests.support.services import test_settings

# Not `synchronous_commit = off` as well: VACUUM would find no page that all can see.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}

TENANTS = [f"tenant-{number}" for number in range(10)]
JOBS, RUNS, DAYS = 10_000, 100_000, 7

_ADD_JOBS = """
WITH numbered AS (
    SELECT n, tenant_id, gen_random_uuid() AS job_id
      FROM generate_series(1, %(jobs)s) AS n
      JOIN (SELECT tenant_id, row_number() OVER (ORDER BY name) AS place FROM tenants
             WHERE name <> 'bare') AS t ON t.place = 1 + n %% %(tenants)s
), added AS (
    INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst,
        flexible_window_s, misfire, overlap, queue_limit, task, retry, region, tier, enabled,
        version)
    SELECT job_id, tenant_id, 'report ' || n, '', '{"team": "billing"}',
           '{"cron": "0 9 * * 1-5", "time_zone": "Asia/Kolkata"}', '{}', 0, '{}', 'skip', 10,
           '{"image": "registry.example/acme/report:3", "args": ["--daily"], "env": {},
             "timeout_s": 900, "resources": {"cpu": 1.0, "memory_mb": 512}}',
           '{"max_attempts": 3, "backoff": "exponential", "base_s": 10.0, "max_s": 3600.0,
             "jitter": "full"}', 'default', 'container', true, 1
      FROM numbered RETURNING job_id
)
INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)
SELECT job_id, 0, now() + interval '1 day', '', '' FROM added
"""
# Ten runs a job, spread over the days: each as it looks when it has succeeded.
_ADD_RUNS = """
INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id, region, tier,
    trigger, status, due_at, ready_at, attempt, failures, lease_losses, fence, created_at,
    placed_at, leased_at, prepared_at, go_at, started_at, finished_at, skip_reason, outcome,
    exit_code)
SELECT gen_random_uuid(), at, job_id, '00000000-0000-0000-0000-000000000000', 1, tenant_id,
       'default', 'container', 'schedule', 'succeeded', at, at, 1, 0, 0, 1, at - interval '75 s',
       at - interval '59.75 s', at - interval '4.99 s', at - interval '4.92 s',
       at + interval '0.004 s', at + interval '0.156 s', at + interval '2.312 s', '', 'succeeded',
       0
  FROM (SELECT job_id, tenant_id, %(until)s - make_interval(secs => random() * %(seconds)s) AS at
          FROM jobs, generate_series(1, %(runs_each)s)) AS spread
"""


@dataclass
class World:
    """The servers, the two APIs and who may call them. `keys` are by tenant name."""

    postgres: PostgresServer
    redis: RedisServer
    environment: dict[str, str]
    directory: Path
    keys: dict[str, str]
    bare_tenant: str

    @contextmanager
    def serving(
        self, application: str, *, processes: int = 2, threads: int = 8, database_url: str = ""
    ) -> Iterator[int]:
        """Serve a WSGI application as `make up` serves the product; yields the port."""
        port = first_free(30_000 + os.getpid() % 10_000)
        *command, _ = api_command(port, processes=processes, threads=threads)
        name = application.partition(".")[0]
        server = Process(
            name,
            [*command, application],
            self.environment
            | {"PROCESS_ROLE": "api"}
            | ({"DATABASE_URL": database_url} if database_url else {}),
            self.directory / f"{name}.log",
        )
        server.start()
        try:
            poll(lambda: _answers(port) or not server.is_alive, 60, f"{application} answers")
            if not server.is_alive:
                raise RuntimeError(f"{application} did not start:\n{server.output()[-3_000:]}")
            yield port
        finally:
            server.stop(within_s=10)  # killed, it would leave its metrics in shared memory


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
    except httpx.HTTPError:
        return False
    return True


@contextmanager
def world(*, is_durable: bool) -> Iterator[World]:
    """Start and seed everything; end and remove it afterwards."""
    directory = CHECKOUT / ".local" / "bench" / str(os.getpid())
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o711)
    servers: list[PostgresServer | RedisServer] = []
    try:
        postgres = start_postgres(directory, directory, {} if is_durable else _NOT_DURABLE)
        servers.append(postgres)
        redis = start_redis(directory, directory)
        servers.append(redis)
        environment = test_settings(directory, postgres.url, redis.url)
        environment |= {MARKER: str(directory)}
        _seed(environment, action="prepare", admin_password="only-for-bench", tenants=TENANTS)
        keys = _seed(environment, action="make_keys", tenants=TENANTS)
        with postgres.connect() as connection:
            bare_tenant = _fill(connection)
        yield World(postgres, redis, environment, directory, keys, bare_tenant)
    finally:
        for server in servers:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _seed(environment: dict[str, str], **request: object) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_project.stack.seed"],
        input=json.dumps(request),
        env={
            "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            **environment,
        },
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def _fill(connection: psycopg.Connection) -> str:
    """Add jobs and runs, and a tenant like the others for the bare inserts; returns its id."""
    today = datetime.now(UTC).date()
    for day in (today - timedelta(days=n) for n in range(DAYS + 1)):
        for table in TABLES:
            connection.execute(create_partition_sql(table, day))
    connection.execute(_ADD_JOBS, {"jobs": JOBS, "tenants": len(TENANTS)})
    connection.execute(
        _ADD_RUNS,
        {
            "until": datetime.now(UTC),
            "seconds": DAYS * 86_400,
            "runs_each": RUNS // JOBS,
        },
    )
    row = connection.execute(
        "INSERT INTO tenants SELECT (jsonb_populate_record(t, jsonb_build_object("
        "'tenant_id', gen_random_uuid(), 'name', 'bare'))).* FROM tenants t LIMIT 1"
        " RETURNING tenant_id::text"
    ).fetchone()
    connection.execute("VACUUM ANALYZE")
    assert row is not None
    return str(row[0])
