"""Accidents that others have reported, played here; docs/when-things-break.md lists them all."""

import datetime as datetimes
import time
from datetime import timedelta

import pytest
from pytest_django import Settings

from jobs.models import ScheduleCursor
from runs import leases
from runs.dispatcher import dispatch_once
from runs.leases import GoAnswer
from runs.models import Run, RunAttempt
from runs.planner import plan_once
from runs.reaper import reap_once
from runs.services import run_now
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
    reread,
    start,
)
from tests.support.lived_history import go, saved_job

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_server")]

HOURLY = {"cron": "0 * * * *", "time_zone": "UTC"}


def test_a_purged_occurrence_is_not_run_again_by_a_planner_that_comes_late() -> None:
    job = saved_job(make_tenant(), minutes_ago=3)
    plan_once()
    purged = Run.objects.filter(job=job, due_at__lte=database_now())
    instants = list(purged.values_list("scheduled_for", flat=True))
    purged.delete()

    plan_once()

    assert instants
    assert not Run.objects.filter(job=job, scheduled_for__in=instants).exists()


def test_the_slot_that_a_restart_fell_upon_runs_late_and_is_not_recomputed_from_now() -> None:
    hour = database_now().replace(minute=0, second=0, microsecond=0)
    job = make_due_job(schedule=HOURLY, misfire={"grace_s": 3_600})
    ScheduleCursor.objects.filter(job=job).update(next_run_at=hour)

    plan_once()  # the first tick after the restart: the cursor is all that it knows

    run = Run.objects.filter(job=job).earliest("scheduled_for")
    assert (run.scheduled_for, run.trigger, run.status) == (hour, "schedule", "queued")


@pytest.mark.parametrize("shift_s", [-3_600, 86_400], ids=["an hour back", "a day ahead"])
def test_a_scheduler_whose_clock_is_wrong_plans_and_places_by_the_database_s(
    monkeypatch: pytest.MonkeyPatch, shift_s: int
) -> None:
    due, later = make_due_job(due_in_s=0), make_due_job(due_in_s=3_000, schedule=HOURLY)
    session, real = make_session(), time.time

    class Shifted(datetimes.datetime):
        @classmethod
        def now(cls, tz: datetimes.tzinfo | None = None) -> "datetimes.datetime":  # type: ignore[override]
            return datetimes.datetime.fromtimestamp(real() + shift_s, tz)

    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    for module in ("runs.planner", "runs.domain.planning", "jobs.domain.misfire"):
        monkeypatch.setattr(f"{module}.datetime", Shifted)

    plan_once()
    dispatch_once()

    runs = Run.objects.filter(job__in=[due, later])
    assert {run.job_id for run in runs} == {due.job_id}
    first = runs.earliest("due_at")
    assert first.lease_owner == session
    assert abs(first.due_at - database_now()) < timedelta(minutes=2)


def test_of_a_hundred_runs_whose_workers_all_died_each_gets_its_next_attempt(
    settings: Settings,
) -> None:
    job, sessions = make_job(), [make_session(slots=100) for _ in range(2)]
    runs = [make_run(job, due_in_s=-1 - n) for n in range(100)]
    for n, run in enumerate(runs):
        start(run, sessions[n % 2])
    for session in sessions:
        end_lease_of(session)
    settings.LEASE_S = 0  # the server of the tests is young

    assert reap_once()["reaped"] == 100

    after = Run.objects.filter(job=job)
    assert {(run.status, run.attempt, run.failures) for run in after} == {("queued", 2, 0)}
    ended = RunAttempt.objects.filter(run_id__in=[run.run_id for run in runs])
    assert {attempt.outcome for attempt in ended} == {"lease_expired"}


@pytest.mark.parametrize(
    ("overlap", "answer"), [("skip", GoAnswer.SKIP), ("queue", GoAnswer.BLOCK)]
)
def test_a_run_by_hand_obeys_the_overlap_of_its_job(overlap: str, answer: GoAnswer) -> None:
    tenant, session = make_tenant(), make_session()
    job = saved_job(tenant, overlap=overlap)
    assert go(run_now(tenant, job.job_id), session)[1] is GoAnswer.GO

    assert go(run_now(tenant, job.job_id), session)[1] is answer


def test_a_skipped_slot_does_not_run_when_the_one_before_it_ends() -> None:
    tenant, session = make_tenant(), make_session()
    job = saved_job(tenant, overlap="skip")
    leased, _ = go(run_now(tenant, job.job_id), session)
    skipped = run_now(tenant, job.job_id)
    late = lease(skipped, session)
    assert leases.go(session, "node-1", [go_request(late)])[skipped.run_id].answer == "skip"

    end_lease_of(session, ago_s=-60)  # the holder goes on; nothing else may come to life
    dispatch_once()

    assert reread(skipped).status == "skipped"
    assert Run.objects.filter(job=job, status="running").get().run_id == leased.run_id
