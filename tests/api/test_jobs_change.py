"""PATCH and DELETE: what a change touches, and what it leaves alone (architecture §3)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job, JobVersion, ScheduleCursor
from runs.domain.state import RunStatus
from runs.models import JobGuard, Run
from runs.planner import plan_once
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import database_now, make_run, make_session, reread, start
from tests.support.job_bodies import good_body

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}


def create(client: ApiClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/jobs", good_body(**changes))
    assert answer.status_code == 201, answer.content
    job: dict[str, Any] = answer.json()
    return job


def change(client: ApiClient, job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The job after the change, made from the version that `job` shows."""
    path, version = f"/v1/jobs/{job['job_id']}", f'"{job["version"]}"'
    answer = client.patch(path, changes, If_Match=version)
    assert answer.status_code == 200, answer.content
    changed: dict[str, Any] = answer.json()
    return changed


def row(job: dict[str, Any]) -> Job:
    return Job.objects.get(job_id=job["job_id"])


def cursor(job: dict[str, Any]) -> ScheduleCursor:
    return ScheduleCursor.objects.get(job_id=job["job_id"])


def status_of(run: Run) -> str:
    return reread(run).status


# --- versions -------------------------------------------------------------------------------------


def test_a_change_makes_a_version_that_says_what_and_by_whom(alice: ApiClient) -> None:
    job = create(alice)
    changed = change(alice, job, overlap="allow", retry={"max_attempts": 4})
    assert changed["version"] == 2
    assert changed["retry"] == job["retry"] | {"max_attempts": 4}
    versions = list(JobVersion.objects.filter(job_id=job["job_id"]).order_by("version"))
    assert [version.version for version in versions] == [1, 2]
    assert versions[1].policies["overlap"] == "allow"
    assert versions[1].changed_by.startswith("key ")


def test_a_change_needs_the_version_it_starts_from(alice: ApiClient) -> None:
    job = create(alice)
    path = f"/v1/jobs/{job['job_id']}"
    assert_problem(alice.patch(path, {"enabled": False}), 428, "precondition_required")
    for wrong in ('"2"', "99999999999999999999", 'W/"1"', '"abc"'):
        answer = alice.patch(path, {"enabled": False}, If_Match=wrong)
        assert_problem(answer, 412, "version_mismatch")
    assert alice.get(path).json() == job


@pytest.mark.parametrize("if_match", ["1", '"1"', "*", '"1.abcdef"'])
def test_the_version_may_be_named_in_several_ways(alice: ApiClient, if_match: str) -> None:
    job = create(alice)
    answer = alice.patch(f"/v1/jobs/{job['job_id']}", {"name": "x"}, If_Match=if_match)
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')


@pytest.mark.parametrize("body", [{}, {"enabled": True}, {"name": "report", "overlap": "skip"}])
def test_a_change_to_what_is_so_already_makes_no_version(
    alice: ApiClient, body: dict[str, Any]
) -> None:
    job = create(alice)
    assert change(alice, job, **body) == job


def test_a_change_that_is_refused_changes_nothing(alice: ApiClient) -> None:
    job = create(alice)
    path = f"/v1/jobs/{job['job_id']}"
    body = {"name": "other", "schedule": {"cron": "61 * * * *", "time_zone": "UTC"}}
    assert_problem(alice.patch(path, body, If_Match="1"), 400, "invalid_request")
    assert_problem(alice.patch(path, {"version": 7}, If_Match="1"), 400, "invalid_request")
    assert alice.get(path).json() == job


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "body_required"), (b"[]", "body_not_object"), (b"null", "body_not_object"),
     (b"{", "invalid_json")],
)  # fmt: skip
def test_a_change_without_an_object_is_refused(alice: ApiClient, body: bytes, code: str) -> None:
    job = create(alice)
    assert_problem(alice.patch(f"/v1/jobs/{job['job_id']}", body, If_Match="1"), 400, code)


def test_lowered_ceilings_do_not_keep_a_job_from_being_switched_off(alice: ApiClient) -> None:
    job = create(alice, task={"image": "a/b:1", "timeout_s": 900})
    tenant = row(job).tenant
    tenant.max_timeout_s, tenant.image_allow_list = 60, ["registry.example"]
    tenant.save()
    assert change(alice, job, enabled=False)["enabled"] is False
    answer = alice.patch(f"/v1/jobs/{job['job_id']}", {"task": {"args": ["x"]}}, If_Match="*")
    fields = {error["field"] for error in answer.json()["errors"]}
    assert fields == {"task.timeout_s", "task.image"}


# --- the schedule ---------------------------------------------------------------------------------


def test_a_new_schedule_counts_from_now_and_withdraws_what_was_planned(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    planned = make_run(row(job), due_in_s=40)
    leased = make_run(row(job), due_in_s=50)
    Run.objects.filter(run_id=leased.run_id).update(
        status="leased", lease_owner=make_session(), fence=1
    )
    late = make_run(row(job), due_in_s=-5)
    retried = make_run(row(job), due_in_s=-5, failures=1)
    by_hand = make_run(row(job), due_in_s=45, trigger="manual")

    changed = change(alice, job, schedule={"cron": "0 9 * * *"})

    assert changed["schedule"] == {"cron": "0 9 * * *", "time_zone": "UTC"}
    left = set(Run.objects.filter(job_id=job["job_id"]).values_list("run_id", flat=True))
    assert left == {late.run_id, retried.run_id, by_hand.run_id}
    assert planned.run_id not in left
    following = datetime.fromisoformat(changed["next_run_at"])
    assert timedelta(0) < following - database_now() <= timedelta(days=1)
    assert cursor(job).next_run_at == following


def test_edit_and_edit_back_plans_the_same_occurrence_again(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    plan_once()
    before = list(Run.objects.filter(job_id=job["job_id"]).values_list("scheduled_for", flat=True))
    assert before

    job = change(alice, job, schedule={"cron": "0 9 * * *", "time_zone": "UTC"})
    assert not Run.objects.filter(job_id=job["job_id"]).exists()
    change(alice, job, schedule=EVERY_MINUTE)
    plan_once()

    after = Run.objects.filter(job_id=job["job_id"]).values_list("scheduled_for", flat=True)
    assert sorted(after) == sorted(before)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": {"timeout_s": 60}},
        {"retry": {"max_attempts": 2}},
        {"labels": {"a": "b"}},
        {"name": "other", "description": "text"},
        {"overlap": "queue"},
        {"schedule": EVERY_MINUTE},
        {"schedule": {"time_zone": "UTC"}, "name": "other"},
    ],
)
def test_a_change_of_anything_else_does_not_move_the_schedule(
    alice: ApiClient, changes: dict[str, Any]
) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    planned = make_run(row(job), due_in_s=30)
    position = cursor(job).next_run_at
    change(alice, job, **changes)
    assert status_of(planned) == "queued"
    assert cursor(job).next_run_at == position


def test_the_next_time_shown_is_the_planned_one_that_is_still_ahead(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    plan_once()
    shown = alice.get(f"/v1/jobs/{job['job_id']}").json()
    assert shown["next_run_at"] == job["next_run_at"]
    assert shown["next_runs"] == job["next_runs"]
    moved_on = cursor(job).next_run_at
    assert moved_on is not None
    assert moved_on > datetime.fromisoformat(job["next_run_at"])
    assert alice.get("/v1/jobs").json()["jobs"][0]["next_run_at"] == job["next_run_at"]


def test_a_one_off_that_has_run_is_not_run_again_by_other_changes(alice: ApiClient) -> None:
    at = (database_now() + timedelta(seconds=30)).astimezone(UTC).isoformat(timespec="seconds")
    job = create(alice, schedule={"at": at})
    plan_once()
    # Its time comes: as a run that is over, with the cursor where the planner left it.
    assert cursor(job).next_run_at is None
    Job.objects.filter(job_id=job["job_id"]).update(schedule={"at": "2020-01-01T00:00:00Z"})
    Run.objects.filter(job_id=job["job_id"]).update(status="succeeded", finished_at=database_now())

    job = change(alice, job, name="other")
    assert (job["next_run_at"], job["next_runs"]) == (None, [])
    # A client that writes the whole job back sends the old instant again.
    job = change(alice, job, description="text", schedule=job["schedule"])
    job = change(alice, job, enabled=False)
    job = change(alice, job, enabled=True)
    assert (job["version"], job["next_run_at"]) == (5, None)
    assert cursor(job).next_run_at is None
    assert Run.objects.filter(job_id=job["job_id"]).count() == 1

    answer = alice.patch(
        f"/v1/jobs/{job['job_id']}", {"schedule": {"at": "2020-01-01T00:00:01Z"}}, If_Match="*"
    )
    assert answer.json()["errors"][0]["code"] == "invalid_at"


def test_an_interval_keeps_its_anchor_through_other_changes(alice: ApiClient) -> None:
    job = create(alice, schedule={"every": "90m"})
    stored = row(job).schedule
    job = change(alice, job, name="other")
    job = change(alice, job, schedule={"every": "90m"})
    assert job["version"] == 2
    job = change(alice, job, schedule={"every": "60m"})
    assert row(job).schedule == {"every": "1h", "anchor": stored["anchor"]}


def test_a_schedule_from_another_path_that_can_t_be_read_can_be_mended(alice: ApiClient) -> None:
    job = create(alice)
    bad = {"cron": "99 * * * *", "time_zone": "UTC"}
    pause = {"reason": "99 is not a minute", "by": "planner"}
    Job.objects.filter(job_id=job["job_id"]).update(schedule=bad, enabled=False, pause=pause)
    ScheduleCursor.objects.filter(job_id=job["job_id"]).update(next_run_at=None)
    path = f"/v1/jobs/{job['job_id']}"

    shown = alice.get(path).json()
    assert (shown["schedule"], shown["next_runs"], shown["next_occurrences"]) == (bad, [], [])
    assert shown["pause"] == pause | {"until": None, "since": None}
    renamed = change(alice, shown, name="other")
    assert renamed["schedule"] == bad
    problem = assert_problem(
        alice.patch(path, {"enabled": True}, If_Match="*"), 400, "invalid_request"
    )
    assert problem["errors"][0]["field"] == "schedule.cron"
    mended = change(alice, renamed, enabled=True, schedule={"cron": "9 * * * *"})
    assert mended["next_run_at"]
    assert mended["pause"] is None


# --- off and on -----------------------------------------------------------------------------------


def test_switching_off_withdraws_the_planned_and_skips_the_late(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE, overlap="allow")
    planned = make_run(row(job), due_in_s=30)
    late = make_run(row(job), due_in_s=-5)
    blocked = make_run(row(job), due_in_s=-10, status="blocked")
    by_hand = make_run(row(job), due_in_s=-5, trigger="manual")
    running = make_run(row(job), due_in_s=-20)
    start(running, make_session())

    job = change(alice, job, enabled=False)

    assert (job["next_run_at"], job["next_runs"]) == (None, [])
    assert not Run.objects.filter(run_id=planned.run_id).exists()
    for run in (late, blocked):
        assert (status_of(run), reread(run).skip_reason) == ("skipped", "paused")
    assert status_of(by_hand) == "queued"
    assert status_of(running) == "running"


def test_switching_on_starts_with_the_next_occurrence_after_now(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE, enabled=False)
    # Off for three days: nothing of that is caught up.
    Job.objects.filter(job_id=job["job_id"]).update(
        created_at=database_now() - timedelta(days=3), updated_at=database_now() - timedelta(days=3)
    )
    job = change(alice, job, enabled=True)
    ahead = datetime.fromisoformat(job["next_run_at"]) - database_now()
    assert timedelta(0) < ahead <= timedelta(minutes=1)


# --- delete ---------------------------------------------------------------------------------------


def test_a_deleted_job_is_gone_and_its_history_stays_readable(alice: ApiClient) -> None:
    job = create(alice)
    done = make_run(row(job), due_in_s=-60, status="succeeded", finished_at=database_now())
    path = f"/v1/jobs/{job['job_id']}"
    assert alice.delete(path).status_code == 204
    for answer in (alice.delete(path), alice.get(path), alice.post(f"{path}/runs")):
        assert_problem(answer, 404, "not_found")
    assert_problem(alice.patch(path, {"name": "x"}, If_Match="*"), 404, "not_found")
    assert alice.get("/v1/jobs").json()["jobs"] == []
    listed = alice.get(f"{path}/runs").json()["runs"]
    assert [run["run_id"] for run in listed] == [str(done.run_id)]
    assert alice.get(f"/v1/runs/{done.run_id}").status_code == 200
    last = JobVersion.objects.filter(job_id=job["job_id"]).order_by("-version")[0]
    assert (last.version, last.deleted) == (2, True)


def test_nothing_of_a_deleted_job_starts_any_more(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    planned = make_run(row(job), due_in_s=30)
    waiting = [
        make_run(row(job), due_in_s=-5),
        make_run(row(job), due_in_s=-5, trigger="manual"),
        make_run(row(job), due_in_s=-10, status="blocked"),
    ]
    assert alice.delete(f"/v1/jobs/{job['job_id']}").status_code == 204
    assert not Run.objects.filter(run_id=planned.run_id).exists()
    assert {status_of(run) for run in waiting} == {"cancelled"}
    assert cursor(job).next_run_at is None
    assert plan_once().get("runs", 0) == 0


@pytest.mark.parametrize(("query", "is_asked"), [("", False), ("?cancel_running=true", True)])
def test_a_running_run_is_stopped_only_when_asked(
    alice: ApiClient, query: str, is_asked: bool
) -> None:
    job = create(alice, overlap="allow")
    running = make_run(row(job), due_in_s=-20)
    start(running, make_session())
    assert alice.delete(f"/v1/jobs/{job['job_id']}{query}").status_code == 204
    assert status_of(running) == "running"
    assert (reread(running).cancel_requested_at is not None) is is_asked


def test_a_delete_may_name_the_version_it_means(alice: ApiClient) -> None:
    job = create(alice)
    path = f"/v1/jobs/{job['job_id']}"
    assert_problem(alice.delete(path, If_Match='"7"'), 412, "version_mismatch")
    assert_problem(alice.delete(f"{path}?cancel_running=1"), 400, "invalid_request")
    assert alice.delete(path, If_Match='"1"').status_code == 204


def test_the_guard_of_a_deleted_job_is_free(alice: ApiClient) -> None:
    job = create(alice, overlap="skip")
    backing_off = make_run(row(job), due_in_s=-5, failures=1)
    JobGuard.objects.create(job_id=job["job_id"], holder_run_id=backing_off.run_id)
    assert alice.delete(f"/v1/jobs/{job['job_id']}").status_code == 204
    assert status_of(backing_off) == RunStatus.CANCELLED
    assert JobGuard.objects.get(job_id=job["job_id"]).holder_run_id is None


# --- other tenants and tags -----------------------------------------------------------------------


def test_another_tenant_s_job_does_not_exist_whatever_is_sent(
    alice: ApiClient, bob: ApiClient
) -> None:
    path = f"/v1/jobs/{create(alice)['job_id']}"
    answers = [
        bob.get(path),
        bob.patch(path, {"enabled": False}, If_Match="1"),
        bob.patch(path, {"enabled": False}),
        bob.patch(path, {"unknown": 1}, If_Match="1"),
        bob.patch(path, b"{", If_Match="1"),
        bob.delete(path),
        bob.delete(path, If_Match='"7"'),
        bob.post(f"{path}/runs", {}),
        bob.get(f"{path}/runs"),
    ]
    for answer in answers:
        assert_problem(answer, 404, "not_found")
    assert alice.get(path).json()["version"] == 1


def test_a_reader_is_told_when_nothing_has_changed(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    path = f"/v1/jobs/{job['job_id']}"
    tag = alice.get(path)["ETag"]
    assert tag == '"1"'
    unchanged = alice.get(path, If_None_Match=tag)
    assert (unchanged.status_code, unchanged.content, unchanged["ETag"]) == (304, b"", tag)
    change(alice, job, name="other")
    assert alice.get(path, If_None_Match=tag).status_code == 200


def test_a_job_that_has_moved_on_has_another_tag_that_names_the_same_version(
    alice: ApiClient,
) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    path = f"/v1/jobs/{job['job_id']}"
    later = datetime.fromisoformat(job["next_run_at"]) + timedelta(minutes=1)
    ScheduleCursor.objects.filter(job_id=job["job_id"]).update(next_run_at=later)
    seen = alice.get(path, If_None_Match='"1"')
    assert seen.status_code == 200
    assert seen["ETag"].startswith('"1.')
    assert alice.get(path, If_None_Match=seen["ETag"]).status_code == 304
    assert alice.patch(path, {"name": "x"}, If_Match=seen["ETag"]).status_code == 200
