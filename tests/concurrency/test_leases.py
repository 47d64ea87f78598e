"""Races between workers, and between a worker and the reaper: exactly one of them wins."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from jobs.models import Job
from jobs.services import job_delete, job_set_enabled
from runs import dispatcher, leases, store, transport
from runs.domain.outcome import OutcomeCode, outcome
from runs.job_effects import StoredRunEffects
from runs.leases import CompleteAnswer, Completion, GoAnswer, Leased, RunRef
from runs.models import JobGuard, Run, RunAttempt
from runs.reaper import reap_dead_sessions
from runs.services import run_cancel
from tests.support.factories import (
    database_now,
    end_lease_of,
    go_request,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    place,
    reread,
    start,
)
from tests.support.polling import poll
from tests.support.racing import race

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _database_is_up_for_long(settings: Settings) -> None:
    settings.LEASE_S = 0.5


def success(leased: Leased) -> Completion:
    return Completion(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        outcome=outcome(OutcomeCode.SUCCEEDED, "exit code 0"),
        exit_code=0,
    )


def stopped(leased: Leased) -> Completion:
    return replace(success(leased), outcome=outcome(OutcomeCode.CANCELLED, ""), exit_code=143)


def placed_on(run: Run, session: UUID) -> bool:
    """Try to place the run; a row that somebody holds is passed over."""
    keys = {"run_ids": [run.run_id], "scheduled_fors": [run.scheduled_for]}
    return bool(store.fetch("place_runs", sessions=[session], **keys))


def completer(session: UUID, leased: Leased) -> Callable[[], CompleteAnswer]:
    return lambda: leases.complete(session, "node", [success(leased)])[leased.run_id]


def goer(session: UUID, leased: Leased) -> Callable[[], GoAnswer]:
    return lambda: leases.go(session, "node", [go_request(leased)])[leased.run_id].answer


def test_twenty_deliveries_of_one_run_get_one_lease() -> None:
    session = make_session(slots=50)
    run = place(make_run(), session)
    ref = RunRef(run.run_id, run.scheduled_for)

    answers = race([lambda: leases.lease(session, [ref])[run.run_id]] * 20)

    assert sum(isinstance(answer, Leased) for answer in answers) == 1


def test_two_runs_of_a_job_that_must_not_overlap_never_both_go() -> None:
    for _ in range(10):
        job = make_job(overlap="skip")
        one, two = make_session(), make_session()
        first = lease(make_run(job, due_in_s=-60), one)
        second = lease(make_run(job, due_in_s=-30), two)

        answers = race([goer(one, first), goer(two, second)])

        assert sorted(answers) == ["go", "skip"]
        assert Run.objects.filter(job=job, status="running").count() == 1


def test_a_completion_that_crosses_a_block_never_strands_the_blocked_run() -> None:
    """No lost wake-up: whichever comes first, the second run goes or is passed the guard."""
    for _ in range(20):
        job = make_job(overlap="queue")
        session = make_session()
        first = start(make_run(job, due_in_s=-60), session)
        second = make_run(job, due_in_s=-30)
        waiting = lease(second, session)

        _, answer = race([completer(session, first), goer(session, waiting)])

        stored = reread(second)
        if answer == GoAnswer.BLOCK:
            assert stored.status == "queued", "blocked and passed the guard"
        else:
            assert (answer, stored.status) == (GoAnswer.GO, "running")
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == second.run_id


def test_of_two_runs_of_a_job_that_replaces_its_runs_the_newer_is_left() -> None:
    for _ in range(10):
        job = make_job(overlap="replace")
        one, two = make_session(), make_session()
        older, newer = make_run(job, due_in_s=-60), make_run(job, due_in_s=-30)
        first, second = lease(older, one), lease(newer, two)

        answers = race([goer(one, first), goer(two, second)])

        assert answers in ([GoAnswer.GO, GoAnswer.BLOCK], [GoAnswer.SKIP, GoAnswer.GO])
        assert Run.objects.filter(job=job, status="running").count() == 1
        assert reread(older).replaced_by == newer.run_id
        if answers[0] is GoAnswer.GO:
            assert reread(older).cancel_requested_at is not None
            leases.complete(one, "node", [stopped(first)])
            assert reread(newer).status == "queued"


def test_a_completion_that_crosses_a_replacing_go_never_strands_the_new_run() -> None:
    """No lost wake-up: whichever comes first, the new run goes or is passed the guard."""
    for _ in range(20):
        job = make_job(overlap="replace")
        session = make_session()
        first = start(make_run(job, due_in_s=-60), session)
        second = make_run(job, due_in_s=-30)
        waiting = lease(second, session)

        completed, answer = race([completer(session, first), goer(session, waiting)])

        assert completed is CompleteAnswer.OK
        stored = reread(second)
        if answer == GoAnswer.BLOCK:
            assert stored.status == "queued", "blocked and passed the guard"
        else:
            assert (answer, stored.status) == (GoAnswer.GO, "running")
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == second.run_id


def test_a_cancel_of_the_waiting_run_and_a_completion_at_once_leave_the_guard_free() -> None:
    for overlap in ["queue", "replace"] * 8:
        job = make_job(overlap=overlap)
        session = make_session()
        first = start(make_run(job, due_in_s=-60), session)
        second = make_run(job, due_in_s=-30)
        assert goer(session, lease(second, session))() is GoAnswer.BLOCK

        def cancel(run: Run = second) -> str:
            return run_cancel(run.tenant, run.run_id).status

        assert race([completer(session, first), cancel]) == [CompleteAnswer.OK, "cancelled"]
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id is None


def test_a_delete_of_the_job_and_a_block_at_once_leave_nothing_waiting() -> None:
    """Of itself the go is faster; every other time it begins when the delete is under way."""
    for overlap, delete_leads in [("queue", False), ("queue", True), ("replace", True)] * 5:
        job = make_due_job(overlap=overlap, due_in_s=3600)
        session = make_session()
        first = start(make_run(job, due_in_s=-60), session)
        second = make_run(job, due_in_s=-30)
        waiting = lease(second, session)
        go = goer(session, waiting)

        def delete(job: Job = job) -> str:
            job_delete(job.tenant, job.job_id, changed_by="test")
            return "deleted"

        def go_late(job: Job = job, go: Callable[[], GoAnswer] = go) -> GoAnswer:
            poll(lambda: cursor_is_held(job) or is_deleted(job), what="the delete has begun")
            return go()

        _, answer = race([delete, go_late if delete_leads else go])

        assert answer in (GoAnswer.BLOCK, GoAnswer.SKIP, GoAnswer.LEASE_LOST)
        assert reread(second).status in ("cancelled", "skipped")
        leases.complete(session, "node", [success(first)])
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id is None


def cursor_is_held(job: Job) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM schedule_cursors WHERE job_id = %s FOR UPDATE SKIP LOCKED", [job.job_id]
        )
        return cursor.fetchone() is None


def is_deleted(job: Job) -> bool:
    return Job.objects.filter(job_id=job.job_id, deleted_at__isnull=False).exists()


def test_the_reaper_and_a_replacing_go_at_once_leave_one_that_goes() -> None:
    for _ in range(10):
        job = make_job(overlap="replace")
        dead, session = make_session(), make_session()
        old = make_run(job, due_in_s=-60)
        start(old, dead)
        new = make_run(job, due_in_s=-30)
        waiting = lease(new, session)
        end_lease_of(dead)

        (reaped, _), answer = race([reap_dead_sessions, goer(session, waiting)])

        assert reaped == 1
        assert reread(old).status == "cancelled"
        assert reread(old).replaced_by == new.run_id
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == new.run_id
        assert reread(new).status == ("queued" if answer is GoAnswer.BLOCK else "running")


def test_a_completion_and_the_reaper_in_the_same_moment_one_wins() -> None:
    outcomes = set()
    for _ in range(15):
        session = make_session()
        run = make_run()
        leased = start(run, session)
        end_lease_of(session)

        answer, (reaped, _) = race([completer(session, leased), reap_dead_sessions])

        stored = reread(run)
        outcomes.add(stored.status)
        if answer is CompleteAnswer.OK:
            assert (stored.status, stored.lease_losses, reaped) == ("succeeded", 0, 0)
        else:
            assert (stored.status, stored.lease_losses, reaped) == ("queued", 1, 1)
        assert RunAttempt.objects.filter(run_id=run.run_id).count() == 1
    assert outcomes <= {"succeeded", "queued"}


def test_three_reapers_reap_a_run_once() -> None:
    session = make_session()
    run = make_run()
    start(run, session)
    end_lease_of(session)

    reaped = race([reap_dead_sessions] * 3)

    assert sum(runs for runs, _ in reaped) == 1
    assert reread(run).lease_losses == 1


def test_two_dispatchers_place_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[transport.Message] = []

    def record(batch: list[transport.Message]) -> int:
        messages.extend(batch)
        return len(batch)

    monkeypatch.setattr(transport, "send", record)
    make_session(slots=100)
    runs = [make_run(due_in_s=-n - 1) for n in range(20)]

    race([dispatcher.dispatch_once] * 4)

    assert sorted(m.run_id for m in messages) == sorted(run.run_id for run in runs)


def test_a_dispatcher_does_not_wait_for_a_run_that_somebody_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "send", len)
    make_session()
    held, free = make_run(due_in_s=-20), make_run(due_in_s=-10)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", [held.run_id])
        began = time.monotonic()
        (counts,) = race([dispatcher.dispatch_once])
        waited_s = time.monotonic() - began

    assert counts["placed"] == 1
    assert waited_s < 1.5
    assert reread(free).lease_owner is not None
    assert reread(held).lease_owner is None
    assert dispatcher.dispatch_once()["placed"] == 1


def test_a_frozen_workers_go_and_a_new_lease_elsewhere_one_container_only() -> None:
    for _ in range(10):
        frozen, other = make_session(), make_session()
        run = make_run()
        old = lease(run, frozen)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE worker_sessions SET last_seen_at = now() - interval '10 seconds'"
                " WHERE session_id = %s",
                [frozen],
            )

        def late_go(frozen: UUID = frozen, old: Leased = old) -> str:
            return goer(frozen, old)().value

        def take_over(run: Run = run, other: UUID = other) -> str:
            if not store.fetch("requeue_unstarted", silent_s=5):
                return "too late"
            # The late go may hold the row for a moment; then the dispatcher's turn comes again.
            poll(lambda: placed_on(run, other), what="the run is placed elsewhere")
            leased = leases.lease(other, [RunRef(run.run_id, run.scheduled_for)])[run.run_id]
            assert isinstance(leased, Leased)
            return goer(other, leased)().value

        late, takeover = race([late_go, take_over])

        assert {late, takeover} in ({"go", "too late"}, {"lease_lost", "go"})
        assert reread(run).status == "running"
        assert RunAttempt.objects.filter(run_id=run.run_id, go_at__isnull=False).count() == 1


def test_a_cancel_and_a_completion_in_the_same_moment_end_in_one_final_state() -> None:
    for _ in range(10):
        session = make_session()
        run = make_run()
        leased = start(run, session)

        def ask_to_cancel(run: Run = run) -> str:
            Run.objects.filter(run_id=run.run_id, status="running").update(
                cancel_requested_at=database_now() - timedelta(0)
            )
            return "asked"

        def complete(session: UUID = session, leased: Leased = leased) -> str:
            return completer(session, leased)().value

        assert race([ask_to_cancel, complete])[1] == "ok"
        assert reread(run).status == "succeeded"


def test_a_pause_and_a_go_of_the_same_job_never_wait_for_each_other_in_a_circle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The go holds its job's guard and comes to the run; the pause is about to delete that run."""
    session = make_session()
    job = make_due_job(overlap="skip", due_in_s=3600)
    waiting = lease(make_run(job, due_in_s=1), session)
    JobGuard.objects.create(job_id=job.job_id)
    the_pause_is_under_way, the_guard_is_taken = threading.Event(), threading.Event()
    withdraw, lock_guards = StoredRunEffects.withdraw_planned, store.lock_guards

    def withdraw_slowly(effects: StoredRunEffects, job_id: UUID, *, now: datetime) -> int:
        count = withdraw(effects, job_id, now=now)
        the_pause_is_under_way.set()
        the_guard_is_taken.wait(0.5)
        return count

    def lock_and_say_so(job_ids: Iterable[UUID]) -> dict[UUID, UUID | None]:
        holders = lock_guards(job_ids)
        if threading.current_thread().name == "go":
            the_guard_is_taken.set()
        return holders

    def pause() -> str:
        job_set_enabled(job.tenant, job.job_id, False, changed_by="test")
        return "paused"

    def go() -> str:
        threading.current_thread().name = "go"
        assert the_pause_is_under_way.wait(5)
        return goer(session, waiting)().value

    monkeypatch.setattr(StoredRunEffects, "withdraw_planned", withdraw_slowly)
    monkeypatch.setattr(store, "lock_guards", lock_and_say_so)

    assert race([pause, go]) == ["paused", "lease_lost"]
    assert not Run.objects.filter(run_id=waiting.run_id).exists()


def test_starts_and_completions_of_the_same_runs_never_wait_in_a_circle() -> None:
    """Both come to the two runs in the other's order, while somebody holds the first."""
    session = make_session()
    leased = sorted((start(make_run(), session) for _ in range(2)), key=lambda run: run.run_id)
    starts = [
        leases.Start(run.run_id, run.scheduled_for, run.fence, database_now())
        for run in reversed(leased)
    ]
    both_wait = threading.Barrier(2)

    def hold_the_first() -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", [leased[0].run_id])
            poll(lambda: waiting_backends() == 1, what="the completion waits for it")
            both_wait.wait(5)
            poll(lambda: waiting_backends() == 2, what="and so do the starts")
        return 0

    def complete_both() -> int:
        poll(lambda: row_is_held(leased[0].run_id), what="the first is held")
        answers = leases.complete(session, "node", [success(run) for run in leased])
        return sum(answer is CompleteAnswer.OK for answer in answers.values())

    def record_both() -> int:
        both_wait.wait(15)
        return leases.record_starts(session, starts)

    held, completed, recorded = race([hold_the_first, complete_both, record_both])

    assert (held, completed, recorded) == (0, 2, 0)


def waiting_backends() -> int:
    """How many connections wait for a lock. (pg_stat_activity stands still in a transaction.)"""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


def row_is_held(run_id: UUID) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE SKIP LOCKED", [run_id])
        return cursor.fetchone() is None
