"""GET /v1/usage: quotas, lag of the last hour, what waits, each run by what it says of itself."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import store, usage
from runs.domain.waiting import WaitReason
from runs.fleet_metrics import read_fleet
from runs.models import Run, RunAttempt
from runs.selectors import run_detail
from tenants.models import Tenant
from tests.support.api_client import ApiClient
from tests.support.factories import (
    database_now,
    make_job,
    make_run,
    make_session,
    place,
    start,
)


def usage_of(client: ApiClient) -> dict[str, Any]:
    answer = client.get("/v1/usage")
    assert answer.status_code == 200, answer.content
    body: dict[str, Any] = answer.json()
    return body


def started_run(tenant: Tenant, *, late_s: float, ago_s: float = 60, **fields: Any) -> Run:
    """A run of so long ago that succeeded, and started so late."""
    run = make_run(make_job(tenant), due_in_s=-ago_s, status="succeeded",
                   finished_at=database_now(), **fields)  # fmt: skip
    Run.objects.filter(run_id=run.run_id).update(started_at=run.due_at + timedelta(seconds=late_s))
    return run


def test_a_tenant_that_does_nothing_uses_nothing(alice: ApiClient) -> None:
    body = usage_of(alice)
    assert {name: quota["used"] for name, quota in body["quotas"].items()} == {
        "max_jobs": 0,
        "max_concurrent_runs": 0,
        "max_runs_per_hour": 0,
    }
    assert body["lag"] == {
        "window_s": 3_600, "runs": 0, "truncated": False,
        "p50_s": None, "p95_s": None, "p99_s": None,
    }  # fmt: skip
    assert body["waiting"]["total"] == 0
    assert set(body["waiting"]["by_reason"]) == {str(reason) for reason in WaitReason}


def test_use_is_shown_against_each_limit(alice: ApiClient, bob: ApiClient, acme: Tenant) -> None:
    Tenant.objects.filter(pk=acme.pk).update(max_jobs=7, max_concurrent_runs=3)
    session = make_session()
    start(make_run(make_job(acme)), session)
    make_run(make_job(acme))
    assert usage_of(alice)["quotas"] == {
        "max_jobs": {"limit": 7, "used": 2},
        "max_concurrent_runs": {"limit": 3, "used": 1},
        "max_runs_per_hour": {"limit": 100_000, "used": 2},
    }
    assert usage_of(alice)["quotas"] == alice.get("/v1/me").json()["quotas"]
    assert usage_of(bob)["quotas"]["max_jobs"]["used"] == 0


def test_the_lag_is_that_of_first_starts_within_the_hour(
    alice: ApiClient, acme: Tenant, globex: Tenant
) -> None:
    for hundredths in range(1, 101):
        started_run(acme, late_s=hundredths / 100)
    started_run(acme, late_s=900, ago_s=3_700)  # longer ago than an hour
    started_run(globex, late_s=900)
    started_run(acme, late_s=900, trigger="backfill")
    make_run(make_job(acme))  # has not started
    lag = usage_of(alice)["lag"]
    assert lag["runs"] == 100
    assert lag["p50_s"] == pytest.approx(0.505)
    assert lag["p95_s"] == pytest.approx(0.9505)
    assert lag["p99_s"] == pytest.approx(0.9901)


def test_a_retried_run_counts_with_its_first_start(alice: ApiClient, acme: Tenant) -> None:
    run = started_run(acme, late_s=500, attempt=3, failures=2)
    for attempt, late_s in ((1, None), (2, 0.25), (3, 500)):
        started_at = None if late_s is None else run.due_at + timedelta(seconds=late_s)
        RunAttempt.objects.create(run_id=run.run_id, scheduled_for=run.scheduled_for,
                                  attempt=attempt, fence=attempt, node="n", started_at=started_at,
                                  session_id=UUID(int=1))  # fmt: skip
    detail = run_detail(acme, run.run_id)
    assert detail is not None
    assert detail.lag is not None
    assert usage_of(alice)["lag"]["p50_s"] == pytest.approx(0.25)
    assert detail.lag.total_s == pytest.approx(0.25), "a run and the sum of all say the same"


def a_run_of_each_kind(tenant: Tenant) -> None:
    """Runs that wait for everything there is to wait for, and some that don't."""
    session = make_session()
    job = make_job(tenant)

    def ready(**fields: Any) -> Run:
        return make_run(job, due_in_s=-100, trigger="manual", **fields)

    for _ in range(3):
        make_run(job, due_in_s=60, trigger="manual")
    make_run(job, due_in_s=60, trigger="manual", failures=1)
    ready(status="blocked")
    ready(status="succeeded", finished_at=database_now())
    start(ready(), session)
    place(ready(), session)
    for _ in range(2):
        ready()


@pytest.mark.parametrize("limit", [2, 100])
def test_each_waiting_run_is_counted_for_the_reason_that_it_shows(
    alice: ApiClient, acme: Tenant, globex: Tenant, limit: int
) -> None:
    for tenant in (acme, globex):
        Tenant.objects.filter(pk=tenant.pk).update(max_concurrent_runs=limit)
        tenant.refresh_from_db()
        a_run_of_each_kind(tenant)
    Tenant.objects.filter(pk=globex.pk).update(max_concurrent_runs=100)
    globex.refresh_from_db()

    def shown(tenant: Tenant) -> dict[str, int]:
        reasons = dict.fromkeys(map(str, WaitReason), 0)
        for run in Run.objects.filter(tenant=tenant):
            detail = run_detail(tenant, run.run_id)
            if detail is not None and detail.waiting_for is not None:
                reasons[str(detail.waiting_for.reason)] += 1
        return reasons

    waiting = usage_of(alice)["waiting"]
    assert waiting["by_reason"] == shown(acme)
    assert waiting["total"] == 8
    assert waiting["by_reason"]["tenant_concurrency" if limit == 2 else "slot"] == 2
    both = {reason: n + shown(globex)[reason] for reason, n in shown(acme).items()}
    fleet = read_fleet()
    assert {labels[0]: value for labels, value in fleet["runs_waiting"]} == both
    ((_, oldest_s),) = fleet["dispatcher_lag_seconds"]
    assert 80 < oldest_s < 130


def test_more_than_it_looks_at_is_said(
    alice: ApiClient, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        started_run(acme, late_s=1)
        make_run(make_job(acme), due_in_s=60)
    monkeypatch.setattr(usage, "MOST_RUNS", 3)
    body = usage_of(alice)
    assert body["lag"]["truncated"]
    assert body["waiting"]["truncated"]
    monkeypatch.setattr(usage, "MOST_RUNS", 4)
    body = usage_of(alice)
    assert not body["lag"]["truncated"]
    assert not body["waiting"]["truncated"]


# Rows of the hour, each at worst on a page of its own, and the edges of all partitions.
MOST_BLOCKS = 2_000


def test_every_query_of_an_answer_uses_an_index_and_reads_little_of_a_large_table(
    alice: ApiClient, acme: Tenant
) -> None:
    job = make_job(acme)
    make_session()
    with connection.cursor() as cursor:
        # A day, 300 tenants; one run in 200 is Acme's: 1,500, of which 60 in the last hour.
        cursor.execute(
            "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
            " region, tier, trigger, status, due_at, ready_at, started_at, finished_at)"
            " SELECT gen_random_uuid(), moment, %s, gen_random_uuid(), 1,"
            " CASE WHEN n %% 200 = 0 THEN %s ELSE md5((n %% 300)::text)::uuid END,"
            " 'default', 'container', 'manual', 'succeeded', moment, moment, moment, moment"
            " FROM (SELECT n, now() - n * interval '0.28 s' AS moment"
            "       FROM generate_series(0, 299999) AS n) AS made",
            [job.job_id, acme.tenant_id],
        )
        cursor.execute("ANALYZE runs, jobs, worker_sessions")
    make_run(job, trigger="manual")  # so that it is asked whether the tenant is full
    with CaptureQueriesContext(connection) as queries:
        assert usage_of(alice)["waiting"]["total"] == 1
    asked = [
        query["sql"] for query in queries if "runs" in query["sql"] or '"jobs"' in query["sql"]
    ]
    assert len(asked) == 6, asked
    for sql in asked:
        nodes = executed(sql)
        for node in nodes:
            # Of a day that has just begun, with one run in it, all may be read.
            if node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith("runs_"):
                assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 1, node
        assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] <= MOST_BLOCKS


def executed(sql: str) -> list[dict[str, Any]]:
    """Every node of the plan of a statement, which is executed."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (answer,) = cursor.fetchone()
    plan = answer if isinstance(answer, list) else json.loads(answer)
    nodes, pending = [], [plan[0]["Plan"]]
    while pending:
        nodes.append(pending.pop())
        pending += nodes[-1].get("Plans", [])
    return nodes


@pytest.mark.parametrize("statement", ["lag_of_tenant", "waiting_of_tenant"])
def test_a_statement_about_usage_ends_at_its_bound(
    acme: Tenant, statement: str, alice: ApiClient
) -> None:
    job = make_job(acme)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
            " region, tier, trigger, status, due_at, ready_at)"
            " SELECT gen_random_uuid(), moment, %s, gen_random_uuid(), 1, %s, 'default',"
            " 'container', 'manual', 'queued', moment, moment"
            " FROM (SELECT now() - n * interval '0.1 s' AS moment"
            "       FROM generate_series(1, 20000) AS n) AS made",
            [job.job_id, acme.tenant_id],
        )
        cursor.execute("ANALYZE runs")
        cursor.execute(
            "EXPLAIN (ANALYZE, FORMAT JSON) " + store.STATEMENTS[statement],
            {"tenant_id": acme.pk, "window_s": 3_600, "most": 500},
        )
        (plan,) = cursor.fetchone()[0]
    nodes, pending = [], [plan["Plan"]]
    while pending:
        nodes.append(pending.pop())
        pending += nodes[-1].get("Plans", [])
    assert max(node["Actual Rows"] for node in nodes) <= 501, nodes
