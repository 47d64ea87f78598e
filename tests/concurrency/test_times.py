"""Pauses, deadlines and backfills that meet planners, workers and one another, on connections."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from jobs.domain.spec import JobChanges
from jobs.domain.timing import CatchUp, Pause
from jobs.errors import StaleVersionError
from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from jobs.pauses import end_pauses_once
from jobs.services import job_create, job_update
from runs import leases
from runs.backfill import Backfill, job_backfill
from runs.dispatcher import expire_once
from runs.leases import GoAnswer
from runs.models import JobGuard, Run
from runs.planner import plan_once
from tests.support.factories import (
    database_now,
    go_request,
    lease,
    make_run,
    make_session,
    make_tenant,
    reread,
)
from tests.support.racing import race

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}
ROUNDS = 5


def new_job(**said: Any) -> Job:
    task = {"image": "a/b:1", "timeout_s": 60}
    changes = JobChanges(schedule=EVERY_MINUTE, task=task, **said)
    return job_create(make_tenant(), changes, changed_by="test")


def change(job: Job, version: int | None = None, **said: Any) -> str:
    """`done`, or `stale` for a version that is no longer the job's."""
    changes = JobChanges(**said)
    try:
        job_update(job.tenant, job.pk, changes, expected_version=version, changed_by="test")
    except StaleVersionError:
        return "stale"
    return "done"


def at_once(racers: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each of the racers gave; they may be of different kinds."""
    return race(racers)


def age(job: Job, by: timedelta) -> None:
    """Let everything of the job have been there for so long."""
    Job.objects.filter(pk=job.pk).update(created_at=job.created_at - by)
    JobVersion.objects.filter(job=job).update(effective_from=job.created_at - by)


def let_pause_be_over(job: Job, *, began: timedelta, ended: timedelta) -> None:
    """Move the job's pause into the past."""
    now = database_now()
    job.refresh_from_db()
    assert job.pause is not None
    pause = job.pause | {"since": str(now - began), "until": str(now - ended)}
    Job.objects.filter(pk=job.pk).update(pause=pause)
    ScheduleCursor.objects.filter(job=job).update(paused_until=now - ended)


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_a_pause_and_a_go_at_once_have_one_order(overlap: str) -> None:
    for _ in range(ROUNDS):
        job, session = new_job(overlap=overlap), make_session()
        run = make_run(job, due_in_s=-1)
        request = go_request(lease(run, session))
        replies, paused = at_once(
            [partial(leases.go, session, "node-1", [request]), partial(change, job, pause=Pause())]
        )
        assert paused == "done"
        # Running on is right only for a run that had its go; skipped only for one that had not.
        has_its_go = replies[run.run_id].answer is GoAnswer.GO
        run = reread(run)
        assert (run.status, run.skip_reason) == (
            ("running", "") if has_its_go else ("skipped", "paused")
        )


def test_a_pause_and_a_planner_at_once_leave_nothing_ahead() -> None:
    for _ in range(ROUNDS):
        job = new_job()
        at_once([plan_once, partial(change, job, pause=Pause())])
        plan_once()
        assert not Run.objects.filter(job=job, scheduled_for__gt=database_now()).exists()
        assert ScheduleCursor.objects.get(job=job).next_run_at is None


def test_many_schedulers_end_a_pause_once() -> None:
    for _ in range(ROUNDS):
        job = new_job(pause=Pause(until=database_now() + timedelta(hours=1)), resume=CatchUp.LATEST)
        let_pause_be_over(job, began=timedelta(minutes=20), ended=timedelta(minutes=5))
        counts = race([end_pauses_once] * 4)
        assert sum(count["resumed"] for count in counts) == 1
        assert JobVersion.objects.filter(job=job).count() == 2
        assert Run.objects.filter(job=job, trigger="catch_up").count() == 1
        (span,) = MissedSpan.objects.filter(job=job)
        assert span.count in (13, 14)


def test_the_end_of_a_pause_and_an_edit_at_once_count_once() -> None:
    for _ in range(ROUNDS):
        job = new_job(pause=Pause(until=database_now() + timedelta(hours=1)))
        let_pause_be_over(job, began=timedelta(minutes=20), ended=timedelta(minutes=5))
        daily = {"cron": "0 9 * * *", "time_zone": "UTC"}
        counts, edited = at_once([end_pauses_once, partial(change, job, 1, schedule=daily)])
        assert (counts["resumed"], edited) in [(1, "stale"), (0, "done")]
        held_back = MissedSpan.objects.filter(job=job, reason="paused")
        assert sum(held_back.values_list("count", flat=True)) == 15
        job.refresh_from_db()
        assert job.pause is None


def test_equal_backfills_at_once_make_each_run_once() -> None:
    job = new_job(enabled=False)
    age(job, timedelta(hours=2))
    now = database_now().replace(microsecond=0)
    ask = partial(
        job_backfill, job.tenant, job.pk, now - timedelta(minutes=30), now, rate_per_minute=60
    )
    made: list[Backfill] = race([ask] * 4)
    assert sum(one.created for one in made) == Run.objects.filter(job=job).count() == 30
    assert sorted(one.existing for one in made) == [0, 30, 30, 30]


def test_a_backfill_and_planners_at_once_decide_on_each_occurrence_once() -> None:
    for _ in range(ROUNDS):
        job = new_job(misfire={"max_catch_up": 100})
        age(job, timedelta(hours=2))
        now = database_now()
        first = now.replace(second=0, microsecond=0) - timedelta(minutes=30)
        ScheduleCursor.objects.filter(job=job).update(next_run_at=first)
        backfill = partial(job_backfill, job.tenant, job.pk, first, now, rate_per_minute=60)
        at_once([plan_once, backfill, plan_once])
        plan_once()
        ended = ScheduleCursor.objects.get(job=job).next_run_at
        assert ended is not None
        rows = set(Run.objects.filter(job=job).values_list("scheduled_for", flat=True))
        every = {first + n * timedelta(minutes=1) for n in range(int((ended - first).seconds / 60))}
        assert rows == every  # the backfill made up for what the planner counted
        assert Run.objects.filter(job=job).count() == len(rows)


def test_a_deadline_and_a_go_at_once_never_run_what_is_too_late_nor_skip_what_runs() -> None:
    for _ in range(ROUNDS):
        job, session = new_job(overlap="queue"), make_session()
        late = make_run(job, due_in_s=-60, deadline_at=database_now() - timedelta(seconds=1))
        following = make_run(job, due_in_s=-30, status="blocked")
        request = go_request(lease(late, session))
        JobGuard.objects.update_or_create(job_id=job.pk, defaults={"holder_run_id": late.run_id})
        replies, _ = at_once([partial(leases.go, session, "node-1", [request]), expire_once])
        assert replies[late.run_id].answer is GoAnswer.SKIP
        assert reread(late).status == "skipped"
        assert reread(following).status == "queued"
