"""What became of runs is counted once: at the commit, in the process that made it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from jobs.models import Job
from runs import dispatcher, leases
from runs.domain.outcome import OutcomeCode
from runs.leases import Leased, Start
from runs.models import Run
from runs.planner import plan_once
from runs.reaper import reap_once
from runs.services import run_cancel, run_now
from scheduler_project.lib.metrics import REGISTRY
from tests.integration.test_leases import complete, ended
from tests.support.factories import (
    database_now,
    end_lease_of,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    reread,
    start,
)

pytestmark = pytest.mark.django_db

LAG = "dispatch_lag_seconds"


def shown() -> dict[str, float]:
    """Every value now; of the lag, how many and how much."""
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if family.type == "counter" or sample.name in (f"{LAG}_count", f"{LAG}_sum")
    }


@contextmanager
def counting() -> Iterator[dict[str, float]]:
    """What was counted inside, once the block has been left; nothing else may have been."""
    before, changes = shown(), dict[str, float]()
    yield changes
    changes |= {
        name: value - before.get(name, 0)
        for name, value in shown().items()
        if value != before.get(name, 0)
    }


def note_start(run: Run, leased: Leased, late_s: float) -> int:
    session = reread(run).lease_owner
    assert session is not None
    at = run.due_at + timedelta(seconds=late_s)
    return leases.record_starts(session, [Start(run.run_id, run.scheduled_for, leased.fence, at)])


def test_a_success_is_a_start_a_lag_and_an_end() -> None:
    session = make_session()
    run = make_run(region="north")
    leased = start(run, session)
    with counting() as noted:
        assert note_start(run, leased, 0.25) == 1
        assert note_start(run, leased, 0.25) == 0, "it is noted already"
    assert noted == {
        "runs_started_total": 1,
        f"{LAG}_count/north/container": 1,
        f"{LAG}_sum/north/container": pytest.approx(0.25),
    }
    with counting() as counted:
        complete(session, ended(leased))
        complete(session, ended(leased))  # the answer was lost, and it asks again
    assert counted == {"runs_completed_total/succeeded": 1}


def test_a_run_too_short_for_its_start_to_be_noted_counts_it_with_its_end() -> None:
    session = make_session()
    run = make_run(region="north", due_in_s=-100)
    leased = start(run, session)
    with counting() as counted:
        complete(session, ended(leased))
    lag_s = counted.pop(f"{LAG}_sum/north/container")
    assert 90 < lag_s < 110
    assert counted == {
        "runs_started_total": 1,
        f"{LAG}_count/north/container": 1,
        "runs_completed_total/succeeded": 1,
    }


def test_a_retry_starts_again_and_is_no_second_lag() -> None:
    session = make_session()
    job = make_job(retry={"max_attempts": 2, "backoff": "fixed", "base_s": 0, "jitter": "none"})
    run = make_run(job)
    first = start(run, session)
    note_start(run, first, 0.1)
    with counting() as counted:
        complete(session, ended(first, OutcomeCode.NON_ZERO_EXIT))
    assert counted == {"run_failures_total": 1, "run_retries_total": 1}
    second = start(reread(run), session)
    with counting() as counted:
        note_start(run, second, 5)
        complete(session, ended(second, OutcomeCode.NON_ZERO_EXIT))
    assert counted == {
        "runs_started_total": 1,
        "run_failures_total": 1,
        "dead_letters_total": 1,
        "runs_completed_total/failed": 1,
    }


def test_when_the_first_attempt_never_started_the_next_one_has_the_lag() -> None:
    session = make_session()
    run = make_run(region="north")
    leased = start(run, session)
    with counting() as counted:
        trouble = ended(leased, OutcomeCode.ENGINE_UNREACHABLE, exit_code=None)
        complete(session, type(trouble)(**vars(trouble) | {"started_at": None}))
    assert counted == {"run_failures_total": 1, "run_retries_total": 1}
    Run.objects.filter(run_id=run.run_id).update(ready_at=run.ready_at)
    with counting() as counted:
        note_start(run, start(reread(run), session), 7)
    assert counted[f"{LAG}_sum/north/container"] == pytest.approx(7)


def test_an_engine_whose_clock_is_behind_makes_no_negative_lag_and_a_backfill_makes_none() -> None:
    session = make_session()
    early, backfill = make_run(region="north"), make_run(region="north", trigger="backfill")
    with counting() as counted:
        note_start(early, start(early, session), -0.5)
        note_start(backfill, start(backfill, session), 3_600)
    assert counted == {"runs_started_total": 2, f"{LAG}_count/north/container": 1}


def test_a_lost_lease_is_counted_by_the_reaper(settings: Settings) -> None:
    settings.LEASE_S = 0.5
    settings.MAX_LEASE_LOSSES = 2
    session = make_session()
    again, for_good = make_run(), make_run(lease_losses=1)
    for run in (again, for_good):
        start(run, session)
    end_lease_of(session)
    with counting() as counted:
        reap_once()
        reap_once()
    assert counted == {
        "lease_expiries_total": 2,
        "run_failures_total": 2,
        "run_retries_total": 1,
        "dead_letters_total": 1,
        "runs_completed_total/failed": 1,
    }


def test_a_lease_that_the_worker_gave_up_itself_is_counted_by_the_worker() -> None:
    session = make_session()
    leased = start(make_run(), session)
    with counting() as counted:
        complete(session, ended(leased, OutcomeCode.LEASE_EXPIRED, exit_code=None))
    assert counted["lease_expiries_total"] == 1


def test_a_refused_completion_counts_nothing() -> None:
    session, other = make_session(), make_session()
    leased = start(make_run(), session)
    with counting() as counted:
        complete(other, ended(leased))
    assert counted == {}


def test_what_ends_without_a_start_is_counted_by_whoever_ends_it(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    session = make_session()
    job = make_job(overlap="skip")
    start(make_run(job, trigger="manual"), session)
    overlapping = lease(make_run(job, trigger="manual"), session)
    late = make_run(deadline_at=database_now() - timedelta(seconds=5))
    waiting = make_run()
    with counting() as counted, django_capture_on_commit_callbacks(execute=True):
        leases.go(session, "node-1", [_go(overlapping)])
        dispatcher.expire_once()
        run_cancel(waiting.tenant, waiting.run_id)
    assert reread(late).status == "skipped"
    assert counted == {"runs_completed_total/skipped": 2, "runs_completed_total/cancelled": 1}


def _go(leased: Leased) -> leases.GoRequest:
    return leases.GoRequest(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        prepared_ago_s=0.0,
        task_version=leased.task_version,
    )


def test_runs_are_counted_when_they_are_planned_and_placed(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    make_due_job(due_in_s=5, schedule={"cron": "* * * * *", "time_zone": "UTC"})
    by_hand: Job = make_due_job(due_in_s=3_600)
    with counting() as planned, django_capture_on_commit_callbacks(execute=True):
        plan_once()
        plan_once()
        run_now(by_hand.tenant, by_hand.job_id)
    runs = Run.objects.count()
    assert planned == {"runs_planned_total": runs}
    make_session()
    with counting() as placed:
        dispatcher.dispatch_once()
    assert placed == {"runs_placed_total": Run.objects.exclude(lease_owner=None).count()}


def test_a_rolled_back_plan_was_never_counted() -> None:
    make_due_job(due_in_s=5, schedule={"cron": "* * * * *", "time_zone": "UTC"})
    with counting() as counted:
        plan_once()  # inside the test's own transaction, which is rolled back
    assert counted == {}
