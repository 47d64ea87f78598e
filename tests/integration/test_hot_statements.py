"""Each hot statement uses the index it names, on tables that are large enough to matter."""

import re
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from runs import store
from runs.leases import RunRef
from runs.models import NotificationDelivery
from runs.store import _of_their_day
from tenants.models import Tenant
from tests.support.factories import database_now, make_due_job, make_job, make_session, make_tenant
from tests.support.webhooks import make_endpoint

pytestmark = pytest.mark.django_db

RUNS = 20_000


@pytest.fixture
def seeded() -> dict[str, Any]:
    """20,000 finished runs, 500 active ones, 5,000 ahead of their time, 2,000 cursors; analyzed.

    Of 50 tenants: of one alone every index on the tenant would do, by skipping over it.
    """
    tenants = [make_tenant() for _ in range(50)]
    tenant = tenants[0]
    job = make_job(tenant, overlap="skip")
    session = make_session()
    now = database_now()
    insert = (
        "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
        " region, tier, trigger, status, due_at, ready_at, lease_owner, fence, finished_at)"
        " SELECT gen_random_uuid(), t, %s, gen_random_uuid(), 1, (%s)[1 + n %% 50], 'default',"
        " 'container', 'manual', %s, t, t, %s, 1, %s"
        " FROM (SELECT n, now() - make_interval(secs => n) AS t"
        " FROM generate_series(1, %s) AS n) AS times"
    )
    tenant_ids = [t.tenant_id for t in tenants]
    with connection.cursor() as cursor:
        cursor.execute(insert, [job.job_id, tenant_ids, "succeeded", None, now, RUNS])
        cursor.execute(insert, [job.job_id, tenant_ids, "queued", None, None, 480])
        cursor.execute(insert, [job.job_id, tenant_ids, "leased", session, None, 20])
        # Planned ahead, of another job: a withdrawal must not walk through them to find its own.
        cursor.execute(
            insert.replace("now() - make", "now() + make"),
            [make_job(tenant).job_id, tenant_ids, "queued", None, None, 5_000],
        )
        make_due_job(tenant, due_in_s=10)
        cursor.execute(
            "WITH more AS (INSERT INTO jobs (job_id, tenant_id, name, description, labels,"
            " schedule, dst, flexible_window_s, misfire, overlap, queue_limit, task, retry, region,"
            " tier, enabled, version) SELECT gen_random_uuid(), tenant_id, name, description,"
            " labels, schedule, dst, 0, misfire, overlap, 10, task, retry, region, tier, true, 1"
            " FROM jobs, generate_series(1, 2000) WHERE job_id = %s RETURNING job_id)"
            " INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)"
            " SELECT job_id, 0, now() + interval '1 day', '', '' FROM more",
            [job.job_id],
        )
        cursor.execute("ANALYZE")
        cursor.execute("SELECT run_id, scheduled_for FROM runs WHERE status = 'leased' LIMIT 5")
        keys = cursor.fetchall()
    return {
        "job_id": job.job_id,
        "now": now,
        "job_ids": [job.job_id],
        "session_id": session,
        "session_ids": [session],
        "run_ids": [run_id for run_id, _ in keys],
        "scheduled_fors": [at for _, at in keys],
        "fences": [1] * len(keys),
        "sessions": [session] * len(keys),
        "task_versions": [1] * len(keys),
        "holder_ids": [keys[0][0]],
        "holder_times": [keys[0][1]],
        "replaced_bys": [keys[0][0]] * len(keys),
        "replayed_bys": [keys[0][0]] * len(keys),
    }


LIMITS = {
    "limit": 1_000,
    "shards": None,
    "place_lead_s": 60,
    "tzdata": "2999z",
    "prepare_lead_s": 5,
    "places": 1_000,
    "reading": 4_000,
    "kinds": ["default container"],
    "tenant_ids": [],
    "occupied": [],
    "silent_s": 5,
    "max_lease_losses": 5,
    "status": "skipped",
    "reason": "paused",
    "started_ats": [None] * 5,
}

INDEXES = [
    ("claim_due_cursors", "cursors_due"),
    ("read_claimed_jobs", "jobs_pkey"),
    ("waiting_runs", "runs_active"),
    ("waiting_days", "runs_active"),
    ("held_runs", "runs_active"),
    ("place_runs", "pkey"),
    ("lease_runs", "pkey"),
    ("lock_rivals", "pkey"),
    ("replace_runs", "pkey"),
    ("mark_replayed", "pkey"),
    ("read_runs_for_go", "pkey"),
    ("read_runs_for_completion", "pkey"),
    ("record_starts", "pkey"),
    ("hand_back_runs", "pkey"),
    ("runs_of_session", "runs_active"),
    ("reap_running", "runs_active"),
    ("requeue_unstarted", "runs_active"),
    ("withdraw_planned", "run_occurrence_once"),
    ("next_planned", "run_occurrence_once"),
    ("overdue_runs", "runs_active"),
    ("expire_runs", "pkey"),
]
# Executed on the partition of one day; "pkey" ones of runs by key are tried on all days, which is
# where they must prune by themselves.
OF_ONE_DAY = {"waiting_runs"}


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(n for child in plan.get("Plans", []) for n in nodes(child))]


def partition_index(index: str) -> UUID | str:
    """Partitions name their indexes by columns: find the parent's name for each."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " JOIN pg_class p ON p.oid = i.inhparent WHERE c.relname = %s",
            [index],
        )
        row = cursor.fetchone()
    return row[0] if row else index


@pytest.mark.parametrize(("statement", "index"), INDEXES)
def test_a_hot_statement_uses_its_index(statement: str, index: str, seeded: dict[str, Any]) -> None:
    text = store.STATEMENTS[statement]
    if statement in OF_ONE_DAY:
        text = store.of_day(statement, database_now().date())
    with connection.cursor() as cursor:
        parameters = {**LIMITS, **seeded, "until": database_now() + timedelta(seconds=75)}
        cursor.execute("EXPLAIN (FORMAT JSON) " + text, parameters)
        (plan,) = cursor.fetchone()[0]
    found = nodes(plan["Plan"])
    used = {str(partition_index(n["Index Name"])) for n in found if "Index Name" in n}
    whole = [
        n["Relation Name"]
        for n in found
        if n["Node Type"] == "Seq Scan"
        and n["Relation Name"].startswith(("runs_", "jobs", "schedule_cursors"))
        and n["Plan Rows"] > 1_000
    ]

    assert any(index in name for name in used), f"{sorted(used)} instead of {index}"
    assert not whole, f"reads {whole} as a whole"


WORKERS_ASK = [
    "place_runs", "lease_runs", "refused_runs", "read_runs_for_go", "go_runs", "record_starts",
    "read_runs_for_completion", "complete_runs", "end_attempts", "hand_back_runs", "skip_runs",
    "block_runs",
]  # fmt: skip


@pytest.mark.parametrize("statement", WORKERS_ASK)
def test_what_workers_ask_of_one_day_names_no_table_of_all_days(statement: str) -> None:
    """Else each batch is planned for every partition, many times the work itself."""
    text = store.of_day(statement, date(2026, 12, 7))

    assert re.search(r"\bruns_20261207 (AS )?r\b|\brun_attempts_20261207 AS a\b", text)
    assert not re.search(r"\b(runs|run_attempts) (AS )?(r|a|e)\b", text)


def test_runs_of_two_days_or_of_long_ago_are_asked_of_all_days() -> None:
    now = database_now()
    near, next_day, old = (
        RunRef(uuid4(), at) for at in (now, now + timedelta(days=1), now - timedelta(days=9))
    )

    def of(*runs: RunRef) -> str:
        return _of_their_day("lease_runs", runs)

    assert of(near, near) == store.of_day("lease_runs", near.scheduled_for.date())
    assert of(near, next_day) == of(old) == store.STATEMENTS["lease_runs"]


def test_a_look_up_by_both_columns_visits_one_partition(seeded: dict[str, Any]) -> None:
    at = database_now() - timedelta(seconds=1)
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (FORMAT JSON) SELECT * FROM runs WHERE run_id = %s AND scheduled_for = %s",
            [uuid4(), at],
        )
        (plan,) = cursor.fetchone()[0]
    relations = {n["Relation Name"] for n in nodes(plan["Plan"]) if "Relation Name" in n}
    assert len(relations) == 1


# --- notifications --------------------------------------------------------------------------------

NOTIFICATIONS = [
    ("note_run_ends", "pkey"),
    ("note_late_runs", "runs_active"),
    ("take_job_failures", "outbox_unsent"),
    ("fan_out", "outbox_unsent"),
    ("notifier_lag", "deliveries_untried"),
    ("claim_deliveries", "deliveries_due"),
    ("use_claim", "notification_deliveries_pkey"),
    ("report_delivery", "notification_deliveries_pkey"),
    ("unclaim_deliveries", "notification_deliveries_pkey"),
    ("cancel_deliveries", "deliveries_due"),
    ("purge_deliveries", "deliveries_by_age"),
    ("purge_outbox", "outbox_by_age"),
    ("newest_ends_of_job", "run_occurrence_once"),
]
DELIVERY_VALUES = {
    "event": "run.failed",
    "status": "pending",
    "slots": 32,
    "concurrency": 4,
    "claim_s": 60,
    "try_for_s": 86_400,
    "wait_s": 5,
    "status_code": 500,
    "error": "status",
    "days": 30,
    "limit": 500,
}


@pytest.fixture
def told(seeded: dict[str, Any]) -> dict[str, Any]:
    """Beside the runs 20,000 messages that were delivered, 2,000 that are due at 40 webhooks."""
    webhooks = [make_endpoint(tenant, "run.late") for tenant in Tenant.objects.all()[:40]]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox (tenant_id, event, payload, created_at, sent_at)"
            " SELECT %s, 'run.failed', '{}', now() - make_interval(mins => n),"
            " CASE WHEN n > 20 THEN now() END FROM generate_series(1, 22000) AS n",
            [webhooks[0].tenant_id],
        )
        cursor.execute(
            "INSERT INTO notification_deliveries (delivery_id, target_id, tenant_id, webhook_id,"
            " message_id, status, attempts, claim_used, last_error, next_attempt_at, try_until,"
            " finished_at, created_at)"
            " SELECT gen_random_uuid(), w, %s, w, id, s, (id %% 7)::int, false, '',"
            " CASE s WHEN 'pending' THEN created_at END, now(),"
            " CASE s WHEN 'pending' THEN NULL ELSE now() END, created_at"
            " FROM (SELECT id, created_at, (%s::uuid[])[1 + id %% 40] AS w,"
            " CASE WHEN id %% 10 = 0 THEN 'pending' ELSE 'delivered' END AS s FROM outbox"
            " WHERE sent_at IS NOT NULL) AS messages",
            [webhooks[0].tenant_id, [webhook.pk for webhook in webhooks]],
        )
        cursor.execute("ANALYZE")
    keys = list(NotificationDelivery.objects.values_list("pk", flat=True)[:1])
    return seeded | {
        "delivery_id": keys[0],
        "claim": keys[0],
        "delivery_ids": keys,
        "claims": keys,
        "webhook_id": webhooks[1].pk,
        "tenant_id": webhooks[0].tenant_id,
    }


@pytest.mark.parametrize(("statement", "index"), NOTIFICATIONS)
def test_a_statement_of_notifications_uses_its_index(
    statement: str, index: str, told: dict[str, Any]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (FORMAT JSON) " + store.STATEMENTS[statement], told | DELIVERY_VALUES
        )
        (plan,) = cursor.fetchone()[0]
    found = nodes(plan["Plan"])
    used = {str(partition_index(n["Index Name"])) for n in found if "Index Name" in n}
    assert any(name.endswith(index) for name in used), (used, plan)
    big = {"notification_deliveries"} if statement != "purge_outbox" else set()
    scanned = {n["Relation Name"] for n in found if n["Node Type"] == "Seq Scan"}
    assert not scanned & big


def test_whether_anybody_listens_is_asked_by_index(told: dict[str, Any]) -> None:
    """Of 10,000 webhooks a completion looks at those of its runs' tenants."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO webhook_endpoints (webhook_id, tenant_id, url, description, events,"
            " enabled, off_reason, secret, old_secret, version)"
            " SELECT gen_random_uuid(), tenant_id, '', '', '{run.failed}', true, '', '', '', 1"
            " FROM tenants, generate_series(1, 200)"
        )
        cursor.execute("ANALYZE webhook_endpoints")
        for statement in ("read_runs_for_completion", "record_starts"):
            text = "EXPLAIN (FORMAT JSON) " + store.STATEMENTS[statement]
            cursor.execute(text, {**LIMITS, **told})
            (plan,) = cursor.fetchone()[0]
            found = nodes(plan["Plan"])
            assert {n["Node Type"] for n in found if n.get("Alias") == "w"} <= {
                "Index Scan",
                "Index Only Scan",
                "Bitmap Heap Scan",
            }
            assert "webhooks_by_tenant" in {n.get("Index Name") for n in found}
