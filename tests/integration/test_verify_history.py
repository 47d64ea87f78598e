"""verify_history finds nothing in what real services did, and each fault that is planted."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum
from pytest_django import DjangoDbBlocker

from jobs.domain.spec import JobChanges
from jobs.domain.timing import CatchUp
from jobs.models import Job, JobVersion, MissedSpan
from jobs.pauses import end_pauses_once
from jobs.services import job_delete, job_update
from runs.backfill import job_backfill
from runs.domain.outcome import OutcomeCode
from runs.domain.violation import Kind, Violation
from runs.history import Checked, Scope, check_history
from runs.models import Run
from runs.planner import plan_once
from tests.support.factories import database_now, lease, make_run, reread
from tests.support.lived_history import LivedHistory, end, execute, resting_job, saved_job

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def lived(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[LivedHistory]:
    """One history for all tests; each plants its fault in a savepoint of its own."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield LivedHistory().live()
        transaction.set_rollback(True)


def found(scope: Scope | None = None) -> list[Violation]:
    return list(check_history(scope or Scope(), Checked()))


def test_a_history_that_the_services_made_is_clean(lived: LivedHistory) -> None:
    checked = Checked()

    assert list(map(str, check_history(Scope(), checked))) == []

    assert checked.jobs == 4
    assert checked.runs > 15
    assert checked.attempts > 12


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": {"cron": "7 3 * * *", "time_zone": "Asia/Kolkata"}},
        {"schedule": {"every": "90m"}},
        {"enabled": False},
        {"retry": {"max_attempts": 5}},
        {"overlap": "queue"},
    ],
    ids=str,
)
def test_an_edit_leaves_a_clean_history(lived: LivedHistory, change: dict[str, Any]) -> None:
    job = lived.jobs["minutely"]

    job_update(
        lived.tenant,
        job.job_id,
        JobChanges(**change),
        expected_version=None,
        changed_by="test",
    )
    plan_once()

    assert list(map(str, found())) == []


def test_editing_and_editing_back_leaves_a_clean_history(lived: LivedHistory) -> None:
    job = lived.jobs["minutely"]
    for enabled in (False, True, False, True):
        job_update(
            lived.tenant,
            job.job_id,
            JobChanges(enabled=enabled),
            expected_version=None,
            changed_by="test",
        )
        plan_once()

    assert list(map(str, found())) == []


@pytest.mark.parametrize("catch_up", [CatchUp.NONE, CatchUp.LATEST, CatchUp.ALL])
def test_what_a_pause_holds_back_is_accounted_for_at_its_end(
    lived: LivedHistory, catch_up: CatchUp
) -> None:
    job = resting_job(lived.tenant, minutes_ago=20)
    assert list(map(str, found())) == [], "it is not lost while the pause goes on"

    job_update(
        lived.tenant,
        job.job_id,
        JobChanges(pause=None, resume=catch_up),
        expected_version=None,
        changed_by="test",
    )
    plan_once()

    assert list(map(str, found())) == []
    counted = MissedSpan.objects.filter(job=job).aggregate(Sum("count"))["count__sum"] or 0
    paused, resumed = JobVersion.objects.filter(job=job).order_by("version")
    minutes = resumed.effective_from.timestamp() // 60 - paused.effective_from.timestamp() // 60
    assert minutes in (20, 21), "one more when a minute began meanwhile"
    due = Run.objects.filter(job=job, due_at__lte=resumed.effective_from)
    assert counted + due.count() == minutes
    execute("DELETE FROM missed_spans WHERE job_id = %s", job.job_id)
    assert [violation.kind for violation in found()] == [Kind.MISSING] * bool(counted)


def test_a_pause_that_ended_by_itself_is_accounted_for_once_that_is_noticed(
    lived: LivedHistory,
) -> None:
    resting_job(lived.tenant, minutes_ago=20, ended_minutes_ago=5)
    plan_once()
    assert list(map(str, found())) == [], "the planner goes on before anybody counts"

    assert end_pauses_once() == {"resumed": 1}

    assert list(map(str, found())) == []


def test_a_backfill_makes_up_for_what_was_counted_and_for_a_pause(lived: LivedHistory) -> None:
    missed = lived.jobs["minutely"]
    resting = resting_job(lived.tenant, minutes_ago=20)
    now = database_now()
    for job in (missed, resting):
        Job.objects.filter(pk=job.pk).update(created_at=now - timedelta(minutes=30))

        made = job_backfill(
            lived.tenant, job.pk, now - timedelta(minutes=15), now, rate_per_minute=60
        )

        assert made.created > 10
        assert list(map(str, found())) == []


def test_a_delete_leaves_a_clean_history(lived: LivedHistory) -> None:
    for job in lived.jobs.values():
        job_delete(lived.tenant, job.job_id, cancel_running=True, changed_by="test")

    assert list(map(str, found())) == []


def test_an_attempt_that_failed_ahead_of_its_time_outlives_an_edit(lived: LivedHistory) -> None:
    job = lived.jobs["minutely"]
    leased = lease(lived.runs["planned"], lived.session)
    end(leased, lived.session, OutcomeCode.ENGINE_UNREACHABLE, ran=False)

    job_update(
        lived.tenant,
        job.job_id,
        JobChanges(schedule={"cron": "7 3 * * *", "time_zone": "UTC"}),
        expected_version=None,
        changed_by="test",
    )

    assert reread(lived.runs["planned"]).lease_losses == 1
    assert list(map(str, found())) == []


def test_an_edit_during_an_outage_loses_no_occurrence_silently(lived: LivedHistory) -> None:
    job = saved_job(lived.tenant, minutes_ago=30, overlap="allow")

    job_update(
        lived.tenant,
        job.job_id,
        JobChanges(schedule={"cron": "7 3 * * *", "time_zone": "UTC"}),
        expected_version=None,
        changed_by="test",
    )
    plan_once()

    assert list(map(str, found())) == []


# --- planted faults ---------------------------------------------------------------------------
#
# Each takes what the services would never write and says which violation must be found for it. No
# other may be: a check that cries at everything proves nothing.

Plant = Callable[[LivedHistory], object]


def of_run(statement: str, name: str) -> Plant:
    """A change of one run's row, or of its attempts'."""
    return lambda lived: execute(
        f"{statement} WHERE run_id = %s AND scheduled_for = %s",
        lived.runs[name].run_id,
        lived.runs[name].scheduled_for,
    )


def of_job(statement: str, name: str) -> Plant:
    """A change of what belongs to one job."""
    return lambda lived: execute(f"{statement} WHERE job_id = %s", lived.jobs[name].job_id)


def without_constraint(name: str, plant: Plant) -> Plant:
    """The change, in a database that has lost the constraint which refuses it."""

    def planted(lived: LivedHistory) -> None:
        execute(f"ALTER TABLE runs DROP CONSTRAINT {name}")
        plant(lived)

    return planted


def copy_of(name: str, **changes: str) -> Plant:
    """A second row like the run's, differing in the columns given as SQL."""

    def planted(lived: LivedHistory) -> None:
        run = lived.runs[name]
        columns = [str(field.column) for field in run._meta.fields]
        values = ", ".join(changes.get(column, column) for column in columns)
        execute(
            f"INSERT INTO runs ({', '.join(columns)}) SELECT {values} FROM runs"
            " WHERE run_id = %s AND scheduled_for = %s",
            run.run_id,
            run.scheduled_for,
        )

    return planted


def together(*plants: Plant) -> Plant:
    def planted(lived: LivedHistory) -> None:
        for plant in plants:
            plant(lived)

    return planted


LATER = "clock_timestamp() + interval '1 hour'"
OTHER_ID = "encode(set_byte(uuid_send(run_id), 15, get_byte(uuid_send(run_id), 15) # 1), 'hex')"

FAULTS: dict[str, tuple[Kind, Plant]] = {
    "a deleted run": (
        Kind.MISSING,
        together(
            of_run("DELETE FROM run_attempts", "minutely_schedule"),
            of_run("DELETE FROM runs", "minutely_schedule"),
        ),
    ),
    "a planned run that was deleted": (Kind.MISSING, of_run("DELETE FROM runs", "planned")),
    "a lost span": (Kind.MISSING, of_job("DELETE FROM missed_spans", "minutely")),
    "a cursor that jumped over an occurrence": (
        Kind.CURSOR_ASTRAY,
        of_job(
            "UPDATE schedule_cursors SET next_run_at = next_run_at + interval '5 minutes'",
            "minutely",
        ),
    ),
    "a cursor that stands nowhere": (
        Kind.CURSOR_ASTRAY,
        of_job("UPDATE schedule_cursors SET next_run_at = NULL", "minutely"),
    ),
    "a cursor that is gone": (
        Kind.CURSOR_ASTRAY,
        of_job("DELETE FROM schedule_cursors", "by_hand"),
    ),
    "a doubled occurrence": (
        Kind.DOUBLED,
        copy_of("planned", run_id=f"({OTHER_ID})::uuid", manual_key="gen_random_uuid()"),
    ),
    "an occurrence that runs and is counted": (
        Kind.DOUBLED,
        of_job(
            "UPDATE missed_spans SET to_at = to_at + interval '1 minute', count = count + 1",
            "minutely",
        ),
    ),
    "a span that counts too few": (
        Kind.WRONG_SPAN,
        of_job("UPDATE missed_spans SET count = count - 1", "minutely"),
    ),
    "a run that nobody scheduled": (
        Kind.UNPROMISED,
        lambda lived: make_run(
            lived.jobs["minutely"],
            scheduled_for=lived.runs["planned"].scheduled_for + timedelta(seconds=7),
        ),
    ),
    "a backfill that nobody scheduled": (
        Kind.UNPROMISED,
        lambda lived: make_run(
            lived.jobs["minutely"],
            scheduled_for=lived.runs["planned"].scheduled_for - timedelta(seconds=7),
            trigger="backfill",
        ),
    ),
    "an edit that left what was planned": (
        Kind.NOT_WITHDRAWN,
        together(
            of_job("UPDATE schedule_cursors SET next_run_at = NULL", "minutely"),
            of_job(
                "INSERT INTO job_versions (job_id, version, schedule, policies, task, enabled,"
                " deleted, tzdata, effective_from, changed_by, cause)"
                " SELECT job_id, 2, schedule, policies, task, false, false, tzdata,"
                " clock_timestamp(), '', '' FROM job_versions",
                "minutely",
            ),
        ),
    ),
    "a job without versions": (
        Kind.NO_VERSION,
        of_job("DELETE FROM job_versions", "by_hand"),
    ),
    "a run of nobody's": (
        Kind.UNKNOWN_JOB,
        together(
            of_run("UPDATE runs SET job_id = gen_random_uuid()", "cancelled_waiting"),
        ),
    ),
    "a run before it is due": (
        Kind.TOO_EARLY,
        of_run(f"UPDATE runs SET due_at = {LATER}, ready_at = {LATER}", "failed"),
    ),
    "a go before its time": (
        Kind.TOO_EARLY,
        of_run(
            "UPDATE run_attempts SET go_at = go_at - interval '1 hour'",
            "minutely_schedule",
        ),
    ),
    "a container that the engine started before the go": (
        Kind.TOO_EARLY,
        of_run(
            "UPDATE run_attempts SET started_at = go_at - interval '2 seconds'",
            "minutely_schedule",
        ),
    ),
    "overlapping attempts": (
        Kind.ATTEMPTS_OVERLAP,
        of_run(
            "UPDATE run_attempts SET ended_at = ended_at + interval '1 hour' * (2 - attempt)::int",
            "succeeded",
        ),
    ),
    "attempts that overlap by the engine's clock": (
        Kind.ATTEMPTS_OVERLAP,
        of_run(
            "UPDATE run_attempts SET finished_at = finished_at + interval '1 hour'"
            " * (2 - attempt)::int",
            "succeeded",
        ),
    ),
    "a broken overlap": (
        Kind.OVERLAP_BROKEN,
        together(
            of_run("UPDATE runs SET finished_at = finished_at + interval '1 hour'", "in_the_way"),
            of_run("UPDATE run_attempts SET ended_at = ended_at + interval '1 hour'", "in_the_way"),
        ),
    ),
    "a broken overlap by the engine's clock": (
        Kind.OVERLAP_BROKEN,
        together(
            of_run("UPDATE runs SET finished_at = finished_at + interval '1 hour'", "in_the_way"),
            of_run(
                "UPDATE run_attempts SET finished_at = finished_at + interval '1 hour'",
                "in_the_way",
            ),
            of_run("UPDATE run_attempts SET started_at = go_at", "holder"),
        ),
    ),
    "a skip without a reason in the record": (
        Kind.UNEXPLAINED_SKIP,
        of_run("UPDATE runs SET finished_at = finished_at - interval '1 hour'", "skipped"),
    ),
    "a wrong final state: succeeded": (
        Kind.WRONG_END,
        of_run("UPDATE runs SET status = 'succeeded', outcome = 'succeeded'", "failed"),
    ),
    "a wrong final state: failed": (
        Kind.WRONG_END,
        of_run("UPDATE runs SET status = 'failed', outcome = 'non_zero_exit'", "succeeded"),
    ),
    "a wrong final state: cancelled": (
        Kind.WRONG_END,
        of_run("UPDATE runs SET status = 'cancelled'", "succeeded"),
    ),
    "a cancel that nobody asked for": (
        Kind.WRONG_END,
        of_run("UPDATE runs SET cancel_requested_at = NULL", "cancelled_waiting"),
    ),
    "a dead letter with attempts left": (
        Kind.WRONG_END,
        of_job(
            "UPDATE job_versions SET policies = jsonb_set(policies, '{retry,max_attempts}', '9')",
            "by_hand",
        ),
    ),
    "a lost outcome": (
        Kind.WRONG_END,
        of_run("UPDATE run_attempts SET outcome = 'timed_out'", "failed"),
    ),
    "a lost exit code": (
        Kind.WRONG_END,
        of_run("UPDATE runs SET exit_code = NULL", "failed"),
    ),
    "a success that is run again": (
        Kind.WRONG_END,
        of_run(
            "UPDATE runs SET status = 'queued', finished_at = NULL, attempt = attempt + 1",
            "minutely_catch_up",
        ),
    ),
    "an attempt that never ended": (
        Kind.WRONG_END,
        of_run("UPDATE run_attempts SET ended_at = NULL", "minutely_catch_up"),
    ),
    "a running run without its attempt": (
        Kind.WRONG_END,
        of_run("DELETE FROM run_attempts", "running"),
    ),
    "a failure that was not counted": (
        Kind.WRONG_COUNTERS,
        of_run("UPDATE runs SET failures = failures - 1", "succeeded"),
    ),
    "a lost lease that was not counted": (
        Kind.WRONG_COUNTERS,
        of_run("UPDATE runs SET lease_losses = 0", "lost_then_succeeded"),
    ),
    "a gap in the attempts": (
        Kind.ATTEMPT_NUMBERS,
        together(
            of_run("UPDATE runs SET attempt = 3", "succeeded"),
            of_run("UPDATE run_attempts SET attempt = attempt * 2 - 1", "succeeded"),
        ),
    ),
    "an attempt number that was jumped over": (
        Kind.ATTEMPT_NUMBERS,
        of_run("UPDATE runs SET attempt = attempt + 2", "leased"),
    ),
    "a reused fence": (
        Kind.FENCE_REUSED,
        lambda lived: execute(
            "UPDATE run_attempts SET fence = %s WHERE run_id = %s",
            lived.runs["failed"].fence,
            lived.runs["cancelled_running"].run_id,
        ),
    ),
    "a fence that was never drawn": (
        Kind.FENCE_REUSED,
        of_run("UPDATE runs SET fence = 1000000000", "minutely_catch_up"),
    ),
    "fences that go back": (
        Kind.FENCE_ORDER,
        lambda lived: execute(
            "UPDATE run_attempts a SET fence = (SELECT sum(b.fence) FROM run_attempts b"
            " WHERE b.run_id = a.run_id) - fence WHERE run_id = %s",
            lived.runs["succeeded"].run_id,
        ),
    ),
    "a status that does not exist": (
        Kind.BROKEN_ROW,
        without_constraint(
            "run_status_known", of_run("UPDATE runs SET status = 'lost'", "planned")
        ),
    ),
    "a skip that doesn't say why": (
        Kind.BROKEN_ROW,
        without_constraint(
            "run_skip_says_why", of_run("UPDATE runs SET skip_reason = ''", "skipped")
        ),
    ),
    "an end without an instant": (
        Kind.BROKEN_ROW,
        without_constraint(
            "run_final_is_finished", of_run("UPDATE runs SET finished_at = NULL", "image_gone")
        ),
    ),
    "a guard held by a run that is over": (
        Kind.GUARD,
        lambda lived: execute(
            "UPDATE job_guards SET holder_run_id = %s WHERE job_id = %s",
            lived.runs["skipped"].run_id,
            lived.jobs["skip"].job_id,
        ),
    ),
    "a guard held by another job's run": (
        Kind.GUARD,
        lambda lived: execute(
            "UPDATE job_guards SET holder_run_id = %s WHERE job_id = %s",
            lived.runs["running"].run_id,
            lived.jobs["skip"].job_id,
        ),
    ),
    "a run that runs without the guard": (
        Kind.GUARD,
        of_job("UPDATE job_guards SET holder_run_id = NULL", "skip"),
    ),
    "a run that is blocked for ever": (
        Kind.GUARD,
        of_job("UPDATE job_guards SET holder_run_id = NULL", "queue"),
    ),
    "a run that waits after its attempt": (
        Kind.ATTEMPT_NUMBERS,
        of_run("UPDATE runs SET status = 'queued', finished_at = NULL", "image_gone"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(lived: LivedHistory, name: str) -> None:
    expected, plant = FAULTS[name]
    assert plant(lived) != 0, "nothing was planted"

    violations = found()

    print(*violations, sep="\n")  # noqa: T201 – shown when it fails
    assert {violation.kind for violation in violations} == {expected}
