"""History is dropped by whole days, never with a run that is not final, and frees nothing."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import OperationalError, connection, transaction

from jobs.models import ScheduleCursor
from runs.models import Run
from runs.partitions import (
    TABLES,
    create_partitions,
    database_today,
    drop_partition,
    partition_days,
)
from runs.planner import plan_once
from runs.retention import create_partitions_once, drop_old_partitions_once
from tests.support.factories import database_now, make_due_job, make_job, make_run
from tests.support.racing import race

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def old_day() -> date:
    """A day beyond the retention, with partitions."""
    day = database_today(connection) - timedelta(days=40)
    create_partitions(connection, today=day, days_back=0, days_ahead=0)
    return day


def at_noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def test_a_day_whose_runs_are_all_final_is_dropped_with_all_that_belongs_to_it(
    old_day: date,
) -> None:
    make_run(scheduled_for=at_noon(old_day), status="succeeded", finished_at=database_now())

    assert drop_old_partitions_once()["dropped"] == 1

    assert all(old_day not in partition_days(connection, table) for table in TABLES)
    assert not Run.objects.exists()
    assert drop_old_partitions_once()["dropped"] == 0


def test_a_day_with_a_run_that_is_not_final_stays(old_day: date) -> None:
    run = make_run(scheduled_for=at_noon(old_day), failures=3)

    counts = drop_old_partitions_once()

    assert (counts["dropped"], counts["kept"]) == (0, 1)
    assert Run.objects.filter(run_id=run.run_id).exists()
    Run.objects.filter(run_id=run.run_id).update(status="failed", finished_at=database_now())
    assert drop_old_partitions_once()["dropped"] == 1


def test_days_within_the_retention_stay() -> None:
    before = partition_days(connection, "runs")

    drop_old_partitions_once()

    assert partition_days(connection, "runs") == before


def test_a_detach_that_was_interrupted_is_finished(old_day: date) -> None:
    def detach_and_be_interrupted() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '300ms'")
            drop_partition(connection, "runs", old_day)

    # An open reader makes the detach wait for its end, beyond the time-out.
    with transaction.atomic():
        Run.objects.count()
        with pytest.raises(OperationalError):
            race([detach_and_be_interrupted])
    assert old_day in partition_days(connection, "runs")

    drop_partition(connection, "runs", old_day)

    assert old_day not in partition_days(connection, "runs")


def test_two_processes_drop_a_day_once(old_day: date) -> None:
    counts = race([drop_old_partitions_once, drop_old_partitions_once])

    assert sum(count["dropped"] for count in counts) == 1
    assert old_day not in partition_days(connection, "runs")


def test_dropping_a_day_frees_none_of_its_occurrences_to_run_again(old_day: date) -> None:
    job = make_due_job(due_in_s=5, schedule={"cron": "* * * * *", "time_zone": "UTC"})
    make_run(job, scheduled_for=at_noon(old_day), status="succeeded", finished_at=database_now())
    plan_once()
    drop_old_partitions_once()
    before = set(Run.objects.filter(job=job).values_list("scheduled_for", flat=True))

    plan_once()

    assert set(Run.objects.filter(job=job).values_list("scheduled_for", flat=True)) == before
    assert min(before) > database_now() - timedelta(minutes=5)
    cursor = ScheduleCursor.objects.get(job=job)
    assert cursor.next_run_at is not None
    assert cursor.next_run_at > database_now()


def test_partitions_are_made_a_fortnight_ahead_by_any_number_of_processes() -> None:
    today = database_today(connection)
    for n in range(10, 15):
        for table in TABLES:
            drop_partition(connection, table, today + timedelta(days=n))

    made = race([create_partitions_once] * 3)

    assert sum(count["partitions"] for count in made) == 5 * len(TABLES)
    assert today + timedelta(days=14) in partition_days(connection, "runs")


def test_a_run_of_a_job_whose_history_was_dropped_can_still_be_made(old_day: date) -> None:
    job = make_job()
    drop_old_partitions_once()

    assert make_run(job).status == "queued"
