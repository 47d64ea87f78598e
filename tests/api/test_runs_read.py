"""GET /v1/runs/{id}, run now, cancel: what a customer sees of a run through its life."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from runs import store
from runs.domain.run_id import scheduled_for_of
from runs.domain.state import FINAL
from runs.models import JobGuard, Run, RunAttempt, RunOutput
from tenants.models import Tenant
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import (
    database_now,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    place,
    reread,
    start,
)


def read(client: ApiClient, run: Run) -> dict[str, Any]:
    answer = client.get(f"/v1/runs/{run.run_id}")
    assert answer.status_code == 200, answer.content
    body: dict[str, Any] = answer.json()
    return body


def waits_for(client: ApiClient, run: Run) -> Any:
    return read(client, run)["waiting_for"]


# --- what it waits for ----------------------------------------------------------------------------


def test_a_run_says_what_it_waits_for(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme)
    ahead = make_run(job, due_in_s=30)
    ready_at = read(alice, ahead)["ready_at"]
    assert waits_for(alice, ahead) == {"reason": "time", "until": ready_at, "run_id": None}

    failed_once = make_run(job, failures=1, ready_at=database_now() + timedelta(seconds=60))
    assert waits_for(alice, failed_once)["reason"] == "retry_backoff"

    due = make_run(job)
    assert waits_for(alice, due) == {"reason": "slot", "until": None, "run_id": None}
    place(due, make_session())
    assert waits_for(alice, due)["reason"] == "worker"


def test_a_blocked_run_names_the_run_before_it(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme, overlap="queue")
    running = make_run(job)
    start(running, make_session())
    blocked = make_run(job, status="blocked")
    assert waits_for(alice, blocked) == {
        "reason": "earlier_run",
        "until": None,
        "run_id": str(running.run_id),
    }
    assert waits_for(alice, running) is None


def test_a_run_of_a_tenant_at_its_limit_waits_for_the_tenant_s_own_runs(
    alice: ApiClient, acme: Tenant
) -> None:
    Tenant.objects.filter(pk=acme.pk).update(max_concurrent_runs=1)
    start(make_run(make_job(acme)), make_session())
    assert waits_for(alice, make_run(make_job(acme)))["reason"] == "tenant_concurrency"


# --- while it runs and afterwards -----------------------------------------------------------------


def test_a_running_run_shows_node_lease_and_attempt(alice: ApiClient, acme: Tenant) -> None:
    run = make_run(make_job(acme), due_in_s=-2)
    start(run, make_session(node="node-7"))
    seen = read(alice, run)
    assert (seen["status"], seen["node"], seen["attempt"]) == ("running", "node-7", 1)
    assert seen["lease_expires_at"] > seen["go_at"]
    assert [attempt["outcome"] for attempt in seen["attempts"]] == [None]
    assert seen["attempts"][0]["fence"] > 0
    assert seen["lag"] is None  # the engine hasn't said when it started


def test_the_lag_is_that_of_the_first_attempt_and_its_stages_add_up(
    alice: ApiClient, acme: Tenant
) -> None:
    run = make_run(make_job(acme), due_in_s=-100, status="succeeded", finished_at=database_now())
    for number, late_s in ((1, 2.5), (2, 60)):
        due = run.due_at
        RunAttempt.objects.create(
            run_id=run.run_id,
            scheduled_for=run.scheduled_for,
            attempt=number,
            fence=number,
            session_id=uuid4(),
            node="node-1",
            placed_at=due - timedelta(seconds=50),
            leased_at=due + timedelta(seconds=1),
            prepared_at=due + timedelta(seconds=1.5),
            go_at=due + timedelta(seconds=2),
            started_at=due + timedelta(seconds=late_s),
        )
    assert read(alice, run)["lag"] == {
        "total_s": 2.5,
        "stages_s": {"placed": 0, "leased": 1, "prepared": 0.5, "go": 0.5, "started": 0.5},
    }


def test_output_is_text_whatever_was_printed(alice: ApiClient, acme: Tenant) -> None:
    run = make_run(make_job(acme))
    start(run, make_session())
    RunOutput.objects.create(
        run_id=run.run_id,
        scheduled_for=run.scheduled_for,
        attempt=1,
        tail=b"ok \xfe\xff \xe2\x82 \x00 \xf0\x9f\x95\x98",
        truncated=True,
    )
    seen = read(alice, run)
    assert seen["output_tail"] == "ok \ufffd\ufffd \ufffd \x00 \U0001f558"
    assert seen["output_truncated"] is True
    assert seen["attempts"][0]["output_tail"] == seen["output_tail"]


def test_an_empty_reason_is_null(alice: ApiClient, acme: Tenant) -> None:
    seen = read(alice, make_run(make_job(acme)))
    names = ("skip_reason", "outcome", "message", "output_tail", "exit_code", "node")
    assert {seen[name] for name in names} == {None}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/0d2f4c1e-5b7a-4e7e-9a43-0b5e5b0f6c11",
        "/v1/runs/00000000-0000-0000-0000-000000000000",
        "/v1/runs/ffffffff-ffff-ffff-ffff-ffffffffffff",
        "/v1/runs/abc",
        "/v1/runs/1%20OR%201=1",
        "/v1/runs/-1",
    ],
)
def test_what_was_never_a_run_is_not_found(alice: ApiClient, path: str) -> None:
    assert_problem(alice.get(path), 404, "not_found")
    assert_problem(alice.post(f"{path}/cancel"), 404, "not_found")


def test_another_tenant_s_run_does_not_exist(
    alice: ApiClient, bob: ApiClient, acme: Tenant
) -> None:
    run = make_run(make_job(acme))
    assert_problem(bob.get(f"/v1/runs/{run.run_id}"), 404, "not_found")
    assert_problem(bob.post(f"/v1/runs/{run.run_id}/cancel"), 404, "not_found")
    assert reread(run).status == "queued"


# --- run now --------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_a_run_by_hand_is_due_at_once_also_of_a_job_that_is_off(
    alice: ApiClient, acme: Tenant, enabled: bool
) -> None:
    job = make_due_job(acme, due_in_s=60, enabled=enabled)
    answer = alice.post(f"/v1/jobs/{job.job_id}/runs", {})
    assert answer.status_code == 201
    shown = answer.json()
    assert answer["Location"] == f"/v1/runs/{shown['run_id']}"
    run = Run.objects.get(job=job)
    assert run.manual_key == run.run_id
    assert scheduled_for_of(run.run_id) == run.scheduled_for == run.due_at == run.ready_at
    assert abs(database_now() - run.due_at) < timedelta(seconds=5)
    assert (shown["trigger"], shown["status"], shown["job_version"]) == ("manual", "queued", 1)


def test_a_run_by_hand_of_the_very_millisecond_of_an_occurrence_is_a_second_run(
    alice: ApiClient, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_due_job(acme, due_in_s=60)
    occurrence = make_run(job, due_in_s=-1)
    monkeypatch.setattr("runs.services._database_clock", lambda: occurrence.scheduled_for)
    for _ in range(2):
        assert alice.post(f"/v1/jobs/{job.job_id}/runs").status_code == 201
    assert Run.objects.filter(job=job, scheduled_for=occurrence.scheduled_for).count() == 3


@pytest.mark.parametrize("body", [{"at": "now"}, {"args": []}])
def test_options_that_run_now_does_not_have_are_refused_by_name(
    alice: ApiClient, acme: Tenant, body: dict[str, Any]
) -> None:
    job = make_due_job(acme, due_in_s=60)
    problem = assert_problem(
        alice.post(f"/v1/jobs/{job.job_id}/runs", body), 400, "invalid_request"
    )
    assert problem["errors"][0]["code"] == "unknown_field"
    assert not Run.objects.exists()


def test_run_now_sent_twice_with_one_key_is_one_run(alice: ApiClient, acme: Tenant) -> None:
    job = make_due_job(acme, due_in_s=60)
    path = f"/v1/jobs/{job.job_id}/runs"
    first, second = (alice.post(path, {}, Idempotency_Key="once") for _ in range(2))
    assert first.json() == second.json()
    assert Run.objects.count() == 1


# --- cancel ---------------------------------------------------------------------------------------


def cancel(client: ApiClient, run: Run) -> dict[str, Any]:
    answer = client.post(f"/v1/runs/{run.run_id}/cancel")
    assert answer.status_code == 202, answer.content
    body: dict[str, Any] = answer.json()
    return body


def test_a_run_that_has_not_started_is_cancelled_at_once(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme)
    queued, blocked = make_run(job), make_run(job, due_in_s=-3, status="blocked")
    placed, leased = make_run(job, due_in_s=-4), make_run(job, due_in_s=-5)
    place(placed, make_session())
    lease(leased, make_session())
    for run in (queued, blocked, placed, leased):
        shown = cancel(alice, run)
        assert (shown["status"], shown["outcome"]) == ("cancelled", "cancelled")
        assert shown["finished_at"]
        stored = reread(run)
        assert (stored.status, stored.lease_owner) == ("cancelled", None)


def test_a_running_run_is_asked_to_end_and_stays_until_its_container_has(
    alice: ApiClient, acme: Tenant
) -> None:
    run = make_run(make_job(acme))
    start(run, make_session())
    shown = cancel(alice, run)
    assert (shown["status"], shown["finished_at"]) == ("running", None)
    asked_at = shown["cancel_requested_at"]
    assert asked_at
    # Asking again is harmless, and doesn't move the moment.
    assert cancel(alice, run)["cancel_requested_at"] == asked_at


@pytest.mark.parametrize("status", sorted(FINAL))
def test_what_has_ended_can_t_be_cancelled(alice: ApiClient, acme: Tenant, status: str) -> None:
    run = make_run(make_job(acme), status=status, finished_at=database_now(), skip_reason="overlap")
    problem = assert_problem(alice.post(f"/v1/runs/{run.run_id}/cancel"), 409, "run_is_final")
    assert status in problem["detail"]
    assert reread(run).status == status


def test_a_cancelled_run_in_its_backoff_passes_the_guard_on(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme, overlap="queue")
    holder = make_run(job, due_in_s=-9, failures=1, ready_at=database_now() + timedelta(hours=1))
    JobGuard.objects.create(job_id=job.job_id, holder_run_id=holder.run_id)
    behind = make_run(job, due_in_s=-3, status="blocked")
    last = make_run(job, due_in_s=-2, status="blocked")
    cancel(alice, holder)
    assert (reread(behind).status, reread(last).status) == ("queued", "blocked")
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == behind.run_id


def test_a_cancelled_run_that_holds_no_guard_leaves_it_alone(
    alice: ApiClient, acme: Tenant
) -> None:
    job = make_job(acme, overlap="queue")
    running = make_run(job, due_in_s=-9)
    start(running, make_session())
    behind = make_run(job, due_in_s=-3, status="blocked")
    cancel(alice, behind)
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == running.run_id


def test_a_withdrawn_run_can_t_be_cancelled(alice: ApiClient, acme: Tenant) -> None:
    run = make_run(make_job(acme), due_in_s=60)
    store.execute("withdraw_planned", job_id=run.job_id, now=database_now())
    assert_problem(alice.post(f"/v1/runs/{run.run_id}/cancel"), 404, "not_found")
