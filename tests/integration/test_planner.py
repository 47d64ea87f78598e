"""The planner: each occurrence becomes one row, and a bad job holds up nobody."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from runs.models import Run
from runs.partitions import partition_name
from runs.planner import plan_once
from runs.retention import create_partitions_once
from tests.support.factories import database_now, make_due_job, make_run

pytestmark = pytest.mark.django_db


@contextmanager
def planning_until(end: datetime) -> Iterator[None]:
    """Let the look-ahead reach to `end`, so that a test need not wait for midnight."""
    seconds = (end - database_now()).total_seconds() + 1
    with override_settings(LOOK_AHEAD_S=seconds):
        yield


EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "Asia/Kolkata"}


def test_an_occurrence_within_the_look_ahead_becomes_a_queued_run_and_the_cursor_moves_on() -> None:
    job = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)

    counts = plan_once()

    runs = list(Run.objects.filter(job=job).order_by("scheduled_for"))
    assert counts["runs"] == len(runs) >= 1
    cursor = ScheduleCursor.objects.get(job=job)
    assert {run.status for run in runs} == {"queued"}
    assert all(run.due_at == run.ready_at == run.scheduled_for for run in runs)
    assert cursor.next_run_at == runs[-1].scheduled_for + timedelta(minutes=1)
    assert cursor.planned_through is not None
    assert runs[-1].scheduled_for <= cursor.planned_through < cursor.next_run_at


def test_planning_again_makes_nothing_new() -> None:
    job = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)
    plan_once()
    before = Run.objects.filter(job=job).count()

    plan_once()

    assert Run.objects.filter(job=job).count() == before


def test_an_occurrence_whose_row_exists_is_counted_and_the_cursor_still_moves_on() -> None:
    at = (database_now() + timedelta(minutes=1)).replace(second=0, microsecond=0)
    job = make_due_job(schedule={"at": at.isoformat().replace("+00:00", "Z")})
    ScheduleCursor.objects.filter(job=job).update(next_run_at=at)
    make_run(job, scheduled_for=at)

    counts = plan_once()

    assert (counts["runs"], counts["existing"]) == (0, 1)
    assert Run.objects.filter(job=job).count() == 1
    assert ScheduleCursor.objects.get(job=job).next_run_at is None


def test_a_one_off_is_planned_once_and_has_no_next_time() -> None:
    at = database_now() + timedelta(seconds=30)
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    job = make_due_job(due_in_s=30, schedule={"at": text})
    ScheduleCursor.objects.filter(job=job).update(
        next_run_at=at.replace(microsecond=at.microsecond // 1000 * 1000)
    )

    plan_once()

    assert Run.objects.filter(job=job).count() == 1
    assert ScheduleCursor.objects.get(job=job).next_run_at is None


def test_a_job_that_cannot_be_planned_is_switched_off_with_the_reason_and_the_others_run() -> None:
    bad = make_due_job(schedule={"cron": "99 * * * *", "time_zone": "UTC"})
    worse = make_due_job(schedule={"nonsense": 1})
    good = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)

    counts = plan_once()

    assert counts["set_aside"] == 2
    assert Run.objects.filter(job=good).exists()
    for job in Job.objects.filter(job_id__in=[bad.job_id, worse.job_id]):
        assert not job.enabled
        assert job.pause is not None
        assert job.pause["reason"]
        assert JobVersion.objects.get(job=job, version=job.version).changed_by == "planner"
        assert ScheduleCursor.objects.get(job=job).next_run_at is None


@pytest.mark.parametrize(
    "broken",
    [
        {"misfire": {"policy": "some"}},
        {"misfire": {"grace_s": "long"}},
        {"misfire": []},
        {"dst": {"gap": 7}},
        {"schedule": []},
        {"schedule": {"cron": 5, "time_zone": []}},
        {"schedule": {"every": "PT1S", "anchor": None}},
        {"last_wall_time": "yesterday"},
    ],
)
def test_whatever_is_stored_of_one_job_the_others_run(broken: dict[str, Any]) -> None:
    wall_time = broken.pop("last_wall_time", "")
    bad = make_due_job(**{"schedule": EVERY_MINUTE} | broken)
    ScheduleCursor.objects.filter(job=bad).update(last_wall_time=wall_time)
    good = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)

    counts = plan_once()

    assert Run.objects.filter(job=good).exists()
    assert counts["set_aside"] == 1
    paused = Job.objects.get(job_id=bad.job_id).pause
    assert paused is not None
    assert paused["reason"]


def test_a_day_without_a_partition_holds_up_only_the_jobs_of_that_day() -> None:
    # Not the next one, which may come while the test runs.
    midnight = (database_now() + timedelta(days=2)).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {partition_name('runs', midnight.date())}")
    at = midnight.isoformat().replace("+00:00", "Z")
    stuck = make_due_job(schedule={"at": at})
    ScheduleCursor.objects.filter(job=stuck).update(next_run_at=midnight)
    good = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)
    with planning_until(midnight):
        counts = plan_once()

    assert counts["stuck"] == 1
    assert Run.objects.filter(job=good).exists()
    assert ScheduleCursor.objects.get(job=stuck).next_run_at == midnight, "its time comes again"

    create_partitions_once()
    with planning_until(midnight):
        assert plan_once()["stuck"] == 0
    assert Run.objects.filter(job=stuck).count() == 1


def test_a_switched_off_job_whose_cursor_was_forgotten_makes_no_run() -> None:
    job = make_due_job(schedule=EVERY_MINUTE, enabled=False)

    plan_once()

    assert not Run.objects.filter(job=job).exists()
    assert ScheduleCursor.objects.get(job=job).next_run_at is None


def test_only_the_given_shards_are_planned() -> None:
    job = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)

    assert plan_once(shards=[7]) == {"jobs": 0}
    assert plan_once(shards=[0])["jobs"] == 1
    assert Run.objects.filter(job=job).exists()


def test_an_outage_of_an_hour_costs_one_span_and_one_catch_up_run() -> None:
    job = make_due_job(due_in_s=-3600, schedule=EVERY_MINUTE)

    plan_once()

    runs = Run.objects.filter(job=job)
    assert runs.filter(trigger="catch_up").count() == 1
    span = MissedSpan.objects.get(job=job)
    assert span.reason == "outage"
    first = span.from_at
    last = runs.order_by("-scheduled_for")[0].scheduled_for
    expected = int((last - first) / timedelta(minutes=1)) + 1
    assert expected == span.count + runs.count()


def test_planned_through_never_moves_back() -> None:
    job = make_due_job(due_in_s=5, schedule=EVERY_MINUTE)
    far = database_now() + timedelta(days=2)
    ScheduleCursor.objects.filter(job=job).update(planned_through=far)

    plan_once()

    assert ScheduleCursor.objects.get(job=job).planned_through == far
