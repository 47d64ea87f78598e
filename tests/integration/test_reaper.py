"""The reaper: what a dead worker held is run again, once, and nothing is taken too early."""

import pytest
from django.db import connection
from pytest_django import Settings

from runs import leases
from runs.leases import GoAnswer
from runs.models import JobGuard, Run, RunAttempt, RunEvent
from runs.reaper import reap_dead_sessions, reap_once, release_stale_guards, requeue_unstarted
from runs.selectors import DeadLetterFilter, dead_letters_of
from tests.support.factories import (
    database_now,
    end_lease_of,
    go_request,
    lease,
    make_job,
    make_run,
    make_session,
    place,
    reread,
    start,
)
from workers.models import WorkerSession

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _database_is_up_for_long(settings: Settings) -> None:
    # The server of the tests is young: a lease of zero seconds ago it was up already.
    settings.LEASE_S = 0.5


def test_a_running_run_of_a_dead_session_is_queued_again_with_a_new_fence() -> None:
    session = make_session()
    run = make_run()
    leased = start(run, session)
    end_lease_of(session)

    assert reap_once()["reaped"] == 1

    stored = reread(run)
    assert (stored.status, stored.attempt, stored.failures) == ("queued", 2, 0)
    assert stored.lease_losses == 1
    assert stored.fence > leased.fence
    assert stored.lease_owner is None
    assert RunAttempt.objects.get(run_id=run.run_id).outcome == "lease_expired"
    assert RunEvent.objects.get(run_id=run.run_id).kind == "lease_lost"
    assert WorkerSession.objects.get(session_id=session).ended_at is not None


def test_a_second_reaper_finds_nothing() -> None:
    session = make_session()
    run = make_run()
    start(run, session)
    end_lease_of(session)

    assert reap_dead_sessions() == (1, 1)
    assert reap_dead_sessions() == (0, 0)
    assert reread(run).lease_losses == 1


def test_a_live_session_keeps_its_runs() -> None:
    run = make_run()
    start(run, make_session())

    assert reap_once() == {"requeued": 0, "reaped": 0, "sessions": 0}
    assert reread(run).status == "running"


def test_just_after_the_database_came_back_nobody_is_reaped(settings: Settings) -> None:
    settings.LEASE_S = 86_400
    session = make_session()
    run = make_run()
    start(run, session)
    end_lease_of(session)

    assert reap_dead_sessions() == (0, 0)
    assert reread(run).status == "running"


def test_too_many_lost_leases_make_a_dead_letter_and_pass_the_guard_on(
    settings: Settings,
) -> None:
    session = make_session()
    job = make_job(overlap="queue")
    run = make_run(job, due_in_s=-60, lease_losses=settings.MAX_LEASE_LOSSES - 1)
    start(run, session)
    waiting = make_run(job, due_in_s=-30)
    leases.go(session, "node-1", [go_request(lease(waiting, session))])
    end_lease_of(session)

    reap_dead_sessions()

    stored = reread(run)
    assert (stored.status, stored.outcome) == ("failed", "lease_expired")
    assert reread(waiting).status == "queued"
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == waiting.run_id


def test_a_run_that_loses_five_leases_is_a_dead_letter_and_none_of_them_was_its_fault(
    settings: Settings,
) -> None:
    run = make_run(make_job(retry={"max_attempts": 1}))
    for lost in range(1, 6):
        assert reread(run).status == "queued", f"given up after {lost - 1} lost leases"
        settings.LEASE_S = 30  # now() stands still in a test, the go's clock goes on
        session = make_session()
        start(run, session)
        end_lease_of(session)
        settings.LEASE_S = 0.5
        assert reap_dead_sessions() == (1, 1)

    stored = reread(run)
    assert (stored.status, stored.outcome) == ("failed", "lease_expired")
    assert (stored.lease_losses, stored.failures) == (5, 0)
    attempts = RunAttempt.objects.filter(run_id=run.run_id).order_by("attempt")
    assert [each.attempt for each in attempts] == [1, 2, 3, 4, 5]
    assert {each.outcome for each in attempts} == {"lease_expired"}
    letters = dead_letters_of(run.tenant, DeadLetterFilter(outcome="lease_expired"))
    assert [letter.run_id for letter in letters] == [run.run_id]
    assert reap_dead_sessions() == (0, 0)


def test_a_cancelled_run_of_a_dead_session_is_cancelled_and_not_run_again() -> None:
    session = make_session()
    run = make_run()
    start(run, session)
    Run.objects.filter(run_id=run.run_id).update(cancel_requested_at=database_now())
    end_lease_of(session)

    reap_dead_sessions()

    assert reread(run).status == "cancelled"


@pytest.mark.parametrize("leaving", ["silent", "draining", "expired"])
def test_unstarted_runs_of_a_leaving_session_are_taken_at_once(leaving: str) -> None:
    session = make_session()
    placed = place(make_run(due_in_s=30), session)
    leased = lease(make_run(due_in_s=30), session)
    change = {
        "silent": "last_seen_at = now() - interval '6 seconds'",
        "draining": "draining = true",
        "expired": "lease_expires_at = now() - interval '1 millisecond'",
    }[leaving]
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE worker_sessions SET {change} WHERE session_id = %s", [session])

    assert requeue_unstarted() == 2

    assert reread(placed).lease_owner is None
    stored = Run.objects.get(run_id=leased.run_id)
    assert (stored.status, stored.lease_owner) == ("queued", None)
    assert stored.attempt == 1
    assert stored.fence > leased.fence


@pytest.mark.parametrize("end", ["ended_at = now()", "DELETE"])
def test_a_run_placed_on_a_session_while_that_ended_is_placed_again(end: str) -> None:
    """The dispatcher saw the session open; it ended before the placement was committed."""
    session = make_session()
    placed, leased = place(make_run(), session), lease(make_run(), session)
    with connection.cursor() as cursor:
        table = "worker_sessions"
        change = f"DELETE FROM {table}" if end == "DELETE" else f"UPDATE {table} SET {end}"
        cursor.execute(f"{change} WHERE session_id = %s", [session])

    assert reap_once()["requeued"] == 2

    assert reread(placed).lease_owner is None
    assert Run.objects.get(run_id=leased.run_id).status == "queued"


def test_a_worker_that_ends_in_order_leaves_no_placed_run_behind() -> None:
    session = make_session()
    placed, leased = place(make_run(due_in_s=30), session), lease(make_run(due_in_s=30), session)
    leases.drain(session)

    assert leases.end_session(session)

    assert reread(placed).lease_owner is None
    assert Run.objects.get(run_id=leased.run_id).status == "queued"


def test_a_session_that_still_runs_something_is_left_to_the_reaper() -> None:
    session = make_session()
    run = make_run()
    start(run, session)

    assert not leases.end_session(session)

    assert reread(run).status == "running"
    assert WorkerSession.objects.get(session_id=session).ended_at is None


def test_a_run_whose_go_crossed_its_session_s_end_is_reaped_after_the_lease() -> None:
    session = make_session()
    run = make_run()
    start(run, session)
    WorkerSession.objects.filter(session_id=session).update(ended_at=database_now())

    assert reap_once()["reaped"] == 0, "its container may run until the lease has ended"
    end_lease_of(session)

    assert reap_once()["reaped"] == 1
    assert reread(run).status == "queued"


def test_a_late_go_for_a_run_that_was_taken_is_refused() -> None:
    session = make_session()
    leased = lease(make_run(), session)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE worker_sessions SET last_seen_at = now() - interval '6 seconds'"
            " WHERE session_id = %s",
            [session],
        )
    requeue_unstarted()

    reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]

    assert reply.answer is GoAnswer.LEASE_LOST


def test_running_runs_of_a_silent_session_wait_for_its_lease() -> None:
    session = make_session()
    run = make_run()
    start(run, session)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE worker_sessions SET last_seen_at = now() - interval '20 seconds',"
            " lease_expires_at = now() + interval '10 seconds' WHERE session_id = %s",
            [session],
        )

    assert reap_once() == {"requeued": 0, "reaped": 0, "sessions": 0}
    assert reread(run).status == "running"


def test_a_guard_whose_holder_is_final_is_released_by_the_second_net() -> None:
    job = make_job(overlap="queue")
    over = make_run(job, due_in_s=-60, status="succeeded", finished_at=database_now())
    waiting = make_run(job, due_in_s=-30, status="blocked")
    JobGuard.objects.create(job_id=job.job_id, holder_run_id=over.run_id)

    assert release_stale_guards() == {"guards": 1}
    assert release_stale_guards() == {"guards": 0}

    assert reread(waiting).status == "queued"
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == waiting.run_id


def test_a_guard_whose_holder_is_gone_is_released_and_of_an_active_one_is_kept() -> None:
    gone, active = make_job(overlap="skip"), make_job(overlap="skip")
    JobGuard.objects.create(job_id=gone.job_id, holder_run_id=make_run().run_id)
    run = make_run(active)
    JobGuard.objects.create(job_id=active.job_id, holder_run_id=run.run_id)

    assert release_stale_guards() == {"guards": 1}
    assert JobGuard.objects.get(job_id=gone.job_id).holder_run_id is None
    assert JobGuard.objects.get(job_id=active.job_id).holder_run_id == run.run_id
