"""Word of what happened is owed in the transaction that made it so, to those who want it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs.domain.spec import JobChanges
from jobs.models import Job
from jobs.services import job_set_enabled, job_update
from runs import dispatcher, leases, reaper
from runs.domain.outcome import Outcome, OutcomeCode
from runs.leases import Completion, Leased, Start
from runs.models import OutboxMessage, Run
from runs.notifications import auto_pause_once, note_late_once, note_run_ends
from tenants.models import Tenant
from tests.support.factories import (
    database_now,
    end_lease_of,
    go_request,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    make_tenant,
    start,
)
from tests.support.webhooks import make_endpoint

pytestmark = pytest.mark.django_db

ALL = ("run.succeeded", "run.failed", "run.skipped", "run.late", "job.auto_paused")


@pytest.fixture
def acme() -> Tenant:
    tenant = make_tenant()
    make_endpoint(tenant, *ALL)
    return tenant


def end(run: Run, outcome: OutcomeCode = OutcomeCode.SUCCEEDED, **fields: Any) -> None:
    """Let the run go, and complete it."""
    session = make_session()
    leased = start(run, session)
    complete(session, leased, outcome, **fields)


def complete(session: Any, leased: Leased, outcome: OutcomeCode, **fields: Any) -> None:
    leases.complete(session, "node-1", [completion(leased, outcome, **fields)])


def completion(
    leased: Leased, outcome: OutcomeCode = OutcomeCode.SUCCEEDED, **fields: Any
) -> Completion:
    return Completion(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        outcome=Outcome(outcome, permanent=False, counts_as_attempt=True, message=""),
        **fields,
    )


def owed(tenant: Tenant) -> list[str]:
    return [message.event for message in OutboxMessage.objects.filter(tenant=tenant).order_by("id")]


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        (OutcomeCode.SUCCEEDED, ["run.succeeded"]),
        (OutcomeCode.NON_ZERO_EXIT, ["run.failed"]),
        (OutcomeCode.CANCELLED, []),
    ],
)
def test_a_run_s_end_is_owed(acme: Tenant, outcome: OutcomeCode, events: list[str]) -> None:
    run = make_run(make_job(acme))
    end(run, outcome, exit_code=3, output=b"the customer's own")
    assert owed(acme) == events
    if events:
        message = OutboxMessage.objects.get()
        assert message.run_id == run.run_id
        assert message.payload["run_id"] == str(run.run_id)
        assert message.payload["job_id"] == str(run.job_id)
        assert message.payload["exit_code"] == 3
        assert "own" not in str(message.payload)


def test_a_run_that_is_tried_again_has_not_ended(acme: Tenant) -> None:
    end(make_run(make_job(acme, retry={"max_attempts": 2})), OutcomeCode.NON_ZERO_EXIT)
    assert owed(acme) == []


def test_nothing_is_owed_where_nobody_listens() -> None:
    deaf, off, other = make_tenant(), make_tenant(), make_tenant()
    make_endpoint(off, "run.succeeded", enabled=False)
    make_endpoint(other, "run.failed")
    for tenant in (deaf, off, other):
        end(make_run(make_job(tenant)))
    assert not OutboxMessage.objects.exists()


def test_whoever_is_not_told_pays_no_statement() -> None:
    """Starts, however late, and ends: nothing is written, and nothing asked by itself."""
    deaf, off, job_counts = make_tenant(), make_tenant(), make_tenant()
    make_endpoint(off, *ALL, enabled=False)
    session = make_session()
    leased = [
        start(make_run(make_job(tenant, late_after_s=1), due_in_s=-30), session)
        for tenant in (deaf, off)
    ]
    at = database_now()
    with CaptureQueriesContext(connection) as statements:
        leases.record_starts(
            session, [Start(one.run_id, one.scheduled_for, one.fence, at) for one in leased]
        )
        complete(session, leased[0], OutcomeCode.SUCCEEDED)
        complete(session, leased[1], OutcomeCode.NON_ZERO_EXIT)
    assert [one["sql"] for one in statements if "INSERT INTO outbox" in one["sql"]] == []
    asked = [one["sql"] for one in statements if "webhook_endpoints" in one["sql"]]
    assert len(asked) == 3  # the statements that were there anyway
    counting = start(make_run(make_job(job_counts, auto_pause_after=3)), session)
    with CaptureQueriesContext(connection) as statements:
        complete(session, counting, OutcomeCode.NON_ZERO_EXIT)
    assert len([one for one in statements if "INSERT INTO outbox" in one["sql"]]) == 1


def test_a_batch_of_ends_costs_those_who_are_told_one_statement(acme: Tenant) -> None:
    session = make_session()
    leased = [start(make_run(make_job(acme)), session) for _ in range(20)]
    with CaptureQueriesContext(connection) as statements:
        leases.complete(session, "node-1", [completion(one) for one in leased])
    assert len([one for one in statements if "INSERT INTO outbox" in one["sql"]]) == 1
    assert owed(acme) == ["run.succeeded"] * 20


def test_a_run_that_is_replaced_is_owed(acme: Tenant) -> None:
    """Both ways to give way: one that waited and was never begun, and one that came too late."""
    job = make_job(acme, overlap="replace")
    session = make_session()
    start(make_run(job, due_in_s=-30), session)
    for due_in_s in (-20, -10):
        run = make_run(job, due_in_s=due_in_s)
        leases.go(session, "node-1", [go_request(lease(run, session))])
    late = make_run(job, due_in_s=-25)
    leases.go(session, "node-1", [go_request(lease(late, session))])
    messages = OutboxMessage.objects.filter(event="run.skipped").order_by("id")
    assert [m.payload["skip_reason"] for m in messages] == ["replaced", "replaced"]
    assert messages[1].run_id == late.run_id
    assert owed(acme) == ["run.skipped"] * 2


def test_word_of_an_end_that_is_undone_is_not_owed(acme: Tenant) -> None:
    run = make_run(make_job(acme))
    with transaction.atomic():
        end(run)
        assert owed(acme) == ["run.succeeded"]
        transaction.set_rollback(True)  # its worker died before the commit
    assert owed(acme) == []


def test_a_run_is_told_of_once(acme: Tenant) -> None:
    run = make_run(make_job(acme))
    end(run)
    assert note_run_ends([run]) == 0
    assert owed(acme) == ["run.succeeded"]


def test_skips_are_owed_from_every_way_in(acme: Tenant) -> None:
    overlapping = make_job(acme, overlap="skip")
    session = make_session()
    start(make_run(overlapping, due_in_s=-2), session)
    second = make_run(overlapping)
    leases.go(session, "node-1", [go_request(lease(second, session))])
    make_run(make_job(acme), deadline_at=database_now() - timedelta(minutes=1))
    dispatcher.expire_once()
    paused = make_due_job(acme, due_in_s=60)
    make_run(paused)
    job_set_enabled(acme, paused.job_id, False, changed_by="test")
    reasons = OutboxMessage.objects.filter(event="run.skipped").order_by("id")
    assert [m.payload["skip_reason"] for m in reasons] == ["overlap", "deadline", "paused"]


def test_a_run_that_the_reaper_gives_up_is_owed(acme: Tenant, settings: Any) -> None:
    settings.MAX_LEASE_LOSSES = 1
    session = make_session()
    start(make_run(make_job(acme)), session)
    end_lease_of(session)
    settings.LEASE_S = 0.001  # the server of the tests has only just started
    reaper.reap_once()
    assert owed(acme) == ["run.failed"]


def test_a_late_start_is_told_once(acme: Tenant) -> None:
    session = make_session()
    late, in_time = make_job(acme, late_after_s=5), make_job(acme, late_after_s=60)
    for job in (late, in_time, make_job(acme)):
        run = make_run(job, due_in_s=-10)
        leased = start(run, session)
        at = database_now()
        assert leases.record_starts(
            session, [Start(leased.run_id, leased.scheduled_for, leased.fence, at)]
        )
        complete(session, leased, OutcomeCode.SUCCEEDED, started_at=at)
    of_late = OutboxMessage.objects.filter(event="run.late")
    assert [message.job_id for message in of_late] == [late.job_id]


def test_a_run_that_waits_too_long_is_told_while_it_waits(acme: Tenant) -> None:
    late = make_run(make_job(acme, late_after_s=5), due_in_s=-10)
    make_run(make_job(acme, late_after_s=60), due_in_s=-10)
    make_run(make_job(acme), due_in_s=-10)
    make_run(make_job(make_tenant(), late_after_s=5), due_in_s=-10)
    assert note_late_once() == {"late": 1}
    assert note_late_once() == {"late": 0}
    assert OutboxMessage.objects.get().run_id == late.run_id
    end(late, started_at=database_now())
    assert owed(acme) == ["run.late", "run.succeeded"]


def fail(job: Job, times: int) -> None:
    for number in range(times):
        end(make_run(job, due_in_s=-30 + number), OutcomeCode.NON_ZERO_EXIT)


def test_a_job_that_fails_too_often_is_paused_and_told(acme: Tenant) -> None:
    job = make_due_job(acme, due_in_s=60, auto_pause_after=3)
    fail(job, 2)
    assert auto_pause_once() == {"paused": 0}
    fail(job, 1)
    assert auto_pause_once() == {"paused": 1}
    job.refresh_from_db()
    assert job.pause is not None
    assert job.pause["reason"] == "3 runs failed in a row"
    assert job.schedulecursor.next_run_at is None
    assert owed(acme)[-1] == "job.auto_paused"
    assert auto_pause_once() == {"paused": 0}


def test_failures_from_before_somebody_let_the_job_run_again_are_forgiven(acme: Tenant) -> None:
    job = make_due_job(acme, due_in_s=60, auto_pause_after=2)
    fail(job, 2)
    assert auto_pause_once() == {"paused": 1}
    job_update(acme, job.job_id, JobChanges(pause=None), expected_version=None, changed_by="test")
    fail(job, 1)
    assert auto_pause_once() == {"paused": 0}
    fail(job, 1)
    assert auto_pause_once() == {"paused": 1}


def test_a_success_starts_the_count_anew(acme: Tenant) -> None:
    job = make_due_job(acme, due_in_s=60, auto_pause_after=2)
    fail(job, 1)
    end(make_run(job, due_in_s=-5))
    end(make_run(job, due_in_s=-4), OutcomeCode.NON_ZERO_EXIT)
    assert auto_pause_once() == {"paused": 0}
