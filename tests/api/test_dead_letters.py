"""Dead letters and replays: what failed is kept, found, and run again as a new run."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.services import job_delete
from runs import leases
from runs.api import examples
from runs.domain.outcome import OutcomeCode, outcome
from runs.leases import Completion
from runs.models import Run
from tenants.models import Tenant
from tests.api.test_jobs_examples import assert_alike
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import (
    database_now,
    lease,
    make_due_job,
    make_run,
    make_session,
    reread,
    start,
)

PATH = "/v1/dead-letters"


@pytest.fixture
def job(acme: Tenant) -> Job:
    return make_due_job(acme, due_in_s=3_600, retry={"max_attempts": 1})


def dead(
    job: Job, *, due_in_s: float = -60, code: OutcomeCode = OutcomeCode.NON_ZERO_EXIT, **more: Any
) -> Run:
    """A run that failed its last attempt."""
    session = make_session()
    run = make_run(job, due_in_s=due_in_s, **more)
    leased = start(run, session)
    completion = Completion(
        leased.run_id, leased.scheduled_for, leased.job_id, leased.fence,
        outcome(code, "exit code 3"), exit_code=3,
    )  # fmt: skip
    leases.complete(session, "node-1", [completion])
    assert reread(run).status == "failed"
    return reread(run)


def listed(client: ApiClient, query: str = "") -> list[str]:
    answer = client.get(PATH + query)
    assert answer.status_code == 200, answer.content
    return [letter["run_id"] for letter in answer.json()["dead_letters"]]


def ids(*runs: Run) -> list[str]:
    return [str(run.run_id) for run in runs]


def replay(client: ApiClient, run: Run, **headers: str) -> Any:
    return client.post(f"/v1/runs/{run.run_id}/replay", **headers)


def test_dead_letters_are_listed_newest_first_with_what_happened(
    alice: ApiClient, bob: ApiClient, job: Job
) -> None:
    old, new = dead(job, due_in_s=-120), dead(job, due_in_s=-60)
    make_run(job, due_in_s=-30, status="succeeded", finished_at=database_now())
    make_run(job, due_in_s=-20, status="cancelled", finished_at=database_now())

    (first, second) = alice.get(PATH).json()["dead_letters"]

    assert (first["run_id"], second["run_id"]) == (str(new.run_id), str(old.run_id))
    assert (first["status"], first["outcome"], first["exit_code"]) == ("failed", "non_zero_exit", 3)
    assert first["message"] == "exit code 3"
    assert listed(bob) == []
    assert len(alice.get(f"/v1/runs/{new.run_id}").json()["attempts"]) == 1


def test_filters_narrow_and_several_narrow_together(
    alice: ApiClient, acme: Tenant, job: Job
) -> None:
    exit_3 = dead(job, due_in_s=-60)
    too_long = dead(job, due_in_s=-120, code=OutcomeCode.TIMED_OUT)
    of_other = dead(make_due_job(acme, due_in_s=3_600), due_in_s=-180)
    middle = exit_3.scheduled_for.strftime("%Y-%m-%dT%H:%M:%S.%fZ")[:-4] + "Z"

    assert listed(alice, f"?job_id={job.job_id}") == ids(exit_3, too_long)
    assert listed(alice, "?outcome=timed_out") == ids(too_long)
    assert listed(alice, f"?from={middle}") == ids(exit_3)
    assert listed(alice, f"?to={middle}&outcome=non_zero_exit") == ids(of_other)
    assert listed(alice, f"?job_id={uuid4()}") == []


def test_pages_go_on_where_the_last_ended(alice: ApiClient, job: Job) -> None:
    runs = [dead(job, due_in_s=-60 - n) for n in range(3)]
    first = alice.get(f"{PATH}?limit=2").json()
    second = alice.get(f"{PATH}?limit=2&cursor={first['next_cursor']}").json()

    found = [letter["run_id"] for page in (first, second) for letter in page["dead_letters"]]
    assert found == ids(*runs)
    assert second["next_cursor"] is None
    answer = alice.get(f"{PATH}?outcome=signal&cursor={first['next_cursor']}")
    assert_problem(answer, 400, "invalid_cursor")


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("job_id=7", "job_id", "invalid_uuid"),
        ("job_id={7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11}", "job_id", "invalid_uuid"),
        ("outcome=succeeded", "outcome", "invalid_choice"),
        ("replayed=yes", "replayed", "invalid_choice"),
        ("from=yesterday", "from", "invalid_instant"),
        ("status=failed", "status", "unknown_field"),
    ],
)
def test_a_filter_that_is_none_is_refused(
    alice: ApiClient, query: str, field: str, code: str
) -> None:
    problem = assert_problem(alice.get(f"{PATH}?{query}"), 400, "invalid_request")
    assert [(e["field"], e["code"]) for e in problem["errors"]] == [(field, code)]


def test_the_list_reads_an_index_that_holds_little_else(alice: ApiClient, job: Job) -> None:
    dead(job)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert len(listed(alice)) == 1
    (sql,) = [q["sql"] for q in captured if "\"status\" = 'failed'" in q["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
            " region, tier, trigger, status, due_at, ready_at, finished_at)"
            " SELECT gen_random_uuid(), t, %s, gen_random_uuid(), 1, %s, 'default', 'container',"
            " 'manual', 'succeeded', t, t, t FROM generate_series(1, 20000) n,"
            " LATERAL (SELECT now() - make_interval(secs => n) AS t) AS times",
            [job.job_id, job.tenant_id],
        )
        cursor.execute("ANALYZE runs")
        cursor.execute("EXPLAIN " + sql)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute(
            "SELECT string_agg(c.relname, ' ') FROM pg_inherits i"
            " JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent"
            " WHERE p.relname = 'runs_in_trouble'"
        )
        (partitions,) = cursor.fetchone()
    # Days without rows are read as they are; the one that has them, by the index.
    assert any(f"Index Scan using {name}" in plan for name in partitions.split()), plan


def test_a_replay_is_a_new_run_with_the_task_as_it_is_now(alice: ApiClient, job: Job) -> None:
    run = dead(job)
    Job.objects.filter(job_id=job.job_id).update(version=2)

    answer = replay(alice, run)

    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert answer["Location"] == f"/v1/runs/{made['run_id']}"
    assert (made["trigger"], made["status"]) == ("replay", "queued")
    assert (made["replay_of"], made["job_version"]) == (str(run.run_id), 2)
    kept = alice.get(f"/v1/runs/{run.run_id}").json()
    assert (kept["status"], kept["replayed_by"]) == ("failed", made["run_id"])
    assert listed(alice, "?replayed=true") == ids(run)
    assert listed(alice, "?replayed=false") == []


def test_a_replay_of_a_replay_is_of_the_first_run_and_sees_its_time(
    alice: ApiClient, job: Job
) -> None:
    run = dead(job, due_in_s=-3_600)
    second = Run.objects.get(run_id=replay(alice, run).json()["run_id"])
    session = make_session()
    leased = start(second, session)
    assert leased.nominal == run.scheduled_for
    failed = Completion(
        leased.run_id, leased.scheduled_for, leased.job_id, leased.fence,
        outcome(OutcomeCode.SIGNAL, ""), exit_code=137,
    )  # fmt: skip
    leases.complete(session, "node-1", [failed])

    third = replay(alice, second).json()

    assert third["replay_of"] == str(run.run_id)
    assert reread(second).replayed_by is not None
    assert lease(Run.objects.get(run_id=third["run_id"]), session).nominal == run.scheduled_for


def test_the_same_key_makes_one_replay(alice: ApiClient, job: Job) -> None:
    run = dead(job)
    first = replay(alice, run, Idempotency_Key="once")
    again = replay(alice, run, Idempotency_Key="once")

    assert again.json() == first.json()
    assert Run.objects.filter(replay_of=run.run_id).count() == 1


@pytest.mark.parametrize("status", ["succeeded", "cancelled", "skipped"])
def test_whatever_has_ended_can_be_replayed(alice: ApiClient, job: Job, status: str) -> None:
    reason = "overlap" if status == "skipped" else ""
    run = make_run(job, status=status, finished_at=database_now(), skip_reason=reason)
    assert replay(alice, run).json()["replay_of"] == str(run.run_id)


def test_what_cannot_be_replayed_is_refused(
    alice: ApiClient, bob: ApiClient, carol: ApiClient, acme: Tenant, job: Job
) -> None:
    waiting, run = make_run(job), dead(job)
    assert_problem(replay(alice, waiting), 409, "run_not_final")
    assert_problem(replay(bob, run), 404, "not_found")
    assert_problem(replay(carol, run), 403, "insufficient_scope")
    job_delete(acme, job.job_id, changed_by="test")
    assert_problem(replay(alice, run), 409, "job_is_deleted")
    assert alice.post(f"{PATH}/replay", {}).json()["runs"] == []
    assert listed(alice) == ids(run)  # it can still be read
    assert not Run.objects.filter(trigger="replay").exists()


def test_a_dry_run_says_what_would_be_replayed_and_makes_nothing(
    alice: ApiClient, bob: ApiClient, job: Job
) -> None:
    old, new = dead(job, due_in_s=-120), dead(job)

    answer = alice.post(f"{PATH}/replay", {"dry_run": True})

    assert answer.status_code == 202, answer.content
    said = answer.json()
    assert (said["dry_run"], said["replayed"], said["more"]) == (True, 0, False)
    assert said["runs"] == [
        {"dead_letter": str(run.run_id), "job_id": str(job.job_id), "run_id": None}
        for run in (old, new)
    ]
    assert bob.post(f"{PATH}/replay", {"dry_run": True}).json()["runs"] == []
    assert not Run.objects.filter(trigger="replay").exists()


def test_all_that_match_are_replayed_once_at_the_rate(
    alice: ApiClient, acme: Tenant, job: Job
) -> None:
    runs = [dead(job, due_in_s=-60 * n) for n in (3, 2, 1)]
    other = dead(make_due_job(acme, due_in_s=3_600))
    body = {"job_id": str(job.job_id), "rate_per_minute": 10}

    said = alice.post(f"{PATH}/replay", body).json()

    assert (said["replayed"], said["more"]) == (3, False)
    assert [each["dead_letter"] for each in said["runs"]] == ids(*runs)
    made = [Run.objects.get(run_id=each["run_id"]) for each in said["runs"]]
    assert [run.replay_of for run in made] == [run.run_id for run in runs]
    gaps = [after.due_at - before.due_at for before, after in pairwise(made)]
    assert gaps == [timedelta(seconds=6)] * 2
    assert all(run.ready_at == run.due_at for run in made)
    assert reread(runs[0]).replayed_by == made[0].run_id
    assert alice.post(f"{PATH}/replay", body).json()["runs"] == []
    assert reread(other).replayed_by is None


def test_more_than_one_request_may_hold_is_said(
    alice: ApiClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.replays.MOST_REPLAYS", 2)
    runs = [dead(job, due_in_s=-60 * n) for n in (3, 2, 1)]

    first, second = (alice.post(f"{PATH}/replay", {}).json() for _ in range(2))

    assert [each["dead_letter"] for each in first["runs"]] == ids(*runs[:2])
    assert [each["dead_letter"] for each in second["runs"]] == ids(runs[2])
    assert (first["more"], second["more"]) == (True, False)


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"job": 1}, "job", "unknown_field"),
        ({"job_id": "7"}, "job_id", "invalid_uuid"),
        ({"outcome": "succeeded"}, "outcome", "invalid_choice"),
        ({"dry_run": "yes"}, "dry_run", "wrong_type"),
        ({"rate_per_minute": 0}, "rate_per_minute", "too_small"),
    ],
)
def test_a_filter_of_a_replay_that_is_none_is_refused(
    alice: ApiClient, job: Job, body: dict[str, Any], field: str, code: str
) -> None:
    run = dead(job)
    problem = assert_problem(alice.post(f"{PATH}/replay", body), 400, "invalid_request")
    assert [(e["field"], e["code"]) for e in problem["errors"]] == [(field, code)]
    assert reread(run).replayed_by is None


def test_a_pause_leaves_replays_alone(alice: ApiClient) -> None:
    body = {
        "schedule": {"cron": "0 9 * * *", "time_zone": "UTC"},
        "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
    }
    job = Job.objects.get(job_id=alice.post("/v1/jobs", body).json()["job_id"])
    made = replay(alice, dead(job)).json()

    changed = alice.patch(f"/v1/jobs/{job.job_id}", {"enabled": False}, If_Match="*")

    assert changed.status_code == 200
    assert Run.objects.get(run_id=made["run_id"]).status == "queued"


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_replays_of_a_job_follow_one_another(alice: ApiClient, job: Job, overlap: str) -> None:
    """Each was asked for: none is skipped, and none takes another's place."""
    for n in (2, 1):
        dead(job, due_in_s=-60 * n)
    Job.objects.filter(job_id=job.job_id).update(overlap=overlap, queue_limit=1)
    said = alice.post(f"{PATH}/replay", {"rate_per_minute": 600}).json()
    first, second = (Run.objects.get(run_id=each["run_id"]) for each in said["runs"])
    session = make_session()
    Run.objects.filter(trigger="replay").update(ready_at=database_now(), due_at=database_now())
    start(first, session)
    waiting = lease(second, session)
    request = leases.GoRequest(
        waiting.run_id, waiting.scheduled_for, waiting.job_id, waiting.fence, 0.0,
        waiting.task_version,
    )  # fmt: skip

    assert leases.go(session, "node-1", [request])[second.run_id].answer == "block"
    assert reread(first).cancel_requested_at is None


def test_the_examples_are_taken_and_given(alice: ApiClient, job: Job) -> None:
    run = dead(job)
    assert_alike(examples.DEAD_LETTER_PAGE, alice.get(PATH).json())
    answer = alice.post(f"{PATH}/replay", examples.REPLAY_REQUEST)
    assert_alike(examples.REPLAYS, answer.json())
    assert_alike(examples.REPLAYS, alice.post(f"{PATH}/replay", {}).json())
    assert_alike(examples.REPLAY_RUN, replay(alice, run).json())
