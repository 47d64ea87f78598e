"""The dispatcher: who is given runs, how many, and in what order."""

from datetime import timedelta

import pytest
from django.db import connection
from pytest_django import Settings

from runs import dispatcher, transport
from runs.models import Run
from tests.support.factories import (
    database_now,
    make_job,
    make_run,
    make_session,
    make_tenant,
    reread,
    start,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[transport.Message]:
    """What would have been sent; delivery itself is tested with a real broker elsewhere."""
    messages: list[transport.Message] = []

    def record(batch: list[transport.Message]) -> int:
        messages.extend(batch)
        return len(batch)

    monkeypatch.setattr(transport, "send", record)
    return messages


def test_a_due_run_is_placed_on_a_session_and_its_message_goes_to_that_sessions_queue(
    sent: list[transport.Message],
) -> None:
    session = make_session()
    run = make_run()

    assert dispatcher.dispatch_once() == {"placed": 1, "sent": 1}

    assert reread(run).lease_owner == session
    assert reread(run).placed_at is not None
    (message,) = sent
    assert (message.run_id, message.attempt) == (run.run_id, 1)
    assert message.queue == f"runs.{session}"
    assert message.eta_epoch_s is None


def test_a_run_ahead_of_its_time_gets_an_eta_five_seconds_before_it(
    sent: list[transport.Message],
) -> None:
    make_session()
    run = make_run(due_in_s=30)

    dispatcher.dispatch_once()

    (message,) = sent
    assert message.eta_epoch_s == pytest.approx(run.ready_at.timestamp() - 5, abs=0.001)


def test_a_run_beyond_the_place_lead_waits(sent: list[transport.Message]) -> None:
    make_session()
    run = make_run(due_in_s=70)

    assert dispatcher.dispatch_once()["placed"] == 0
    assert reread(run).lease_owner is None


@pytest.mark.parametrize(
    "closed",
    [
        "accepting = false",
        "draining = true",
        "cordoned = true",
        "lease_expires_at = now()",
        "last_seen_at = now() - interval '6 seconds'",
        "ended_at = now()",
    ],
)
def test_a_session_that_is_not_open_gets_nothing(
    closed: str, sent: list[transport.Message]
) -> None:
    session = make_session()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE worker_sessions SET {closed} WHERE session_id = %s", [session])
    make_run()

    assert dispatcher.dispatch_once()["placed"] == 0


def test_never_more_due_runs_than_slots_and_a_small_buffer(sent: list[transport.Message]) -> None:
    make_session(slots=10)
    job = make_job()
    for n in range(30):
        make_run(job, due_in_s=-n - 1)

    placed = sum(dispatcher.dispatch_once()["placed"] for _ in range(3))

    assert placed == 11
    oldest = Run.objects.order_by("ready_at")[:11]
    assert all(run.lease_owner for run in oldest)


def test_never_more_runs_ahead_than_a_session_prepares(sent: list[transport.Message]) -> None:
    make_session(slots=10, prepared_limit=4)
    job = make_job()
    for n in range(10):
        make_run(job, due_in_s=20 + n)

    assert sum(dispatcher.dispatch_once()["placed"] for _ in range(3)) == 4


def test_a_tenant_at_its_concurrency_waits_and_others_do_not(
    sent: list[transport.Message],
) -> None:
    session = make_session()
    busy = make_job(make_tenant(max_concurrent_runs=1))
    start(make_run(busy, due_in_s=-60), session)
    waiting = make_run(busy, due_in_s=-50)
    other = make_run(due_in_s=-1)

    dispatcher.dispatch_once()

    assert reread(waiting).lease_owner is None
    assert reread(other).lease_owner == session


def test_a_suspended_tenant_gets_nothing(sent: list[transport.Message]) -> None:
    make_session()
    run = make_run()
    run.tenant.suspended_at = run.scheduled_for
    run.tenant.save()

    assert dispatcher.dispatch_once()["placed"] == 0


def test_a_flood_of_one_tenant_does_not_keep_another_from_its_slot(
    sent: list[transport.Message],
) -> None:
    make_session(slots=4)
    flood = make_job()
    for n in range(50):
        make_run(flood, due_in_s=-100 - n)
    quiet = make_run(due_in_s=-1)

    dispatcher.dispatch_once()

    assert reread(quiet).lease_owner is not None


def test_region_and_tier_must_match(sent: list[transport.Message]) -> None:
    make_session(region="eu", tiers=["container"])
    elsewhere = make_run(region="us")
    stronger = make_run(region="eu", tier="sandbox")
    here = make_run(region="eu")

    assert dispatcher.dispatch_once()["placed"] == 1
    assert reread(here).lease_owner is not None
    assert reread(elsewhere).lease_owner is None
    assert reread(stronger).lease_owner is None


def test_the_emptiest_session_takes_the_next_run(sent: list[transport.Message]) -> None:
    small, large = make_session(slots=2), make_session(slots=20)
    job = make_job()
    for n in range(10):
        make_run(job, due_in_s=-n - 1)

    dispatcher.dispatch_once()

    assert Run.objects.filter(lease_owner=large).count() == 10
    assert not Run.objects.filter(lease_owner=small).exists()


def test_a_tenants_catch_up_waits_behind_its_live_work(sent: list[transport.Message]) -> None:
    make_session(slots=1)
    job = make_job()
    old = make_run(job, due_in_s=-3600, trigger="catch_up")
    retry = make_run(job, due_in_s=-1800, failures=1)
    live = make_run(job, due_in_s=-1)

    dispatcher.dispatch_once()

    assert reread(live).lease_owner is not None
    assert reread(retry).lease_owner is not None  # the buffer
    assert reread(old).lease_owner is None


def test_retries_hold_no_more_than_a_quarter_of_their_tenant_s_slots(
    sent: list[transport.Message],
) -> None:
    session = make_session(slots=40)
    failing = make_job(make_tenant(max_concurrent_runs=12))
    running = make_run(failing, due_in_s=-90, failures=1)
    start(running, session)
    retries = [make_run(failing, due_in_s=-60 + n, failures=1) for n in range(6)]
    of_another = [make_run(due_in_s=-60, failures=1) for _ in range(2)]

    assert dispatcher.dispatch_once()["placed"] == 4
    assert dispatcher.dispatch_once()["placed"] == 0

    # Three at once are its part: the one that runs, and the two that wait longest.
    assert [reread(run).lease_owner is not None for run in retries] == [True] * 2 + [False] * 4
    assert all(reread(run).lease_owner for run in of_another)
    live = [make_run(failing, due_in_s=-1 - n) for n in range(20)]
    assert dispatcher.dispatch_once()["placed"] == 12 - 3
    assert sum(reread(run).lease_owner is not None for run in live) == 9
    Run.objects.filter(run_id=running.run_id).update(
        status="succeeded", finished_at=database_now(), lease_owner=None
    )
    dispatcher.dispatch_once()
    assert sum(reread(run).lease_owner is not None for run in retries) == 2, "live work goes first"


def test_a_blocked_run_is_not_placed(sent: list[transport.Message]) -> None:
    make_session()
    make_run(status="blocked")

    assert dispatcher.dispatch_once()["placed"] == 0


def test_a_waiting_retry_is_placed_when_its_backoff_ends(sent: list[transport.Message]) -> None:
    make_session()
    run = make_run(due_in_s=-60, failures=1)
    Run.objects.filter(run_id=run.run_id).update(ready_at=run.ready_at + timedelta(hours=1))

    assert dispatcher.dispatch_once()["placed"] == 0
    Run.objects.filter(run_id=run.run_id).update(ready_at=run.ready_at + timedelta(seconds=1))
    assert dispatcher.dispatch_once()["placed"] == 1


def test_runs_that_no_session_serves_do_not_hide_those_behind_them(
    sent: list[transport.Message], settings: Settings
) -> None:
    settings.DISPATCH_BATCH = 5
    make_session(tiers=["container"])
    job = make_job()
    for n in range(10):
        make_run(job, due_in_s=-100 - n, tier="sandbox")
    behind = make_run(job, due_in_s=-1)

    dispatcher.dispatch_once()

    assert reread(behind).lease_owner is not None


@pytest.mark.parametrize("late", [{"trigger": "catch_up"}, {"failures": 1}])
def test_a_long_row_of_late_work_does_not_hide_what_is_on_time(
    late: dict[str, object], sent: list[transport.Message], settings: Settings
) -> None:
    settings.DISPATCH_BATCH = 5
    make_session()
    job = make_job()
    for n in range(10):
        make_run(job, due_in_s=-100 - n, **late)
    on_time = make_run(job, due_in_s=-1)

    dispatcher.dispatch_once()

    assert reread(on_time).lease_owner is not None


def test_runs_placed_ahead_of_one_second_stay_within_their_tenant_s_limit(
    sent: list[transport.Message],
) -> None:
    session = make_session()
    limited = make_job(make_tenant(max_concurrent_runs=2))
    start(make_run(limited, due_in_s=-60), session)
    for _ in range(5):
        make_run(limited, due_in_s=20, trigger="manual")

    placed = [dispatcher.dispatch_once()["placed"] for _ in range(3)]

    assert sum(placed) == 1
    make_run(due_in_s=20)
    assert dispatcher.dispatch_once()["placed"] == 1, "others go on"
