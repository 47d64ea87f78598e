"""GET /v1/jobs: filters, pages, and what a page costs."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from tenants.models import Tenant
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import make_due_job, make_run, make_tenant
from tests.support.job_bodies import good_body


def names(client: ApiClient, query: str = "") -> list[str]:
    """The names on the first page, as listed."""
    answer = client.get(f"/v1/jobs?limit=50{query}")
    assert answer.status_code == 200, answer.content
    return [job["name"] for job in answer.json()["jobs"]]


def create(client: ApiClient, name: str, **changes: Any) -> None:
    assert client.post("/v1/jobs", good_body(name=name, **changes)).status_code == 201


def test_filters_narrow_and_several_narrow_together(alice: ApiClient, bob: ApiClient) -> None:
    create(alice, "plain")
    create(alice, "off", enabled=False, labels={"team": "billing"})
    create(alice, "two", labels={"team": "billing", "env": "prod:eu"})
    create(bob, "bob's", labels={"team": "billing"})

    assert set(names(alice)) == {"plain", "off", "two"}
    assert names(alice, "&enabled=false") == ["off"]
    assert set(names(alice, "&enabled=true")) == {"plain", "two"}
    assert names(alice, "&name=plain") == ["plain"]
    assert names(alice, "&name=plai") == []
    assert set(names(alice, "&label=team:billing")) == {"off", "two"}
    assert names(alice, "&label=team:billing&label=env:prod:eu") == ["two"]
    assert names(alice, "&label=team:billing&enabled=true") == ["two"]
    assert names(alice, "&label=team:") == []


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("enabled=yes", "enabled", "invalid_choice"),
        ("enabled=TRUE", "enabled", "invalid_choice"),
        ("label=team", "label", "invalid"),
        ("label=:x", "label", "invalid"),
        ("label=a:1&label=a:2", "label", "repeated"),
        ("name=a&name=b", "name", "repeated"),
        ("limit=0", "limit", "invalid"),
        ("limit=201", "limit", "invalid"),
        ("limit=1.5", "limit", "invalid"),
        ("status=failed", "status", "unknown_field"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_by_name(
    alice: ApiClient, query: str, field: str, code: str
) -> None:
    problem = assert_problem(alice.get(f"/v1/jobs?{query}"), 400, "invalid_request")
    assert (problem["errors"][0]["field"], problem["errors"][0]["code"]) == (field, code)


def test_pages_hold_each_job_once_newest_first(alice: ApiClient, acme: Tenant) -> None:
    # In one transaction all have the same creation time: the id decides among them.
    expected = {str(make_due_job(acme, due_in_s=60).job_id) for _ in range(7)}
    seen, cursor = [], ""
    while cursor is not None:
        page = alice.get(f"/v1/jobs?limit=3{cursor and '&cursor='}{cursor}").json()
        assert len(page["jobs"]) <= 3
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
    assert len(seen) == 7
    assert set(seen) == expected


def test_a_cursor_belongs_to_its_list_filters_and_tenant(
    alice: ApiClient, bob: ApiClient, acme: Tenant
) -> None:
    for _ in range(3):
        make_due_job(acme, due_in_s=60)
    cursor = alice.get("/v1/jobs?limit=1").json()["next_cursor"]
    assert alice.get(f"/v1/jobs?limit=2&cursor={cursor}").status_code == 200
    for client, path in (
        (alice, f"/v1/jobs?enabled=true&cursor={cursor}"),
        (alice, f"/v1/jobs?label=a:b&cursor={cursor}"),
        (alice, f"/v1/runs?cursor={cursor}"),
        (bob, f"/v1/jobs?cursor={cursor}"),
        (alice, f"/v1/jobs?cursor={cursor[:-2]}AA"),
    ):
        assert_problem(client.get(path), 400, "invalid_cursor")


def test_a_page_costs_the_same_however_many_jobs_it_shows(alice: ApiClient, acme: Tenant) -> None:
    def queries_of_a_page(size: int) -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert len(alice.get(f"/v1/jobs?limit={size}").json()["jobs"]) == size
        return len([q for q in queries if "api_keys" not in q["sql"]])

    for _ in range(20):
        make_run(make_due_job(acme, due_in_s=60), due_in_s=30)
    Job.objects.filter(tenant=acme).update(schedule={"cron": "* * * * *", "time_zone": "UTC"})
    assert queries_of_a_page(2) == queries_of_a_page(20) == 1


def test_planned_occurrences_cost_one_query_for_the_whole_page(
    alice: ApiClient, acme: Tenant
) -> None:
    for _ in range(5):
        job = make_due_job(acme, due_in_s=90)
        job.schedulecursor.planned_through = job.schedulecursor.next_run_at
        job.schedulecursor.save()
        make_run(job, due_in_s=30)
    with CaptureQueriesContext(connection) as queries:
        listed = alice.get("/v1/jobs").json()["jobs"]
    assert len([q for q in queries if "api_keys" not in q["sql"]]) == 2
    assert all(job["next_run_at"] for job in listed)


def test_a_page_of_many_jobs_is_answered_by_an_index(alice: ApiClient, acme: Tenant) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule, dst,"
            " flexible_window_s, misfire, overlap, queue_limit, task, retry, region, tier, enabled,"
            " version, created_at, updated_at)"
            " SELECT gen_random_uuid(), tenant_id, 'many', '', '{}', '{}', '{}', 0, '{}', 'skip',"
            " 10, '{}', '{}', 'default', 'container', true, 1, now() - n * interval '1 s', now()"
            " FROM generate_series(1, 50000) AS n CROSS JOIN LATERAL"
            " (SELECT CASE WHEN n %% 5 = 0 THEN %s ELSE %s END AS tenant_id) AS owner",
            [acme.tenant_id, make_tenant().tenant_id],
        )
        cursor.execute("ANALYZE jobs")
    newest = make_due_job(acme, due_in_s=60)
    with CaptureQueriesContext(connection) as queries:
        (job,) = alice.get("/v1/jobs?limit=1").json()["jobs"]
    assert job["job_id"] == str(newest.job_id)
    (sql,) = [query["sql"] for query in queries if '"jobs"' in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index Scan using jobs_by_tenant" in plan, plan
    assert "Sort" not in plan, plan
