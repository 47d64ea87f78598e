"""Two schedulers that both believe they own every shard: one row for each occurrence, always."""

import json
from datetime import timedelta

import pytest
from django.db import connection, transaction

from jobs.models import Job, ScheduleCursor
from runs import store
from runs.models import Run
from runs.planner import plan_once
from tests.support.factories import database_now, make_due_job, make_tenant
from tests.support.racing import race

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 12
JOBS = 60


def test_two_planners_without_shard_protection_make_one_row_for_each_occurrence() -> None:
    tenant = make_tenant()
    schedule = {"cron": "* * * * *", "time_zone": "Europe/Berlin"}
    jobs = [make_due_job(tenant, schedule=schedule) for _ in range(JOBS)]
    first = database_now().replace(second=0, microsecond=0) - timedelta(seconds=60 * ROUNDS)
    for n in range(ROUNDS):
        # Each round the cursors stand one minute further, as if that minute had come.
        ScheduleCursor.objects.filter(job__in=jobs).update(
            next_run_at=first + timedelta(minutes=n), last_wall_time=""
        )

        counts = race([plan_once, plan_once])

        assert sum(count["jobs"] for count in counts) == JOBS

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT job_id, scheduled_for FROM runs"
            " GROUP BY 1, 2 HAVING count(*) > 1) AS doubled"
        )
        assert cursor.fetchone() == (0,)
    per_job = {job.job_id: Run.objects.filter(job=job).count() for job in jobs}
    assert len(set(per_job.values())) == 1, per_job


def test_a_planner_skips_the_jobs_that_another_holds_and_does_not_wait_for_them() -> None:
    held, free = make_due_job(due_in_s=1), make_due_job(due_in_s=1)

    with transaction.atomic():
        ScheduleCursor.objects.select_for_update().get(job=held)
        (counts,) = race([plan_once])

    assert counts["jobs"] == 1
    assert Run.objects.filter(job=free).exists()
    assert not Run.objects.filter(job=held).exists()
    assert plan_once()["jobs"] == 1  # one further round finds what was skipped


def test_a_planner_that_claimed_before_an_edit_committed_plans_the_new_schedule() -> None:
    """The claim's snapshot is older than the edit; the jobs are read with a newer one."""
    job = make_due_job(due_in_s=1, schedule={"cron": "* * * * *", "time_zone": "UTC"})
    new = {"cron": "0 0 1 1 *", "time_zone": "UTC"}

    def edit() -> None:
        with transaction.atomic():
            ScheduleCursor.objects.select_for_update().get(job=job)
            Job.objects.filter(job_id=job.job_id).update(schedule=new, version=2)

    with transaction.atomic():
        ScheduleCursor.objects.get(job=job)  # our transaction has begun
        race([edit])
        claimed = store.fetch(
            "claim_due_cursors",
            until=database_now() + timedelta(seconds=75),
            limit=10,
            shards=None,
            tzdata="2999z",
        )
        (row,) = store.fetch("read_claimed_jobs", job_ids=store.uuids([claimed[0].job_id]))

    assert json.loads(row.schedule) == new
    assert row.version == 2


def test_a_planner_that_dies_before_its_commit_leaves_nothing() -> None:
    job = make_due_job(due_in_s=1)
    before = ScheduleCursor.objects.get(job=job).next_run_at

    def plan_and_die() -> None:
        with transaction.atomic():
            plan_once()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_and_die()

    assert not Run.objects.filter(job=job).exists()
    assert ScheduleCursor.objects.get(job=job).next_run_at == before


def test_many_planners_share_a_backlog_without_losing_or_doubling_a_job() -> None:
    tenant = make_tenant()
    jobs = [make_due_job(tenant, due_in_s=1) for _ in range(100)]

    race([plan_once] * 4)
    plan_once()

    assert Run.objects.values("job").distinct().count() == len(jobs)
