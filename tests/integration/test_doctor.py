"""The doctor finds each kind of left-over, leaves alone what is well, and mends on request."""

import time
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

from jobs.models import Job, ScheduleCursor
from runs import leases
from runs.models import JobGuard
from runs.partitions import (
    TABLES,
    create_partition_sql,
    database_today,
    partition_days,
    partition_name,
)
from runs.planner import plan_once
from scheduler_project.stack.engine import Engine
from tests.support.factories import (
    database_now,
    end_lease_of,
    lease,
    make_due_job,
    make_job,
    make_run,
    make_session,
    make_tenant,
    reread,
    start,
)
from tests.support.lived_history import execute, saved_job
from tests.support.sandboxes import container_spec
from workers.doctor import Doctor
from workers.models import WorkerSession
from workers.sandbox.base import ContainerHandle
from workers.sandbox.fake import FakeSandbox

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_server")]


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
def doctor(sandbox: FakeSandbox) -> Doctor:
    return Doctor(sandbox, settle_s=0)


def found(doctor: Doctor) -> dict[str, list[str]]:
    return {each.complaint.code: list(each.about) for each in doctor.examine()}


def repair(doctor: Doctor) -> None:
    for diagnosis in doctor.examine():
        assert diagnosis.complaint.repair is not None
        diagnosis.complaint.repair()


def test_a_sound_system_has_nothing(doctor: Doctor, sandbox: FakeSandbox) -> None:
    session = make_session()
    leased = start(make_run(make_due_job(due_in_s=600, overlap="skip")), session)
    container(sandbox, leased)

    assert found(doctor) == {}


def container(sandbox: FakeSandbox, leased: leases.Leased) -> ContainerHandle:
    """The container that the worker of a lease has made."""
    session = reread_owner(leased)
    return sandbox.prepare(
        container_spec(
            run_id=leased.run_id, fence=leased.fence, attempt=leased.attempt, session_id=session
        )
    )


def reread_owner(leased: leases.Leased) -> object:
    with connection.cursor() as cursor:
        cursor.execute("SELECT lease_owner FROM runs WHERE run_id = %s", [leased.run_id])
        return cursor.fetchone()[0]


def test_runs_of_ended_and_dead_sessions_are_taken_back(doctor: Doctor, settings: Settings) -> None:
    dead, ended = make_session(), make_session()
    settings.LEASE_S = 0  # the server of the tests is young
    running, prepared = make_run(make_due_job(due_in_s=600)), make_run(make_due_job(due_in_s=600))
    start(running, dead)
    lease(prepared, ended)
    end_lease_of(dead)
    WorkerSession.objects.filter(session_id=ended).update(ended_at=database_now())

    assert [line.split()[0] for line in found(doctor)["run_of_the_dead"]] == sorted(
        [str(running.run_id), str(prepared.run_id)]
    )
    repair(doctor)

    assert found(doctor) == {}
    assert (reread(running).status, reread(prepared).status) == ("queued", "queued")


def test_a_guard_whose_holder_is_over_is_passed_on(doctor: Doctor) -> None:
    job = make_due_job(due_in_s=600, overlap="queue")
    JobGuard.objects.create(job_id=job.job_id, holder_run_id=uuid4())
    waiting = make_run(job, status="blocked")

    assert list(found(doctor)) == ["stale_guard"]
    repair(doctor)

    assert found(doctor) == {}
    assert reread(waiting).status == "queued"


def test_containers_without_a_run_under_way_are_removed_and_no_others(
    doctor: Doctor, sandbox: FakeSandbox
) -> None:
    session = make_session()
    job = make_due_job(due_in_s=600)
    mine = container(sandbox, start(make_run(job, due_in_s=-1), session))
    nobody_s = sandbox.prepare(container_spec())
    run = make_run(job, due_in_s=-2)
    old = container(sandbox, lease(run, session))
    execute("UPDATE runs SET fence = nextval('run_fence_seq') WHERE run_id = %s", run.run_id)

    assert sorted(line.split()[0] for line in found(doctor)["container_without_run"]) == sorted(
        [nobody_s.name, old.name]
    )
    repair(doctor)

    assert found(doctor) == {}
    assert [each.handle for each in sandbox.list_ours()] == [mine]


def test_a_container_that_its_worker_is_about_to_remove_is_left_to_it(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    handle = sandbox.prepare(container_spec(session_id=session))
    monkeypatch.setattr(time, "sleep", lambda _: sandbox.remove(handle))

    assert found(Doctor(sandbox)) == {}


def test_an_engine_that_does_not_answer_is_said_and_hides_nothing_else(
    doctor: Doctor, sandbox: FakeSandbox
) -> None:
    make_job()
    sandbox.engine.silent = True

    assert list(found(doctor)) == ["engine_silent", "no_cursor"]


def test_queues_of_sessions_that_are_over_are_deleted(
    doctor: Doctor, redis_server: "redis.Redis"
) -> None:
    live, ended = make_session(), make_session()
    WorkerSession.objects.filter(session_id=ended).update(ended_at=database_now())
    for session in (live, ended, "unknown"):
        redis_server.lpush(f"runs.{session}", "a message")

    over = sorted([f"runs.{ended}", "runs.unknown"])
    assert found(doctor) == {"queue_of_the_dead": over}
    repair(doctor)

    assert found(doctor) == {}
    assert list(redis_server.scan_iter()) == [f"runs.{live}".encode()], "bindings go as well"


def test_a_broker_that_does_not_answer_is_said(doctor: Doctor, settings: Settings) -> None:
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"

    assert list(found(doctor)) == ["broker_silent"]


def test_missing_days_are_made(doctor: Doctor) -> None:
    name = partition_name("runs", database_today(connection) + timedelta(days=3))
    execute(f"DROP TABLE {name}")

    assert found(doctor) == {"missing_partition": [name]}
    repair(doctor)

    assert found(doctor) == {}


@pytest.mark.django_db(transaction=True)
def test_days_whose_drop_was_interrupted_are_dropped(doctor: Doctor, settings: Settings) -> None:
    day = database_today(connection) - timedelta(days=settings.RETENTION_DAYS + 1)
    for table in TABLES:
        execute(create_partition_sql(table, day))
    detached = partition_name("run_attempts", day)
    execute(f"ALTER TABLE run_attempts DETACH PARTITION {detached}")

    assert found(doctor) == {"half_dropped_partition": [detached]}
    repair(doctor)

    assert found(doctor) == {}
    assert day not in partition_days(connection, "runs")


def test_this_host_s_clock_is_compared_with_the_database_s(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7)

    (line,) = found(doctor)["clock_skew"]

    assert line.startswith("7.")
    assert line.endswith("s behind the database")


@pytest.mark.parametrize("off", [{"enabled": False}, {"deleted_at": database_now}])
def test_cursors_of_jobs_that_are_off_are_stopped(doctor: Doctor, off: dict[str, object]) -> None:
    job, other = make_due_job(due_in_s=600), make_due_job(due_in_s=600)
    values = {name: value() if callable(value) else value for name, value in off.items()}
    Job.objects.filter(pk=job.pk).update(**values)

    assert found(doctor) == {"cursor_of_the_off": [str(job.pk)]}
    repair(doctor)

    assert found(doctor) == {}
    assert ScheduleCursor.objects.get(job=job).next_run_at is None
    assert ScheduleCursor.objects.get(job=other).next_run_at is not None


def test_a_job_without_a_cursor_gets_one_after_what_is_accounted_for(doctor: Doctor) -> None:
    job = saved_job(make_tenant(), minutes_ago=30)
    plan_once()
    rows = ScheduleCursor.objects.get(job=job).next_run_at
    ScheduleCursor.objects.filter(job=job).delete()

    assert found(doctor) == {"no_cursor": [str(job.pk)]}
    repair(doctor)

    assert found(doctor) == {}
    assert ScheduleCursor.objects.get(job=job).next_run_at == rows


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def _engine_of_this_machine(engine: Engine, settings: Settings) -> None:
    settings.DOCKER_HOST = engine.host


@pytest.mark.usefixtures("_engine_of_this_machine")
def test_the_command_says_what_it_found_and_exits_with_1_until_it_is_mended() -> None:
    job = make_job()
    out = StringIO()

    with pytest.raises(CommandError, match="Found: no_cursor"):
        call_command("doctor", stdout=out)
    assert "no_cursor: jobs have no cursor" in out.getvalue()
    assert str(job.pk) in out.getvalue()
    assert "repair: give them one" in out.getvalue()

    call_command("doctor", "--repair", stdout=out)
    assert "Everything found was mended." in out.getvalue()
    again = StringIO()
    call_command("doctor", stdout=again)
    assert again.getvalue() == "Nothing was found.\n"


def test_what_nobody_here_can_mend_is_left_and_said(settings: Settings) -> None:
    settings.DOCKER_HOST = "unix:///nonexistent.sock"
    out = StringIO()

    with pytest.raises(CommandError, match="Left after the repair: engine_silent"):
        call_command("doctor", "--repair", stdout=out)

    assert "to do: start the engine" in out.getvalue()
