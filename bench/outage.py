"""After an hour's outage: what does catching up cost, and does live work wait for it?

    python -m bench.outage [jobs]

Minute jobs over some hundred schedules, all an hour late, in a database of its own (DATABASE_URL
names the server's; needs the right to create one). Prints JSON lines: planning, with rows and spans
a job, and then the order in which a few slots take the work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from uuid import uuid4

TENANTS = 20
SLOTS = 500


def report(question: str, **facts: Any) -> None:
    print(json.dumps({"question": question, **facts}), flush=True)


def make_jobs(jobs: int) -> None:
    """Minute jobs of all tenants, in zones that differ, whose cursors stand an hour back."""
    from django.db import connection

    from jobs.domain.schedule import time_zone_names
    from tests.support.factories import make_tenant

    zones = sorted(time_zone_names())[:200]
    tenants = [make_tenant(max_jobs=10**6).pk for _ in range(TENANTS)]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst,
                              flexible_window_s, misfire, overlap, queue_limit, task, retry,
                              region, tier, enabled, version)
            SELECT gen_random_uuid(), (%s::uuid[])[1 + n %% %s], '', '', '{}',
                   jsonb_build_object('cron', '* * * * *',
                                      'time_zone', (%s::text[])[1 + n %% %s]),
                   '{}', 0, '{}', 'skip', 10,
                   '{"image": "a/b:1", "timeout_s": 60}', '{}', 'default', 'container', true, 1
            FROM generate_series(1, %s) AS n
            """,
            [tenants, len(tenants), zones, len(zones), jobs],
        )
        cursor.execute(
            "INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)"
            " SELECT job_id, 0, date_trunc('minute', now()) - interval '1 hour', '', '' FROM jobs"
        )
        cursor.execute("ANALYZE")


def planning(jobs: int) -> None:
    from django.conf import settings

    from jobs.models import MissedSpan
    from runs.models import Run
    from runs.planner import plan_once

    started = time.perf_counter()
    first_live: float | None = None
    rounds = 0
    while plan_once().get("jobs"):
        rounds += 1
        first_live = first_live or time.perf_counter() - started
    taken = time.perf_counter() - started
    spans = MissedSpan.objects.count()
    runs = Run.objects.count()
    report(
        "an hour's outage, planned", jobs=jobs, seconds=round(taken, 1),
        jobs_per_s=round(jobs / taken), batches_of=settings.PLANNER_BATCH, rounds=rounds,
        first_runs_after_s=round(first_live or 0, 2),
        spans_per_job=spans / jobs, rows_per_job=runs / jobs,
        caught_up_per_job=Run.objects.filter(trigger="catch_up").count() / jobs,
    )  # fmt: skip


def order() -> None:
    """Which runs a worker with a few slots gets, while the backlog stands."""
    from django.db import connection

    from runs import transport
    from runs.dispatcher import dispatch_once
    from runs.models import Run
    from tests.support.factories import database_now, make_session

    with connection.cursor() as cursor:  # statistics as autovacuum keeps them
        cursor.execute("ANALYZE")
    backlog = Run.objects.filter(trigger="catch_up").count()
    make_session(slots=SLOTS, prepared_limit=SLOTS)
    transport.send = lambda messages: len(messages)  # rows only
    started = time.perf_counter()
    dispatch_once()
    taken = time.perf_counter() - started
    placed = Run.objects.filter(lease_owner__isnull=False)
    late = placed.filter(trigger="catch_up").count()
    live = placed.exclude(trigger="catch_up").count()
    waiting = Run.objects.exclude(trigger="catch_up").filter(
        lease_owner=None, ready_at__lte=database_now()
    )
    report(
        "live work first", backlog=backlog, slots=SLOTS, live_placed=live, caught_up_placed=late,
        due_live_left_waiting=waiting.count(), round_ms=round(taken * 1000),
    )  # fmt: skip


def main(jobs: int) -> None:
    import psycopg

    base = os.environ["DATABASE_URL"]
    name = f"bench_{uuid4().hex[:8]}"
    server = base.rpartition("/")[0] + "/postgres"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    os.environ["DATABASE_URL"] = base.rpartition("/")[0] + f"/{name}"
    try:
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        make_jobs(jobs)
        planning(jobs)
        order()
        connections.close_all()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
