"""Lease, go, heartbeat, complete: who may write, and what zero rows mean."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection
from pytest_django import Settings

from jobs.models import Job
from runs import dispatcher, leases
from runs.domain.outcome import OutcomeCode, outcome
from runs.leases import CompleteAnswer, Completion, GoAnswer, Leased, Refused, RunRef
from runs.models import JobGuard, Run, RunAttempt, RunEvent, RunOutput
from runs.reaper import reap_dead_sessions
from runs.selectors import run_detail
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

pytestmark = pytest.mark.django_db


def ended(
    leased: Leased, code: OutcomeCode = OutcomeCode.SUCCEEDED, **fields: object
) -> Completion:
    now = database_now()
    values = {"exit_code": 0 if code is OutcomeCode.SUCCEEDED else 1, "output": b"said\n"}
    return Completion(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        outcome=outcome(code, code.value),
        started_at=now - timedelta(seconds=1),
        finished_at=now,
        **values | fields,  # type: ignore[arg-type]
    )


def complete(session: UUID, completion: Completion) -> CompleteAnswer:
    return leases.complete(session, "node-1", [completion])[completion.run_id]


def start_again(run: Run, session: UUID) -> Leased:
    """The lease of a run that was passed its job's guard, with its go."""
    assert reread(run).status == "queued"
    return start(run, session)


def go(session: UUID, leased: Leased) -> GoAnswer:
    return leases.go(session, "node-1", [go_request(leased)])[leased.run_id].answer


class TestLease:
    def test_each_lease_draws_a_higher_fence(self) -> None:
        session = make_session()
        run = make_run()
        first = lease(run, session)
        leases.hand_back(session, [first])

        second = lease(run, session)

        assert second.fence > first.fence > 0

    def test_a_run_placed_on_another_session_is_refused(self) -> None:
        run = place(make_run(), make_session())
        other = make_session()

        answer = leases.lease(other, [RunRef(run.run_id, run.scheduled_for)])[run.run_id]

        assert answer == Refused(run.run_id, "queued")
        assert reread(run).fence == 0

    def test_a_message_delivered_twice_gets_one_lease(self) -> None:
        session = make_session()
        run = place(make_run(), session)
        ref = RunRef(run.run_id, run.scheduled_for)

        first = leases.lease(session, [ref])[run.run_id]
        second = leases.lease(session, [ref])[run.run_id]

        assert isinstance(first, Leased)
        assert second == Refused(run.run_id, "leased")

    def test_a_deleted_run_is_gone(self) -> None:
        session = make_session()
        run = place(make_run(), session)
        ref = RunRef(run.run_id, run.scheduled_for)
        Run.objects.filter(run_id=run.run_id).delete()

        assert leases.lease(session, [ref])[run.run_id] == Refused(run.run_id, "gone")

    @pytest.mark.parametrize("life", ["expired", "draining", "ended"])
    def test_a_session_that_is_leaving_gets_no_lease(self, life: str) -> None:
        session = make_session()
        run = place(make_run(), session)
        change = {
            "expired": "lease_expires_at = now() - interval '1 second'",
            "draining": "draining = true",
            "ended": "ended_at = now()",
        }[life]
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE worker_sessions SET {change} WHERE session_id = %s", [session])

        answer = leases.lease(session, [RunRef(run.run_id, run.scheduled_for)])[run.run_id]

        assert isinstance(answer, Refused)

    def test_a_lease_carries_the_task_and_the_time_until_it_is_ready(self) -> None:
        session = make_session()
        run = make_run(due_in_s=10)

        leased = lease(run, session)

        assert leased.task["image"] == "scheduler-demo:latest"
        assert 8 < leased.ready_in_s < 11
        assert leased.attempt == 1


class TestGo:
    def test_a_go_writes_the_attempt_and_its_instants(self) -> None:
        session = make_session()
        run = make_run()

        leased = start(run, session)

        stored = reread(run)
        attempt = RunAttempt.objects.get(run_id=run.run_id)
        assert (stored.status, stored.fence) == ("running", leased.fence)
        assert (attempt.attempt, attempt.fence, attempt.session_id) == (1, leased.fence, session)
        assert stored.go_at is not None
        assert stored.go_at >= stored.due_at
        assert attempt.ended_at is None

    def test_before_its_time_by_the_databases_clock_the_answer_is_not_yet(self) -> None:
        session = make_session()
        leased = lease(make_run(due_in_s=10), session)

        reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]

        assert reply.answer is GoAnswer.NOT_YET
        assert 8 < reply.wait_s < 11

    def test_asked_again_after_a_lost_answer_it_is_the_same_go_and_the_same_attempt(self) -> None:
        session = make_session()
        leased = start(make_run(), session)

        assert go(session, leased) is GoAnswer.GO
        assert RunAttempt.objects.filter(run_id=leased.run_id).count() == 1

    def test_an_expired_session_gets_no_go(self) -> None:
        session = make_session()
        leased = lease(make_run(), session)
        end_lease_of(session)

        assert go(session, leased) is GoAnswer.LEASE_LOST

    def test_a_retry_that_a_delete_did_not_see_gets_no_go_and_gives_its_guard_up(self) -> None:
        session = make_session()
        job = make_job(overlap="queue", retry={"max_attempts": 2, "base_s": 0})
        run = make_run(job)
        complete(session, ended(start(run, session), OutcomeCode.SIGNAL))
        Run.objects.filter(run_id=run.run_id).update(ready_at=run.due_at)
        Job.objects.filter(job_id=job.job_id).update(deleted_at=database_now())

        assert go(session, lease(run, session)) is GoAnswer.SKIP

        assert (reread(run).status, reread(run).skip_reason) == ("skipped", "job_deleted")
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id is None

    def test_a_run_deleted_by_an_edit_gets_no_go(self) -> None:
        session = make_session()
        leased = lease(make_run(), session)
        Run.objects.filter(run_id=leased.run_id).delete()

        assert go(session, leased) is GoAnswer.LEASE_LOST

    def test_a_run_leased_again_elsewhere_refuses_the_go_of_the_first(self) -> None:
        first, second = make_session(), make_session()
        run = make_run()
        old = lease(run, first)
        leases.hand_back(first, [old])
        lease(run, second)

        assert go(first, old) is GoAnswer.LEASE_LOST
        assert reread(run).status == "leased"

    def test_an_edited_task_must_be_prepared_again(self) -> None:
        session = make_session()
        leased = lease(make_run(), session)
        Job.objects.filter(job_id=leased.job_id).update(version=2)

        assert go(session, leased) is GoAnswer.TASK_CHANGED


class TestOverlap:
    @pytest.mark.parametrize(
        ("overlap", "answer", "status"),
        [
            ("skip", GoAnswer.SKIP, "skipped"),
            ("queue", GoAnswer.BLOCK, "blocked"),
            ("allow", GoAnswer.GO, "running"),
        ],
    )
    def test_what_happens_while_an_earlier_run_is_active(
        self, overlap: str, answer: GoAnswer, status: str
    ) -> None:
        session = make_session()
        job = make_job(overlap=overlap)
        start(make_run(job, due_in_s=-120), session)
        second = make_run(job, due_in_s=-60)

        assert go(session, lease(second, session)) is answer

        stored = reread(second)
        assert stored.status == status
        assert stored.skip_reason == ("overlap" if status == "skipped" else "")
        assert (stored.lease_owner is None) == (status != "running")

    def test_of_a_batch_of_one_job_only_the_oldest_goes(self) -> None:
        session = make_session()
        job = make_job(overlap="skip")
        leased = [lease(make_run(job, due_in_s=-60 * n), session) for n in (1, 2, 3)]

        replies = leases.go(session, "node-1", [go_request(one) for one in leased])

        oldest = leased[2].run_id
        assert replies[oldest].answer is GoAnswer.GO
        assert [replies[one.run_id].answer for one in leased[:2]] == [GoAnswer.SKIP] * 2

    def test_the_end_of_a_run_passes_the_guard_to_the_next_blocked_one_in_order(self) -> None:
        session = make_session()
        job = make_job(overlap="queue")
        first = start(make_run(job, due_in_s=-180), session)
        second = make_run(job, due_in_s=-120)
        third = make_run(job, due_in_s=-60)
        for run in (third, second):
            assert go(session, lease(run, session)) is GoAnswer.BLOCK

        assert complete(session, ended(first)) is CompleteAnswer.OK

        assert reread(second).status == "queued"
        assert reread(third).status == "blocked"
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == second.run_id
        assert go(session, lease(second, session)) is GoAnswer.GO

    def test_beyond_the_queue_limit_a_run_is_skipped_with_that_reason(self) -> None:
        session = make_session()
        job = make_job(overlap="queue", queue_limit=1)
        start(make_run(job, due_in_s=-180), session)
        waiting, beyond = make_run(job, due_in_s=-120), make_run(job, due_in_s=-60)

        assert go(session, lease(waiting, session)) is GoAnswer.BLOCK
        assert go(session, lease(beyond, session)) is GoAnswer.SKIP
        assert reread(beyond).skip_reason == "queue_full"

    def test_a_run_in_backoff_keeps_its_guard(self) -> None:
        session = make_session()
        job = make_job(overlap="skip", retry={"max_attempts": 3, "backoff": "fixed", "base_s": 60})
        failing = start(make_run(job, due_in_s=-120), session)
        complete(session, ended(failing, OutcomeCode.NON_ZERO_EXIT))

        second = make_run(job, due_in_s=-60)

        assert go(session, lease(second, session)) is GoAnswer.SKIP


class TestReplace:
    """The newest run of a job takes the place of those before it."""

    RETRY = {"max_attempts": 3, "backoff": "fixed", "base_s": 60, "jitter": "none"}

    def test_the_running_one_is_asked_to_stop_and_the_new_one_goes_once_it_is_dead(self) -> None:
        session = make_session()
        job = make_job(overlap="replace", retry=self.RETRY)
        old = start(make_run(job, due_in_s=-120), session)
        new = make_run(job, due_in_s=-60)

        assert go(session, lease(new, session)) is GoAnswer.BLOCK

        asked = Run.objects.get(run_id=old.run_id)
        assert (asked.status, asked.replaced_by) == ("running", new.run_id)
        assert asked.cancel_requested_at is not None
        beat = leases.look(session, accepting=True, reason="")
        assert [run.cancel_requested for run in beat.owned] == [True]
        assert reread(new).status == "blocked"

        assert complete(session, ended(old, OutcomeCode.CANCELLED)) is CompleteAnswer.OK

        assert Run.objects.get(run_id=old.run_id).status == "cancelled"
        assert reread(new).status == "queued"
        assert go(session, lease(new, session)) is GoAnswer.GO

    def test_one_that_ended_well_at_that_moment_has_succeeded(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        old = start(make_run(job, due_in_s=-120), session)
        new = make_run(job, due_in_s=-60)
        go(session, lease(new, session))

        complete(session, ended(old))

        assert Run.objects.get(run_id=old.run_id).status == "succeeded"
        assert reread(new).status == "queued"

    def test_one_that_failed_at_that_moment_is_not_tried_again(self) -> None:
        session = make_session()
        job = make_job(overlap="replace", retry=self.RETRY)
        old = start(make_run(job, due_in_s=-120), session)
        new = make_run(job, due_in_s=-60)
        go(session, lease(new, session))

        complete(session, ended(old, OutcomeCode.NON_ZERO_EXIT))

        assert Run.objects.get(run_id=old.run_id).status == "cancelled"
        assert reread(new).status == "queued"

    def test_when_its_worker_is_dead_the_new_one_goes_after_the_lease(
        self, settings: Settings
    ) -> None:
        dead, session = make_session(), make_session()
        job = make_job(overlap="replace")
        old = make_run(job, due_in_s=-120)
        start(old, dead)
        new = make_run(job, due_in_s=-60)
        go(session, lease(new, session))
        end_lease_of(dead)
        settings.LEASE_S = 0.5  # the database is up for long

        reap_dead_sessions()

        assert reread(old).status == "cancelled"
        assert reread(new).status == "queued"
        assert go(session, lease(new, session)) is GoAnswer.GO

    @pytest.mark.parametrize("stage", ["backoff", "placed", "leased"])
    def test_one_between_two_attempts_is_cancelled_at_once(self, stage: str) -> None:
        session, other = make_session(), make_session()
        job = make_job(overlap="replace", retry=self.RETRY)
        old = make_run(job, due_in_s=-120)
        complete(session, ended(start(old, session), OutcomeCode.NON_ZERO_EXIT))
        prepared = None
        if stage == "placed":
            place(old, other)
        if stage == "leased":
            prepared = lease(old, other)
        new = make_run(job, due_in_s=-60)

        assert go(session, lease(new, session)) is GoAnswer.GO

        stored = reread(old)
        assert (stored.status, stored.outcome) == ("cancelled", "cancelled")
        assert (stored.replaced_by, stored.lease_owner) == (new.run_id, None)
        assert stored.cancel_requested_at is not None
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == new.run_id
        if prepared is not None:
            assert go(other, prepared) is GoAnswer.LEASE_LOST

    def test_a_third_arrival_takes_the_place_of_the_waiting_second(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        first = start(make_run(job, due_in_s=-180), session)
        second, third = make_run(job, due_in_s=-120), make_run(job, due_in_s=-60)
        go(session, lease(second, session))

        assert go(session, lease(third, session)) is GoAnswer.BLOCK

        stored = reread(second)
        assert (stored.status, stored.skip_reason) == ("skipped", "replaced")
        assert stored.replaced_by == third.run_id
        assert Run.objects.get(run_id=first.run_id).replaced_by == third.run_id
        complete(session, ended(first, OutcomeCode.CANCELLED))
        assert reread(third).status == "queued"

    def test_a_third_arrival_takes_the_guard_of_a_second_that_has_not_begun(self) -> None:
        session, other = make_session(), make_session()
        job = make_job(overlap="replace")
        first = start(make_run(job, due_in_s=-180), session)
        second, third = make_run(job, due_in_s=-120), make_run(job, due_in_s=-60)
        go(session, lease(second, session))
        complete(session, ended(first, OutcomeCode.CANCELLED))
        prepared = lease(second, other)

        assert go(session, lease(third, session)) is GoAnswer.GO

        assert (reread(second).status, reread(second).skip_reason) == ("skipped", "replaced")
        assert go(other, prepared) is GoAnswer.LEASE_LOST

    def test_of_many_that_ask_at_once_the_newest_goes_and_the_others_are_skipped(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        runs = [make_run(job, due_in_s=-n * 60) for n in (3, 1, 2)]
        leased = [lease(run, session) for run in runs]

        replies = leases.go(session, "node-1", [go_request(each) for each in leased])

        newest = runs[1].run_id
        assert {replies[run.run_id].answer for run in runs if run.run_id != newest} == {"skip"}
        assert replies[newest].answer is GoAnswer.GO
        skipped = Run.objects.filter(job=job, skip_reason="replaced", replaced_by=newest)
        assert skipped.count() == 2

    def test_the_guards_holder_in_a_batch_with_a_newer_one_makes_room(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        first = start(make_run(job, due_in_s=-180), session)
        second, third = make_run(job, due_in_s=-120), make_run(job, due_in_s=-60)
        go(session, lease(second, session))
        complete(session, ended(first, OutcomeCode.CANCELLED))
        both = [lease(second, session), lease(third, session)]

        replies = leases.go(session, "node-1", [go_request(each) for each in both])

        assert replies[second.run_id].answer is GoAnswer.LEASE_LOST
        assert replies[third.run_id].answer is GoAnswer.GO
        assert reread(second).status == "skipped"
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == third.run_id

    def test_a_run_that_comes_after_a_newer_one_is_skipped(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        newer = start(make_run(job, due_in_s=-60), session)
        late = make_run(job, due_in_s=-120)

        assert go(session, lease(late, session)) is GoAnswer.SKIP

        assert (reread(late).skip_reason, reread(late).replaced_by) == ("replaced", newer.run_id)
        assert Run.objects.get(run_id=newer.run_id).cancel_requested_at is None

    def test_what_is_caught_up_waits_and_goes_after_all_live_work(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        first = start(make_run(job, due_in_s=-60), session)
        caught_up = make_run(job, due_in_s=-600, trigger="catch_up")
        second = make_run(job, due_in_s=-30)

        assert go(session, lease(caught_up, session)) is GoAnswer.BLOCK
        assert go(session, lease(second, session)) is GoAnswer.BLOCK
        complete(session, ended(first, OutcomeCode.CANCELLED))

        assert (reread(second).status, reread(caught_up).status) == ("queued", "blocked")
        complete(session, ended(start_again(second, session)))
        assert reread(caught_up).status == "queued"

    def test_a_holder_too_late_to_begin_leaves_the_place_to_the_next(self) -> None:
        session = make_session()
        job = make_job(overlap="replace")
        first = start(make_run(job, due_in_s=-180), session)
        second = make_run(job, due_in_s=-60, deadline_at=database_now() + timedelta(hours=1))
        go(session, lease(second, session))
        complete(session, ended(first, OutcomeCode.CANCELLED))
        late, older = lease(second, session), lease(make_run(job, due_in_s=-90), session)
        Run.objects.filter(run_id=second.run_id).update(deadline_at=database_now())

        replies = leases.go(session, "node-1", [go_request(late), go_request(older)])

        assert replies[late.run_id].answer is GoAnswer.SKIP
        assert reread(second).skip_reason == "deadline"
        assert replies[older.run_id].answer is GoAnswer.GO
        assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == older.run_id

    def test_a_policy_changed_to_replace_stops_what_holds_the_guard(self) -> None:
        session = make_session()
        job = make_job(overlap="queue")
        first = start(make_run(job, due_in_s=-180), session)
        waiting, newest = make_run(job, due_in_s=-120), make_run(job, due_in_s=-60)
        go(session, lease(waiting, session))
        Job.objects.filter(job_id=job.job_id).update(overlap="replace")

        assert go(session, lease(newest, session)) is GoAnswer.BLOCK

        assert reread(waiting).status == "skipped"
        assert Run.objects.get(run_id=first.run_id).cancel_requested_at is not None


class TestHeartbeat:
    def test_a_heartbeat_extends_the_lease_and_lists_what_the_session_owns(self) -> None:
        session = make_session()
        leased = start(make_run(), session)

        beat = leases.heartbeat(session, accepting=True, reason="")

        assert beat.alive
        assert [(run.run_id, run.fence) for run in beat.owned] == [(leased.run_id, leased.fence)]

    def test_an_expired_session_cannot_renew_itself(self) -> None:
        session = make_session()
        end_lease_of(session, ago_s=1)

        assert not leases.heartbeat(session, accepting=True, reason="").alive
        assert not leases.look(session, accepting=True, reason="").alive

    def test_an_unknown_session_is_not_alive(self) -> None:
        assert not leases.heartbeat(uuid4(), accepting=True, reason="").alive


class TestComplete:
    def test_a_success_is_final_with_its_attempt_and_output(self) -> None:
        session = make_session()
        leased = start(make_run(), session)

        assert complete(session, ended(leased)) is CompleteAnswer.OK

        run = Run.objects.get(run_id=leased.run_id)
        attempt = RunAttempt.objects.get(run_id=leased.run_id)
        output = RunOutput.objects.get(run_id=leased.run_id)
        assert (run.status, run.outcome, run.exit_code) == ("succeeded", "succeeded", 0)
        assert run.lease_owner is None
        assert run.finished_at is not None
        assert attempt.outcome == "succeeded"
        assert attempt.ended_at is not None
        assert bytes(output.tail) == b"said\n"

    def test_a_failure_waits_and_is_tried_again_until_the_attempts_are_used_up(self) -> None:
        session = make_session()
        policy = {"max_attempts": 2, "backoff": "fixed", "base_s": 30, "jitter": "none"}
        run = make_run(make_job(retry=policy))

        complete(session, ended(start(run, session), OutcomeCode.NON_ZERO_EXIT))
        waiting = reread(run)
        Run.objects.filter(run_id=run.run_id).update(ready_at=database_now())
        complete(session, ended(start(run, session), OutcomeCode.NON_ZERO_EXIT))
        dead = reread(run)

        assert (waiting.status, waiting.attempt, waiting.failures) == ("queued", 2, 1)
        assert timedelta(seconds=28) < waiting.ready_at - database_now() <= timedelta(seconds=30)
        assert waiting.due_at == run.due_at
        assert (dead.status, dead.attempt, dead.failures) == ("failed", 2, 2)
        assert RunAttempt.objects.filter(run_id=run.run_id).count() == 2

    @pytest.mark.parametrize(
        "code", [OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.LEASE_EXPIRED, OutcomeCode.SIGNAL]
    )
    def test_a_run_that_failed_while_it_was_prepared_still_waits_for_its_time(
        self, code: OutcomeCode
    ) -> None:
        session = make_session()
        run = make_run(make_job(retry={"max_attempts": 3, "base_s": 1}), due_in_s=30)

        complete(session, ended(lease(run, session), code))

        assert reread(run).status == "queued"
        assert reread(run).ready_at == run.due_at

    @pytest.mark.parametrize("message", ["exec: \0 not found", "\udcff", "\0" * 3])
    def test_whatever_an_engine_says_can_be_stored(self, message: str) -> None:
        session = make_session()
        run = make_run()
        leased = start(run, session)

        said = replace(ended(leased), outcome=outcome(OutcomeCode.BAD_COMMAND, message))
        assert complete(session, said) is CompleteAnswer.OK

        assert reread(run).status == "failed"
        assert RunAttempt.objects.get(run_id=run.run_id).message

    @pytest.mark.parametrize(
        "retry", [[], "three", {"max_attempts": "3"}, {"max_attempts": 2, "base_s": []}]
    )
    def test_a_retry_policy_that_somebody_broke_keeps_no_run_from_its_end(
        self, retry: object
    ) -> None:
        session = make_session()
        run = make_run(make_job(retry=retry))

        assert complete(session, ended(start(run, session), OutcomeCode.SIGNAL)) == "ok"

        assert reread(run).status in ("failed", "queued")

    def test_the_same_report_twice_is_ok_and_writes_once(self) -> None:
        session = make_session()
        run = make_run(make_job(retry={"max_attempts": 3}))
        leased = start(run, session)
        report = ended(leased, OutcomeCode.NON_ZERO_EXIT)

        assert complete(session, report) is CompleteAnswer.OK
        assert complete(session, report) is CompleteAnswer.OK
        assert reread(run).failures == 1

    def test_a_paused_worker_cannot_complete_a_run_leased_to_another(self) -> None:
        frozen, other = make_session(), make_session()
        run = make_run()
        old = start(run, frozen)
        Run.objects.filter(run_id=run.run_id).update(
            status="queued", lease_owner=None, fence=old.fence + 1000, attempt=2
        )
        new = start(run, other)

        assert complete(frozen, ended(old)) is CompleteAnswer.STALE_FENCE

        stored = reread(run)
        assert (stored.status, stored.fence, stored.lease_owner) == ("running", new.fence, other)
        assert RunEvent.objects.get(run_id=run.run_id).kind == "stale_fence"

    def test_another_session_cannot_complete_with_the_right_fence(self) -> None:
        leased = start(make_run(), make_session())

        assert complete(make_session(), ended(leased)) is CompleteAnswer.STALE_FENCE
        assert Run.objects.get(run_id=leased.run_id).status == "running"

    def test_a_container_that_ended_in_time_may_be_completed_late(self) -> None:
        session = make_session()
        leased = start(make_run(), session)
        end_lease_of(session)

        assert complete(session, ended(leased)) is CompleteAnswer.OK
        assert Run.objects.get(run_id=leased.run_id).status == "succeeded"

    def test_our_own_trouble_uses_none_of_the_customers_attempts(self) -> None:
        session = make_session()
        run = make_run()
        leased = start(run, session)

        complete(session, ended(leased, OutcomeCode.ENGINE_UNREACHABLE, exit_code=None))

        stored = reread(run)
        assert (stored.status, stored.failures, stored.lease_losses) == ("queued", 0, 1)
        assert stored.attempt == 2

    def test_a_permanent_error_is_final_at_once(self) -> None:
        session = make_session()
        run = make_run(make_job(retry={"max_attempts": 5}))
        leased = lease(run, session)

        complete(session, ended(leased, OutcomeCode.IMAGE_NOT_FOUND, exit_code=None))

        assert reread(run).status == "failed"
        attempt = RunAttempt.objects.get(run_id=run.run_id)
        assert (attempt.go_at, attempt.outcome) == (None, "image_not_found")

    def test_a_fatal_exit_code_ends_the_run_at_once(self) -> None:
        session = make_session()
        run = make_run(make_job(retry={"max_attempts": 5, "exit_codes": {"fail": ["64-78"]}}))

        complete(session, ended(start(run, session), OutcomeCode.NON_ZERO_EXIT, exit_code=65))

        stored = reread(run)
        assert (stored.status, stored.outcome, stored.failures) == ("failed", "fatal_exit", 1)
        attempt = RunAttempt.objects.get(run_id=run.run_id)
        assert (attempt.outcome, attempt.exit_code) == ("fatal_exit", 65)

    def test_an_ignored_exit_code_uses_no_attempt_and_the_run_has_begun(self) -> None:
        session = make_session()
        retry = {"max_attempts": 1, "base_s": 30, "jitter": "none",
                 "exit_codes": {"ignore": ["99"]}}  # fmt: skip
        late = database_now()
        run = make_run(make_job(retry=retry))
        leased = start(run, session)
        Run.objects.filter(run_id=run.run_id).update(deadline_at=late)

        complete(session, ended(leased, OutcomeCode.NON_ZERO_EXIT, exit_code=99))

        stored = reread(run)
        assert (stored.status, stored.attempt, stored.failures) == ("queued", 2, 0)
        assert stored.ready_at > database_now() + timedelta(seconds=25)
        assert run_detail(run.tenant, run.run_id).waiting_for.reason == "retry_backoff"  # type: ignore[union-attr]
        assert dispatcher.expire_once() == {"expired": 0}
        Run.objects.filter(run_id=run.run_id).update(ready_at=database_now())
        complete(session, ended(start(run, session), OutcomeCode.NON_ZERO_EXIT))
        assert (reread(run).status, reread(run).outcome) == ("failed", "non_zero_exit")

    def test_a_run_that_always_ends_ignored_fails_in_the_end(self) -> None:
        session = make_session()
        run = make_run(make_job(retry={"exit_codes": {"ignore": ["99"]}}), attempt=101)

        complete(session, ended(start(run, session), OutcomeCode.NON_ZERO_EXIT, exit_code=99))

        assert (reread(run).status, reread(run).outcome) == ("failed", "non_zero_exit")

    def test_a_run_whose_cancel_was_asked_for_is_cancelled_at_its_end(self) -> None:
        session = make_session()
        run = make_run(make_job(retry={"max_attempts": 5}))
        leased = start(run, session)
        Run.objects.filter(run_id=run.run_id).update(cancel_requested_at=database_now())

        complete(session, ended(leased, OutcomeCode.CANCELLED, exit_code=143))

        assert reread(run).status == "cancelled"

    def test_a_run_that_succeeded_has_succeeded_although_its_cancel_was_asked_for(self) -> None:
        session = make_session()
        run = make_run()
        leased = start(run, session)
        Run.objects.filter(run_id=run.run_id).update(cancel_requested_at=database_now())

        complete(session, ended(leased))

        assert reread(run).status == "succeeded"
