"""Too late, caught up, or of a job that changed: what becomes of a run at the dispatcher and go."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.domain.spec import JobChanges
from jobs.models import Job
from jobs.services import job_create, job_update
from runs import leases
from runs.dispatcher import dispatch_once, expire_once
from runs.leases import GoAnswer, RunRef
from runs.models import JobGuard, Run
from runs.planner import plan_once
from tests.support.factories import (
    database_now,
    go_request,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    make_tenant,
    place,
    reread,
    start,
)

pytestmark = pytest.mark.django_db

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}


def ago(seconds: float) -> Any:
    return database_now() - timedelta(seconds=seconds)


def skipped(run: Run) -> tuple[str, str]:
    run = reread(run)
    return run.status, run.skip_reason


# --- the deadline ---------------------------------------------------------------------------------


def test_a_planned_run_knows_its_deadline_and_one_without_has_none() -> None:
    strict = make_due_job(due_in_s=5, misfire={"deadline_s": 90})
    loose = make_due_job(due_in_s=5)
    plan_once()
    runs = Run.objects.filter(job=strict)
    assert runs
    assert all(run.deadline_at == run.due_at + timedelta(seconds=90) for run in runs)
    assert all(run.deadline_at is None for run in Run.objects.filter(job=loose))


def test_a_run_that_waits_for_a_slot_past_its_deadline_never_runs() -> None:
    late = make_run(due_in_s=-100, deadline_at=ago(10))
    in_time = make_run(due_in_s=-100, deadline_at=ago(-10))

    # Not even placed, should a slot come free before the duty looks.
    make_session()
    assert dispatch_once()["placed"] == 1
    assert expire_once() == {"expired": 1}

    assert skipped(late) == ("skipped", "deadline")
    assert reread(in_time).status == "queued"
    assert expire_once() == {"expired": 0}


def test_a_prepared_run_past_its_deadline_is_refused_at_its_go() -> None:
    session = make_session()
    leased = lease(make_run(due_in_s=-100), session)
    Run.objects.update(deadline_at=ago(1))
    reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]
    assert reply.answer is GoAnswer.SKIP
    run = Run.objects.get(run_id=leased.run_id)
    assert (run.status, run.skip_reason) == ("skipped", "deadline")


def test_a_run_that_has_begun_once_is_tried_again_whatever_the_deadline() -> None:
    run = make_run(due_in_s=-100, deadline_at=ago(10), failures=1)
    session = make_session()
    assert expire_once() == {"expired": 0}
    start(run, session)
    assert reread(run).status == "running"


def test_a_blocked_run_past_its_deadline_passes_the_guard_on() -> None:
    job = make_job(overlap="queue")
    session = make_session()
    first = make_run(job, due_in_s=-50)
    started = start(first, session)
    late = make_run(job, due_in_s=-40, status="blocked", deadline_at=ago(5))
    following = make_run(job, due_in_s=-30, status="blocked")

    # Its turn comes at the moment it is too late, before any duty looked.
    Run.objects.filter(run_id=late.run_id).update(status="queued")
    JobGuard.objects.filter(job_id=job.job_id).update(holder_run_id=late.run_id)
    leased = lease(late, session)
    assert leases.go(session, "node-1", [go_request(leased)])[late.run_id].answer is GoAnswer.SKIP

    assert skipped(late) == ("skipped", "deadline")
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == following.run_id
    assert reread(following).status == "queued"
    assert started.run_id == first.run_id


def test_the_duty_passes_the_guard_of_an_expired_holder_on() -> None:
    job = make_job(overlap="queue")
    late = make_run(job, due_in_s=-40, deadline_at=ago(5))
    following = make_run(job, due_in_s=-30, status="blocked")
    JobGuard.objects.create(job_id=job.job_id, holder_run_id=late.run_id)
    assert expire_once() == {"expired": 1}
    assert JobGuard.objects.get(job_id=job.job_id).holder_run_id == following.run_id
    assert reread(following).status == "queued"


def test_an_expired_holder_does_not_stand_in_the_way_of_its_own_batch() -> None:
    job = make_job(overlap="skip")
    session = make_session()
    late, next_one = make_run(job, due_in_s=-40, deadline_at=ago(5)), make_run(job, due_in_s=-5)
    JobGuard.objects.create(job_id=job.job_id, holder_run_id=late.run_id)
    leased = [lease(run, session) for run in (late, next_one)]
    replies = leases.go(session, "node-1", [go_request(one) for one in leased])
    assert replies[late.run_id].answer is GoAnswer.SKIP
    assert replies[next_one.run_id].answer is GoAnswer.GO


def test_another_deadline_counts_for_what_waits_already() -> None:
    job = job_create(
        make_tenant(),
        JobChanges(schedule=EVERY_MINUTE, task={"image": "a/b:1", "timeout_s": 60}),
        changed_by="test",
    )
    waiting = make_run(job, due_in_s=-30)
    by_hand = make_run(job, due_in_s=-30, trigger="manual")

    def set_deadline(seconds: int | None) -> None:
        deadline = None if seconds is None else timedelta(seconds=seconds)
        changes = JobChanges(misfire={"deadline": deadline})
        job_update(job.tenant, job.job_id, changes, expected_version=None, changed_by="test")

    set_deadline(20)
    assert reread(waiting).deadline_at == waiting.due_at + timedelta(seconds=20)
    assert reread(by_hand).deadline_at is None
    set_deadline(None)
    assert reread(waiting).deadline_at is None


# --- live work first ------------------------------------------------------------------------------


def test_live_work_goes_before_any_number_of_caught_up_runs(settings: Any) -> None:
    settings.DISPATCH_BATCH = 20
    job = make_job()
    for n in range(60):
        make_run(job, due_in_s=-3600 - n, trigger="catch_up" if n % 2 else "backfill",
                 ready_at=ago(300 - n))  # fmt: skip
    live = [make_run(job, due_in_s=-1 - n) for n in range(5)]
    ahead = make_run(job, due_in_s=30)
    not_yet = make_run(job, due_in_s=-3000, trigger="catch_up", ready_at=ago(-30))
    make_session(slots=10, prepared_limit=10)

    dispatch_once()

    placed = Run.objects.filter(lease_owner__isnull=False)
    by_trigger = {run.run_id: run.trigger for run in placed}
    assert {run.run_id for run in live} <= set(by_trigger)
    assert ahead.run_id in by_trigger
    assert not_yet.run_id not in by_trigger  # never prepared ahead of live work
    late = sum(trigger != "schedule" for trigger in by_trigger.values())
    assert 5 <= late <= 6  # the slots that live work left, and the small buffer


@pytest.mark.parametrize("trigger", ["catch_up", "backfill"])
def test_caught_up_runs_of_a_job_that_skips_overlaps_follow_one_another(trigger: str) -> None:
    job = make_job(overlap="skip")
    session = make_session()
    runs = [make_run(job, due_in_s=-100 + n, trigger=trigger, ready_at=ago(1)) for n in range(3)]
    leased = [lease(run, session) for run in runs]
    replies = leases.go(session, "node-1", [go_request(one) for one in leased])
    assert [replies[run.run_id].answer for run in runs] == [
        GoAnswer.GO, GoAnswer.BLOCK, GoAnswer.BLOCK,
    ]  # fmt: skip
    live = lease(make_run(job, due_in_s=-1), session)
    assert leases.go(session, "node-1", [go_request(live)])[live.run_id].answer is GoAnswer.SKIP


# --- the task as at the go ------------------------------------------------------------------------


def job_with_prepared_run(**said: Any) -> tuple[Job, Any, Any]:
    changes = JobChanges(
        schedule=EVERY_MINUTE, task={"image": "a/b:1", "timeout_s": 60}, overlap="allow", **said
    )
    job = job_create(make_tenant(), changes, changed_by="test")
    session = make_session()
    return job, session, lease(make_run(job, due_in_s=-1), session)


def edit(job: Job, **said: Any) -> Job:
    return job_update(
        job.tenant, job.job_id, JobChanges(**said), expected_version=None, changed_by="test"
    )


def test_a_prepared_run_whose_task_was_edited_is_prepared_again_and_shows_the_version() -> None:
    job, session, leased = job_with_prepared_run()
    edit(job, task={"args": ("new",)})
    reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]
    assert reply.answer is GoAnswer.TASK_CHANGED
    assert leases.hand_back(session, [leased]) == {leased.run_id}

    run = Run.objects.get(run_id=leased.run_id)
    place(run, session)
    again = leases.lease(session, [RunRef(run.run_id, run.scheduled_for)])[run.run_id]
    assert isinstance(again, leases.Leased)
    assert again.task["args"] == ["new"]
    assert leases.go(session, "node-1", [go_request(again)])[run.run_id].answer is GoAnswer.GO
    assert reread(run).job_version == 2


@pytest.mark.parametrize(
    "said", [{"labels": {"a": "b"}}, {"retry": {"max_attempts": 3}}, {"name": "other"}]
)
def test_an_edit_of_anything_but_the_task_lets_a_prepared_run_go_as_it_is(
    said: dict[str, Any],
) -> None:
    job, session, leased = job_with_prepared_run()
    edit(job, **said)
    reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]
    assert reply.answer is GoAnswer.GO
    assert Run.objects.get(run_id=leased.run_id).job_version == 2


def test_a_task_edited_and_edited_back_is_the_one_that_was_prepared() -> None:
    job, session, leased = job_with_prepared_run()
    edit(job, task={"args": ("new",)})
    edit(job, task={"args": ()})
    reply = leases.go(session, "node-1", [go_request(leased)])[leased.run_id]
    assert reply.answer is GoAnswer.GO
    assert Run.objects.get(run_id=leased.run_id).job_version == 3
