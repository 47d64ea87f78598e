"""Edits that meet other work at the same moment, each on a connection of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from jobs.domain.spec import JobChanges
from jobs.errors import JobError
from jobs.models import Job, JobVersion, ScheduleCursor
from jobs.services import job_create, job_delete, job_set_enabled, job_update
from runs import store
from runs.leases import GoAnswer, go
from runs.models import Run
from runs.planner import plan_once
from runs.services import run_cancel, run_now
from tenants.models import Tenant
from tests.support.api_client import ApiClient, client_of
from tests.support.factories import (
    database_now,
    go_request,
    lease,
    make_run,
    make_session,
    make_tenant,
    reread,
)
from tests.support.job_bodies import good_body
from tests.support.polling import poll
from tests.support.racing import blocked_by_us, race

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}
DAILY = {"cron": "0 9 * * *", "time_zone": "UTC"}
ROUNDS = 5


@pytest.fixture(autouse=True)
def _static_root() -> None:
    """WhiteNoise warns of a directory that is not there, and warnings are errors."""
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)


def new_job(tenant: Tenant, **changes: Any) -> Job:
    said: dict[str, Any] = {
        "schedule": EVERY_MINUTE,
        "task": {"image": "a/b:1", "timeout_s": 60},
    } | changes
    return job_create(tenant, JobChanges(**said), changed_by="test")


def edit(job: Job, version: int | None = None, **changes: Any) -> Job:
    return job_update(
        job.tenant, job.job_id, JobChanges(**changes), expected_version=version, changed_by="test"
    )


def at_once(racers: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each of the racers gave; they may be of different kinds."""
    return race(racers)


def delete(job: Job) -> None:
    job_delete(job.tenant, job.job_id, changed_by="test")


def switch_off(job: Job) -> None:
    job_set_enabled(job.tenant, job.job_id, False, changed_by="test")


def attempt(action: Callable[[], object]) -> str:
    """`done`, or the name of the refusal."""
    try:
        action()
    except JobError as error:
        return type(error).__name__
    return "done"


# --- edit × edit ----------------------------------------------------------------------------------


def test_of_two_racing_changes_of_one_version_one_is_made_and_the_other_is_stale() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)
        outcomes = at_once(
            [
                partial(attempt, partial(edit, job, 1, name="left")),
                partial(attempt, partial(edit, job, 1, name="right")),
            ]
        )
        assert sorted(outcomes) == ["StaleVersionError", "done"]
        assert Job.objects.get(job_id=job.job_id).version == 2
        assert JobVersion.objects.filter(job=job).count() == 2


def test_two_racing_requests_get_one_200_and_one_412() -> None:
    tenant = make_tenant()
    clients = [client_of(tenant), client_of(tenant)]
    path = f"/v1/jobs/{new_job(tenant).job_id}"
    answers = at_once(
        [
            partial(client.patch, path, {"name": name}, If_Match='"1"')
            for client, name in zip(clients, ("left", "right"), strict=True)
        ]
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412]


def test_changes_of_any_version_all_count_and_none_is_lost() -> None:
    job = new_job(make_tenant())
    at_once([partial(edit, job, labels={"n": str(n)}) for n in range(6)])
    assert Job.objects.get(job_id=job.job_id).version == 7
    versions = JobVersion.objects.filter(job=job).order_by("version")
    assert [version.version for version in versions] == [1, 2, 3, 4, 5, 6, 7]
    moments = [version.effective_from for version in versions]
    # Each is in effect from after the one it waited for, however long its request had waited.
    assert moments == sorted(set(moments))


def test_of_two_racing_deletes_one_deletes_and_one_finds_nothing() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)
        racer = partial(attempt, partial(delete, job))
        assert sorted(at_once([racer, racer])) == ["JobNotFoundError", "done"]


# --- edit × planner -------------------------------------------------------------------------------


def test_a_planner_and_an_edit_at_once_leave_no_run_of_the_old_schedule_ahead() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)
        *_, edited = at_once([plan_once, plan_once, partial(edit, job, schedule=DAILY)])
        plan_once()
        # What fell due before the edit stays, if a minute begins between the two.
        ahead = Run.objects.filter(job=job, scheduled_for__gt=edited.updated_at)
        assert [run.scheduled_for for run in ahead if run.scheduled_for.hour != 9] == []
        cursor = ScheduleCursor.objects.get(job=job)
        assert cursor.next_run_at is not None
        assert (cursor.next_run_at.hour, cursor.next_run_at.minute) == (9, 0)


def test_an_edit_counts_from_after_its_wait_and_keeps_what_fell_due_meanwhile() -> None:
    job = new_job(make_tenant())
    soon = make_run(job, due_in_s=0.4)
    with transaction.atomic():
        ScheduleCursor.objects.select_for_update().get(job=job)
        edited = blocked_by_us(partial(edit, job, schedule=DAILY))
        poll(lambda: database_now() > soon.scheduled_for, 5, "its time comes while the edit waits")
        released_at = database_now()
    assert edited.result(30).updated_at > released_at
    assert reread(soon).status == "queued"


def test_a_planner_that_holds_a_cursor_lets_the_edit_wait_and_is_undone_by_it() -> None:
    job = new_job(make_tenant())
    with transaction.atomic():
        plan_once()
        planned = Run.objects.filter(job=job).count()
        assert planned
        edited = blocked_by_us(lambda: edit(job, schedule=DAILY))
    changed = edited.result(30)
    assert changed.version == 2
    assert not Run.objects.filter(job=job, scheduled_for__gt=changed.updated_at).exists()


def test_an_edit_that_holds_the_cursor_lets_the_planner_pass_by() -> None:
    tenant = make_tenant()
    job, other = new_job(tenant), new_job(tenant)
    with transaction.atomic():
        edit(job, schedule=DAILY)
        (counts,) = at_once([plan_once])
    assert counts["jobs"] == 1
    assert not Run.objects.filter(job=job).exists()
    assert Run.objects.filter(job=other).exists()


def test_a_planner_and_a_delete_at_once_leave_nothing_to_run() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)
        at_once([plan_once, plan_once, partial(delete, job)])
        plan_once()
        assert not Run.objects.filter(job=job, finished_at=None).exists()


def test_edit_and_edit_back_while_planners_are_at_work_keep_every_occurrence_once() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)

        def there_and_back(job: Job = job) -> None:
            edit(job, schedule=DAILY)
            edit(job, schedule=EVERY_MINUTE)

        at_once([there_and_back, plan_once, plan_once])
        plan_once()
        moments = list(Run.objects.filter(job=job).values_list("scheduled_for", flat=True))
        assert len(moments) == len(set(moments)) >= 1


# --- edit × worker --------------------------------------------------------------------------------


def test_a_worker_that_prepared_a_withdrawn_run_is_refused_at_its_go() -> None:
    tenant, session = make_tenant(), make_session()
    job = new_job(tenant)
    prepared = lease(make_run(job, due_in_s=3), session)
    edit(job, schedule=DAILY)
    reply = go(session, "node-1", [go_request(prepared)])[prepared.run_id]
    assert reply.answer is not GoAnswer.GO
    assert not Run.objects.filter(run_id=prepared.run_id).exists()


@pytest.mark.parametrize("change", [delete, switch_off])
def test_a_change_waits_for_the_guard_before_it_touches_a_run(
    change: Callable[[Job], None],
) -> None:
    # A go locks guard, then run. A change that held the run and asked for the guard would wait
    # for the go, and the go for it.
    tenant, session = make_tenant(), make_session()
    job = new_job(tenant, overlap="skip")
    prepared = lease(make_run(job, due_in_s=60), session)
    store.execute("ensure_guards", job_ids=[job.job_id])
    with transaction.atomic():
        store.lock_guards([job.job_id])
        changed = blocked_by_us(partial(change, job))
        assert store.fetch(
            "read_runs_for_go",
            run_ids=[prepared.run_id],
            scheduled_fors=[prepared.scheduled_for],
            task_versions=[prepared.task_version],
            session_id=session,
        )
    changed.result(30)
    assert not Run.objects.filter(run_id=prepared.run_id).exists()


def test_a_pause_and_a_go_at_once_have_one_order() -> None:
    tenant, session = make_tenant(), make_session()
    for _ in range(ROUNDS):
        job = new_job(tenant, overlap="allow")
        run = make_run(job, due_in_s=-1)
        request = go_request(lease(run, session))
        answers = at_once(
            [
                partial(go, session, "node-1", [request]),
                partial(job_set_enabled, tenant, job.job_id, False, changed_by="test"),
            ]
        )
        # Running on is right only for a run that had its go; skipped only for one that had not.
        has_its_go = answers[0][request.run_id].answer is GoAnswer.GO
        expected = "running" if has_its_go else "skipped"
        assert reread(run).status == expected


# --- run now and cancel ---------------------------------------------------------------------------


def test_a_run_by_hand_and_a_delete_at_once_have_one_order() -> None:
    tenant = make_tenant()
    for _ in range(ROUNDS):
        job = new_job(tenant)
        outcomes = at_once(
            [
                partial(attempt, partial(run_now, tenant, job.job_id)),
                partial(attempt, partial(delete, job)),
            ]
        )
        assert outcomes[1] == "done"
        runs = list(Run.objects.filter(job=job, trigger="manual"))
        # Before the delete: made, and cancelled by it. After: refused, and no row.
        expected = ["cancelled"] if outcomes[0] == "done" else []
        assert [run.status for run in runs] == expected
        assert outcomes[0] in ("done", "JobNotFoundError")


def test_many_runs_by_hand_at_once_are_all_made() -> None:
    job = new_job(make_tenant())
    runs = at_once([partial(run_now, job.tenant, job.job_id)] * 10)
    assert len({run.run_id for run in runs}) == 10
    assert Run.objects.filter(job=job, trigger="manual").count() == 10


def test_a_cancel_and_a_go_at_once_have_one_order() -> None:
    tenant, session = make_tenant(), make_session()
    for _ in range(ROUNDS):
        job = new_job(tenant, overlap="skip")
        run = make_run(job, due_in_s=-1)
        request = go_request(lease(run, session))
        replies, _ = at_once(
            [
                partial(go, session, "node-1", [request]),
                partial(run_cancel, tenant, run.run_id),
            ]
        )
        stored = reread(run)
        if replies[request.run_id].answer is GoAnswer.GO:
            assert (stored.status, stored.cancel_requested_at is None) == ("running", False)
        else:
            assert stored.status == "cancelled"


# --- create ---------------------------------------------------------------------------------------


def test_one_key_sent_many_times_at_once_makes_one_job() -> None:
    tenant = make_tenant()
    key = client_of(tenant).key
    # A client each: Django's test client keeps state that threads must not share.
    answers = at_once(
        [partial(ApiClient(key).post, "/v1/jobs", good_body(), Idempotency_Key="k")
         for _ in range(10)]
    )  # fmt: skip
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = {answer.json()["job_id"] for answer in answers if answer.status_code == 201}
    assert made == {str(job.job_id) for job in Job.objects.filter(tenant=tenant)}
    assert len(made) == 1


def test_creations_at_once_do_not_pass_the_limit() -> None:
    tenant = make_tenant(max_jobs=3)
    outcomes = at_once([partial(attempt, partial(new_job, tenant))] * 8)
    assert sorted(outcomes) == ["JobQuotaExceededError"] * 5 + ["done"] * 3
    assert Job.objects.filter(tenant=tenant).count() == 3
