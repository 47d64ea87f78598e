"""GET /v1/runs and /v1/jobs/{id}/runs: filters, pages, and the index behind each page."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.models import Run
from tenants.models import Tenant
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import database_now, make_due_job, make_job, make_run


def listed(client: ApiClient, path: str) -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return [run["run_id"] for run in answer.json()["runs"]]


def ids(*runs: Run) -> list[str]:
    return [str(run.run_id) for run in runs]


def test_runs_are_listed_latest_first_and_only_the_tenant_s(
    alice: ApiClient, bob: ApiClient, acme: Tenant, globex: Tenant
) -> None:
    job, other = make_job(acme), make_job(acme)
    first, second = make_run(job, due_in_s=-60), make_run(job, due_in_s=-30)
    of_other = make_run(other, due_in_s=-45)
    of_bob = make_run(make_job(globex))
    assert listed(alice, f"/v1/jobs/{job.job_id}/runs") == ids(second, first)
    assert listed(alice, "/v1/runs") == ids(second, of_other, first)
    assert listed(bob, "/v1/runs") == ids(of_bob)
    assert_problem(bob.get(f"/v1/jobs/{job.job_id}/runs"), 404, "not_found")


def test_filters_narrow_and_several_narrow_together(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme)
    now = database_now().replace(microsecond=0)
    end: dict[str, Any] = {"finished_at": now}
    old = make_run(job, scheduled_for=now - timedelta(hours=2), status="failed", **end)
    by_hand = make_run(job, scheduled_for=now - timedelta(hours=1), trigger="manual")
    new = make_run(job, scheduled_for=now, status="failed", **end)
    path = f"/v1/jobs/{job.job_id}/runs"
    an_hour_ago = (now - timedelta(hours=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert listed(alice, f"{path}?status=failed") == ids(new, old)
    assert listed(alice, f"{path}?trigger=manual") == ids(by_hand)
    assert listed(alice, f"{path}?from={an_hour_ago}") == ids(new, by_hand)
    assert listed(alice, f"{path}?to={an_hour_ago}") == ids(old)
    assert listed(alice, f"/v1/runs?status=failed&from={an_hour_ago}") == ids(new)
    assert listed(alice, f"{path}?status=failed&trigger=manual") == []


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("status=exploded", "status", "invalid_choice"),
        ("status=FAILED", "status", "invalid_choice"),
        ("trigger=cron", "trigger", "invalid_choice"),
        ("from=yesterday", "from", "invalid_instant"),
        ("from=2026-01-01T00:00:00", "from", "invalid_instant"),
        ("to=2026-01-01T00:00:00+01:00", "to", "invalid_instant"),  # an unescaped + is a space
        ("to=0001-01-01T00:00:00%2B01:00", "to", "invalid_instant"),
        ("limit=-1", "limit", "invalid"),
        ("limit=ten", "limit", "invalid"),
        ("cursor=a&cursor=b", "cursor", "repeated"),
        ("cursor=%00", "cursor", "invalid_character"),
        ("state=failed", "state", "unknown_field"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_by_name(
    alice: ApiClient, query: str, field: str, code: str
) -> None:
    problem = assert_problem(alice.get(f"/v1/runs?{query}"), 400, "invalid_request")
    assert (problem["errors"][0]["field"], problem["errors"][0]["code"]) == (field, code)


def test_far_away_times_are_only_empty_pages(alice: ApiClient, acme: Tenant) -> None:
    make_run(make_job(acme))
    assert listed(alice, "/v1/runs?from=9999-12-31T23:59:59Z") == []
    assert listed(alice, "/v1/runs?to=0001-01-01T00:00:00Z") == []


def test_runs_that_change_their_status_while_paging_are_neither_lost_nor_repeated(
    alice: ApiClient, acme: Tenant
) -> None:
    job = make_job(acme)
    moment = database_now().replace(microsecond=0)
    runs = [make_run(job, scheduled_for=moment, trigger="manual") for _ in range(9)]
    path = f"/v1/jobs/{job.job_id}/runs?limit=2"
    page = alice.get(path).json()
    seen = [run["run_id"] for run in page["runs"]]
    while page["next_cursor"]:
        Run.objects.filter(run_id__in=seen).update(status="skipped", skip_reason="overlap",
                                                   finished_at=moment)  # fmt: skip
        page = alice.get(f"{path}&cursor={page['next_cursor']}").json()
        seen += [run["run_id"] for run in page["runs"]]
    assert len(seen) == 9
    assert set(seen) == set(ids(*runs))


def test_a_cursor_of_another_job_or_of_all_jobs_is_refused(alice: ApiClient, acme: Tenant) -> None:
    job, other = make_job(acme), make_job(acme)
    for _ in range(3):
        make_run(job, trigger="manual")
    cursor = alice.get(f"/v1/jobs/{job.job_id}/runs?limit=1").json()["next_cursor"]
    of_all = alice.get("/v1/runs?limit=1").json()["next_cursor"]
    for path in (
        f"/v1/jobs/{other.job_id}/runs?cursor={cursor}",
        f"/v1/jobs/{job.job_id}/runs?cursor={of_all}",
        f"/v1/jobs/{job.job_id}/runs?status=queued&cursor={cursor}",
        f"/v1/runs?cursor={cursor}",
    ):
        assert_problem(alice.get(path), 400, "invalid_cursor")


# --- what a page costs --------------------------------------------------------------------------

# Rows and index entries of a page of 50, and a look at the edge of every other partition.
_MOST_BLOCKS = 400


def queries_of(client: ApiClient, path: str) -> list[str]:
    """The statements on runs that a request costs."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(path).status_code == 200
    return [query["sql"] for query in queries if '"runs"' in query["sql"]]


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


def assert_cheap(sql: str) -> set[str]:
    """An index answers, and few blocks are touched; returns the partitions looked into."""
    nodes = executed(sql)
    for node in nodes:
        # An empty partition has no index worth entering, nor has a day that has just begun.
        if node["Node Type"] == "Seq Scan":
            assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 1, node
    assert any("Index" in node["Node Type"] for node in nodes)
    assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] <= _MOST_BLOCKS, nodes[0]
    return {node["Relation Name"] for node in nodes if "Relation Name" in node}


def test_a_page_of_a_million_runs_is_one_query_answered_by_an_index(
    alice: ApiClient, acme: Tenant
) -> None:
    job = make_due_job(acme, due_in_s=60)
    with connection.cursor() as cursor:
        # Two days, 2,000 jobs, 300 tenants: one in forty runs is Acme's, one in 400 of the job.
        cursor.execute(
            "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
            " region, tier, trigger, status, due_at, ready_at, finished_at)"
            " SELECT gen_random_uuid(), moment,"
            " CASE WHEN n %% 400 = 0 THEN %s ELSE md5((n %% 2000)::text)::uuid END,"
            " gen_random_uuid(), 1,"
            " CASE WHEN n %% 40 = 0 THEN %s ELSE md5((n %% 300)::text)::uuid END,"
            " 'default', 'container', 'manual', 'succeeded', moment, moment, moment"
            " FROM (SELECT n, date_trunc('second', now()) - n * interval '0.12 s' AS moment"
            "       FROM generate_series(0, 999999) AS n) AS made",
            [job.job_id, acme.tenant_id],
        )
        cursor.execute("ANALYZE runs")
    tomorrow = f"runs_{datetime.now(UTC) + timedelta(days=1):%Y%m%d}"
    for path in (
        f"/v1/jobs/{job.job_id}/runs?limit=50",
        f"/v1/jobs/{job.job_id}/runs?limit=50&status=succeeded",
        "/v1/runs?limit=50",
        "/v1/runs?limit=50&status=succeeded",
    ):
        (sql,) = queries_of(alice, path)
        assert_cheap(sql)
        following = f"{path}&cursor={alice.get(path).json()['next_cursor']}"
        (sql,) = queries_of(alice, following)
        # The cursor prunes: days after it aren't looked into.
        assert tomorrow not in assert_cheap(sql)

    run = make_run(job, trigger="manual", due_in_s=-3_600)  # of a day that has many
    for sql in queries_of(alice, f"/v1/runs/{run.run_id}"):
        # The id says the day: one partition is looked into.
        assert len(assert_cheap(sql)) == 1
