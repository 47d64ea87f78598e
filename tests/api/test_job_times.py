"""What a job says about its times: shown with defaults, kept exactly, refused with a hint."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job, JobVersion, ScheduleCursor
from runs.planner import plan_once
from scheduler_project.lib.instants import format_instant
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import database_now, make_run
from tests.support.job_bodies import good_body
from tests.support.story_clock import story_clock

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}
NEW_YORK = {"cron": "30 2 * * *", "time_zone": "America/New_York"}


def create(client: ApiClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/jobs", good_body(**changes))
    assert answer.status_code == 201, answer.content
    job: dict[str, Any] = answer.json()
    return job


def change(client: ApiClient, job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = client.patch(f"/v1/jobs/{job['job_id']}", changes, If_Match=f'"{job["version"]}"')
    assert answer.status_code == 200, answer.content
    changed: dict[str, Any] = answer.json()
    return changed


def cursor(job: dict[str, Any]) -> ScheduleCursor:
    return ScheduleCursor.objects.get(job_id=job["job_id"])


def in_days(days: float) -> str:
    at = database_now() + timedelta(days=days)
    return format_instant(at.replace(microsecond=at.microsecond // 1000 * 1000))


def errors(client: ApiClient, **changes: Any) -> dict[str, dict[str, str]]:
    answer = client.post("/v1/jobs", good_body(**changes))
    body = assert_problem(answer, 400, "invalid_request")
    return {error["field"]: error for error in body["errors"]}


# --- what is said is kept, and shown whole --------------------------------------------------------


def test_what_is_said_is_shown_and_the_rest_has_its_default(alice: ApiClient) -> None:
    start_at, end_at = in_days(1), in_days(90)
    job = create(
        alice,
        dst={"fold": "both"},
        misfire={"policy": "run_all", "deadline_s": 600},
        start_at=start_at,
        end_at=end_at,
    )
    assert job["dst"] == {"gap": "next_valid", "fold": "both"}
    assert job["misfire"] == {
        "policy": "run_all", "grace_s": 60, "deadline_s": 600, "max_catch_up": 100,
    }  # fmt: skip
    assert (job["start_at"], job["end_at"]) == (start_at, end_at)
    version = JobVersion.objects.get(job_id=job["job_id"])
    assert version.policies["misfire"] == job["misfire"]
    assert version.policies["dst"] == job["dst"]
    assert datetime.fromisoformat(version.policies["end_at"]) == datetime.fromisoformat(end_at)


def test_a_job_read_can_be_sent_back_as_it_is_and_changes_nothing(alice: ApiClient) -> None:
    job = create(alice, misfire={"policy": "skip"}, end_at=in_days(9), schedule=EVERY_MINUTE)
    names = ("name", "schedule", "task", "retry", "overlap", "enabled", "start_at", "end_at",
             "dst", "misfire", "pause", "resume", "labels", "description")  # fmt: skip
    assert change(alice, job, **{name: job[name] for name in names}) == job


def test_members_that_are_not_mentioned_stay_and_null_takes_a_bound_away(alice: ApiClient) -> None:
    job = create(alice, misfire={"grace_s": 5, "deadline_s": 60}, end_at=in_days(9))
    job = change(alice, job, misfire={"max_catch_up": 7}, dst={"gap": "skip"})
    assert job["misfire"] == {
        "policy": "run_once", "grace_s": 5, "deadline_s": 60, "max_catch_up": 7,
    }  # fmt: skip
    assert job["dst"] == {"gap": "skip", "fold": "first"}
    job = change(alice, job, misfire={"deadline_s": None}, end_at=None)
    assert (job["misfire"]["deadline_s"], job["end_at"]) == (None, None)


def test_what_does_not_move_the_schedule_leaves_the_planned_alone(alice: ApiClient) -> None:
    job = create(alice, schedule=EVERY_MINUTE)
    planned = make_run(Job.objects.get(job_id=job["job_id"]), due_in_s=30)
    before = cursor(job).next_run_at
    job = change(alice, job, misfire={"policy": "skip"})
    assert cursor(job).next_run_at == before
    change(alice, job, dst={"gap": "skip"})
    assert not planned.__class__.objects.filter(run_id=planned.run_id).exists()


@pytest.mark.parametrize(
    ("said", "field", "code"),
    [
        ({"dst": {"gap": "Skip"}}, "dst.gap", "invalid_choice"),
        ({"dst": {"spring": "skip"}}, "dst.spring", "unknown_field"),
        ({"dst": "skip"}, "dst", "wrong_type"),
        ({"misfire": {"policy": "run-once"}}, "misfire.policy", "invalid_choice"),
        ({"misfire": {"grace_s": -1}}, "misfire.grace_s", "too_small"),
        ({"misfire": {"grace_s": 86_401}}, "misfire.grace_s", "too_large"),
        ({"misfire": {"grace_s": True}}, "misfire.grace_s", "wrong_type"),
        ({"misfire": {"deadline_s": 0}}, "misfire.deadline_s", "too_small"),
        ({"misfire": {"max_catch_up": 1_001}}, "misfire.max_catch_up", "too_large"),
        ({"misfire": {"grace": 5}}, "misfire.grace", "unknown_field"),
        ({"misfire": None}, "misfire", "null"),
        ({"start_at": "2027-01-01"}, "start_at", "invalid_instant"),
        ({"start_at": "2027-01-01T00:00:00.0001Z"}, "start_at", "invalid_instant"),
        ({"end_at": "9000-01-01T00:00:00Z"}, "end_at", "invalid_instant"),
        (
            {"start_at": "2028-01-01T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"},
            "end_at",
            "ends_before_start",
        ),
        ({"end_at": "2020-01-01T00:00:00Z"}, "end_at", "never_fires"),
        ({"pause": {"until": "2020-01-01T00:00:00Z"}}, "pause.until", "in_past"),
        ({"pause": {"unti": "2099-01-01T00:00:00Z"}}, "pause.unti", "unknown_field"),
        ({"pause": True}, "pause", "wrong_type"),
        ({"pause": {"reason": "x" * 501}}, "pause.reason", "too_long"),
        ({"resume": {"catch_up": "latest"}}, "resume.catch_up", "not_paused"),
        ({"pause": {}, "resume": {"catch_up": "last"}}, "resume.catch_up", "invalid_choice"),
        ({"schedule": {"every": "30s"}}, "schedule.every", "invalid_every"),
    ],
)
def test_what_is_not_accepted_is_refused_by_its_name(
    alice: ApiClient, said: dict[str, Any], field: str, code: str
) -> None:
    found = errors(alice, **said)
    assert found[field]["code"] == code
    assert not Job.objects.exists()


def test_a_one_off_outside_its_bounds_never_fires(alice: ApiClient) -> None:
    found = errors(alice, schedule={"at": in_days(5)}, end_at=in_days(2))
    assert found["end_at"]["code"] == "never_fires"
    assert create(alice, schedule={"at": in_days(5)}, end_at=in_days(6))["next_run_at"]


# --- bounds and intervals -------------------------------------------------------------------------


def test_bounds_are_inclusive_and_move_the_schedule(alice: ApiClient) -> None:
    noon = (database_now() + timedelta(days=3)).replace(hour=12, minute=0, second=0, microsecond=0)
    daily = {"cron": "0 12 * * *", "time_zone": "UTC"}
    job = create(alice, schedule=daily, start_at=format_instant(noon))
    assert job["next_run_at"] == format_instant(noon)
    job = change(alice, job, end_at=format_instant(noon + timedelta(days=1)))
    assert job["next_runs"] == [format_instant(noon), format_instant(noon + timedelta(days=1))]
    job = change(alice, job, start_at=None, end_at=None)
    assert datetime.fromisoformat(job["next_run_at"]) < noon


def test_an_interval_counts_from_start_at_and_other_changes_leave_its_anchor(
    alice: ApiClient,
) -> None:
    start_at = in_days(2)
    job = create(alice, schedule={"every": "90m"}, start_at=start_at)
    first = datetime.fromisoformat(start_at) + timedelta(minutes=90)
    assert job["schedule"] == {"every": "90m"}
    assert datetime.fromisoformat(job["next_run_at"]) == first
    for changes in ({"name": "x"}, {"enabled": False}, {"enabled": True}, {"end_at": in_days(30)},
                    {"pause": {"reason": "x"}}, {"pause": None}):  # fmt: skip
        job = change(alice, job, **changes)
    assert datetime.fromisoformat(job["next_run_at"]) == first
    assert job["version"] == 7
    # The same length in other words is no change; another beginning is another anchor.
    assert change(alice, job, schedule={"every": "1h30m"}) == job
    later = in_days(4)
    job = change(alice, job, start_at=later)
    first = datetime.fromisoformat(later) + timedelta(minutes=90)
    assert datetime.fromisoformat(job["next_run_at"]) == first
    created = Job.objects.get(job_id=job["job_id"]).created_at
    job = change(alice, job, start_at=None)
    anchor = datetime.fromisoformat(Job.objects.get(job_id=job["job_id"]).schedule["anchor"])
    assert abs(anchor - created) < timedelta(milliseconds=1)


def test_a_one_off_that_ran_has_no_next_time(alice: ApiClient) -> None:
    noon = datetime(2031, 12, 1, 12, tzinfo=UTC)
    with story_clock(noon - timedelta(minutes=30), days=2) as clock:
        job = create(alice, schedule={"at": format_instant(noon)})
        path = f"/v1/jobs/{job['job_id']}"
        clock.set(noon - timedelta(seconds=30))
        plan_once()
        assert alice.get(path).json()["next_run_at"] == format_instant(noon)
        clock.set(noon + timedelta(seconds=1))
        shown = alice.get(path).json()
        assert (shown["next_run_at"], shown["next_runs"]) == (None, [])
        assert shown["next_occurrences"] == []
        assert alice.get("/v1/jobs").json()["jobs"][0]["next_run_at"] is None
        assert len(alice.get(f"{path}/runs").json()["runs"]) == 1


# --- next times -----------------------------------------------------------------------------------


def test_a_job_s_next_times_show_what_the_preview_shows(alice: ApiClient) -> None:
    job = create(alice, schedule=NEW_YORK, start_at="2032-03-13T12:00:00Z")
    body = {"schedule": NEW_YORK, "start_at": "2032-03-13T12:00:00Z", "count": 5}
    preview = alice.post("/v1/schedules/preview", body).json()
    assert job["next_occurrences"] == preview["occurrences"]
    assert job["next_occurrences"][0] == {
        "scheduled_for": "2032-03-14T07:00:00Z",
        "local": "2032-03-14T03:00:00",
        "offset": "-04:00",
        "notes": ["dst_shifted"],
    }
    assert job["next_runs"] == [one["scheduled_for"] for one in job["next_occurrences"]]
