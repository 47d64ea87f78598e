"""POST /v1/jobs: what is stored and shown, what is refused and how."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings

from jobs.domain.schedule import tzdata_version
from jobs.models import Job, JobVersion, ScheduleCursor
from tenants.models import Tenant
from tests.support.api_client import ApiClient, assert_problem
from tests.support.factories import database_now
from tests.support.job_bodies import good_body, with_task


def refused(client: ApiClient, body: object) -> list[tuple[str, str]]:
    """Field and code of each error; nothing is stored."""
    problem = assert_problem(client.post("/v1/jobs", body), 400, "invalid_request")
    assert not Job.objects.exists()
    return [(error["field"], error["code"]) for error in problem["errors"]]


def test_a_new_job_is_shown_whole_with_its_next_times(alice: ApiClient) -> None:
    answer = alice.post("/v1/jobs", good_body(labels={"team": "billing"}, description="a\nb"))
    assert answer.status_code == 201
    job = answer.json()
    assert answer["Location"] == f"/v1/jobs/{job['job_id']}"
    assert answer["ETag"] == '"1"'
    assert alice.get(answer["Location"]).json() == job
    unlike = ("_id", "_at", "runs", "occurrences")
    shown = {name: job[name] for name in job if not name.endswith(unlike)}
    assert shown == {
        "version": 1,
        "name": "report",
        "description": "a\nb",
        "labels": {"team": "billing"},
        "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
        "task": {
            "image": "registry.example/acme/report:3",
            "args": ["--daily"],
            "env": {},
            "timeout_s": 900,
            "resources": {"cpu": 1.0, "memory_mb": 512},
        },
        "retry": {
            "max_attempts": 1,
            "backoff": "exponential",
            "base_s": 5.0,
            "max_s": 3600.0,
            "jitter": "full",
            "exit_codes": {"fail": [], "ignore": []},
        },
        "overlap": "skip",
        "queue_limit": 10,
        "enabled": True,
        "dst": {"gap": "next_valid", "fold": "first"},
        "misfire": {
            "policy": "run_once",
            "grace_s": 60,
            "deadline_s": None,
            "max_catch_up": 100,
        },
        "pause": None,
        "resume": {"catch_up": "none"},
        "late_after_s": None,
        "auto_pause_after": None,
    }
    assert (job["start_at"], job["end_at"]) == (None, None)
    assert job["next_runs"][0] == job["next_run_at"]
    assert all(text.endswith("T03:30:00Z") for text in job["next_runs"])


def test_a_job_is_stored_with_its_version_and_its_cursor(alice: ApiClient, acme: Tenant) -> None:
    answer = alice.post("/v1/jobs", good_body())
    job = Job.objects.get(job_id=answer.json()["job_id"])
    cursor = ScheduleCursor.objects.get(job=job)
    version = JobVersion.objects.get(job=job)
    assert job.tenant == acme
    assert cursor.next_run_at == datetime.fromisoformat(answer.json()["next_run_at"])
    assert cursor.shard == job.job_id.int % settings.SHARDS
    assert cursor.tzdata == version.tzdata == tzdata_version()
    assert (version.version, version.schedule, version.task) == (1, job.schedule, job.task)
    assert (version.enabled, version.deleted) == (True, False)
    assert version.effective_from == job.created_at == job.updated_at
    assert version.changed_by.startswith("key ")
    assert version.policies["overlap"] == "skip"
    assert version.policies["retry"] == job.retry


def test_a_job_that_is_off_has_no_next_time(alice: ApiClient) -> None:
    job = alice.post("/v1/jobs", good_body(enabled=False)).json()
    assert (job["enabled"], job["next_run_at"], job["next_runs"]) == (False, None, [])
    assert ScheduleCursor.objects.get().next_run_at is None


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("2031-03-01T15:00:00Z", "2031-03-01T15:00:00Z"),
        ("2031-03-01T20:30:00+05:30", "2031-03-01T15:00:00Z"),
        ("2031-03-01t15:00:00.750z", "2031-03-01T15:00:00.750Z"),
    ],
)
def test_a_one_off_is_shown_at_its_instant_in_utc(alice: ApiClient, at: str, shown: str) -> None:
    job = alice.post("/v1/jobs", good_body(schedule={"at": at})).json()
    assert job["schedule"] == {"at": shown}
    assert (job["next_run_at"], job["next_runs"]) == (shown, [shown])


def test_an_interval_counts_from_the_creation_and_its_anchor_is_not_shown(alice: ApiClient) -> None:
    job = alice.post("/v1/jobs", good_body(schedule={"every": "90m"})).json()
    assert job["schedule"] == {"every": "90m"}
    created = datetime.fromisoformat(job["created_at"])
    first = datetime.fromisoformat(job["next_run_at"])
    assert abs(first - created - timedelta(minutes=90)) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("schedule", "field", "code"),
    [
        (None, "schedule", "null"),
        ("0 9 * * *", "schedule", "invalid_schedule"),
        ([], "schedule", "invalid_schedule"),
        ({}, "schedule", "invalid_schedule"),
        ({"cron": "0 9 * * *"}, "schedule.time_zone", "invalid_schedule"),
        ({"cron": "0 9 * * *", "time_zone": None}, "schedule.time_zone", "invalid_time_zone"),
        ({"cron": "0 9 * * *", "time_zone": "asia/kolkata"}, "schedule.time_zone",
         "invalid_time_zone"),
        ({"cron": "61 * * * *", "time_zone": "UTC"}, "schedule.cron", "invalid_cron"),
        ({"cron": "0 0 30 2 *", "time_zone": "UTC"}, "schedule.cron", "never_fires"),
        ({"cron": "0 9 * * *", "time_zone": "UTC", "at": "2031-01-01T00:00:00Z"}, "schedule",
         "invalid_schedule"),
        ({"cron": "0 9 * * *", "time_zone": "UTC", "zone": "UTC"}, "schedule.zone",
         "invalid_schedule"),
        ({"at": "2031-03-01T15:00:00"}, "schedule.at", "invalid_at"),
        ({"at": "2020-03-01T15:00:00Z"}, "schedule.at", "invalid_at"),
        ({"every": "59s"}, "schedule.every", "invalid_every"),
    ],
)  # fmt: skip
def test_a_schedule_that_is_refused_is_named(
    alice: ApiClient, schedule: object, field: str, code: str
) -> None:
    assert refused(alice, good_body(schedule=schedule)) == [(field, code)]


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("schedule", "required"), ("task", "required")]),
        (good_body(task={}), [("task.image", "required"), ("task.timeout_s", "required")]),
        (good_body(task=[]), [("task", "wrong_type")]),
        (good_body(job_id="x"), [("job_id", "unknown_field")]),
        (good_body(tenant="x"), [("tenant", "unknown_field")]),
        (with_task(command="x"), [("task.command", "unknown_field")]),
        (with_task(timeout_s=True), [("task.timeout_s", "wrong_type")]),
        (with_task(timeout_s=1.0), [("task.timeout_s", "wrong_type")]),
        (with_task(timeout_s="60"), [("task.timeout_s", "wrong_type")]),
        (with_task(timeout_s=0), [("task.timeout_s", "too_small")]),
        (with_task(timeout_s=2**31), [("task.timeout_s", "too_large")]),
        (with_task(timeout_s=10**30), [("task.timeout_s", "too_large")]),
        (with_task(image=7), [("task.image", "wrong_type")]),
        (with_task(image=""), [("task.image", "blank")]),
        (with_task(image="a\nb"), [("task.image", "invalid_character")]),
        (with_task(image="a b"), [("task.image", "invalid_image")]),
        (with_task(args="--daily"), [("task.args", "wrong_type")]),
        (with_task(args=["a", 5, None]),
         [("task.args[1]", "wrong_type"), ("task.args[2]", "null")]),
        (with_task(args=["a", "b\0"]), [("task.args[1]", "invalid_character")]),
        (with_task(env=["A=1"]), [("task.env", "wrong_type")]),
        (with_task(env={"A": 1}), [("task.env.A", "wrong_type")]),
        (with_task(env={"A=B": "x"}), [('task.env["A=B"]', "invalid_env_name")]),
        (with_task(env={"FENCE": "1"}), [("task.env.FENCE", "reserved_env_name")]),
        (with_task(resources={"cpu": "1"}), [("task.resources.cpu", "wrong_type")]),
        (with_task(resources={"cpu": 0.125}), [("task.resources.cpu", "invalid")]),
        (with_task(resources={"cpus": 1}), [("task.resources.cpus", "unknown_field")]),
        (with_task(resources={"memory_mb": 4096}), [("task.resources.memory_mb", "too_large")]),
        (good_body(retry={"max_attempts": 0}), [("retry.max_attempts", "too_small")]),
        (good_body(retry={"max_attempts": True}), [("retry.max_attempts", "wrong_type")]),
        (good_body(retry={"backoff": "linear"}), [("retry.backoff", "invalid_choice")]),
        (good_body(retry={"base_s": 60, "max_s": 30}), [("retry.base_s", "too_large")]),
        (good_body(retry={"exit_codes": {"fail": ["0"]}}),
         [("retry.exit_codes.fail[0]", "invalid_exit_code")]),
        (good_body(retry={"exit_codes": {"fail": [64]}}),
         [("retry.exit_codes.fail[0]", "wrong_type")]),
        (good_body(retry={"exit_codes": {"fail": ["64-78"], "ignore": ["1", "70-80"]}}),
         [("retry.exit_codes.ignore[1]", "invalid_exit_code")]),
        (good_body(retry={"exit_codes": {"retry": ["1"]}}),
         [("retry.exit_codes.retry", "unknown_field")]),
        (good_body(retry=3), [("retry", "wrong_type")]),
        (good_body(overlap="forbid"), [("overlap", "invalid_choice")]),
        (good_body(overlap="queue", queue_limit=0), [("queue_limit", "too_small")]),
        (good_body(overlap="queue", queue_limit=1_001), [("queue_limit", "too_large")]),
        (good_body(overlap=None), [("overlap", "null")]),
        (good_body(enabled="false"), [("enabled", "wrong_type")]),
        (good_body(enabled=0), [("enabled", "wrong_type")]),
        (good_body(name="n" * 201), [("name", "too_long")]),
        (good_body(name="a\nb"), [("name", "invalid_character")]),
        (good_body(name=None), [("name", "null")]),
        (good_body(labels={"a:b": "c"}), [('labels["a:b"]', "invalid_label_name")]),
        (good_body(labels={"a": 1}), [("labels.a", "wrong_type")]),
        (good_body(labels=["a"]), [("labels", "wrong_type")]),
    ],
)  # fmt: skip
def test_each_wrong_field_is_named_by_its_path(
    alice: ApiClient, body: Any, errors: list[tuple[str, str]]
) -> None:
    assert refused(alice, body) == errors


def test_rules_that_need_the_tenant_are_told_together(alice: ApiClient) -> None:
    body = with_task(image="a b", env={"1": "x"}) | {
        "schedule": {"cron": "99 * * * *", "time_zone": "UTC"},
        "labels": {"-": "x"},
    }
    assert {field for field, _ in refused(alice, body)} == {
        "schedule.cron",
        "task.image",
        'task.env["1"]',
        'labels["-"]',
    }


def test_what_looks_the_same_is_stored_the_same(alice: ApiClient) -> None:
    decomposed = "Bu\u0308ro"
    job = alice.post("/v1/jobs", good_body(name=decomposed)).json()
    assert job["name"] == "B\u00fcro"
    assert len(alice.get("/v1/jobs?name=Bu%CC%88ro").json()["jobs"]) == 1


def test_arguments_and_values_are_kept_to_the_byte(alice: ApiClient) -> None:
    args = ["$(id)", "", "a b", "\\n", "'\"", "Bu\u0308ro", "\u202e", "\x7f\x1b[31m", "*", "--rm"]
    env = {"TOKEN": "bobsyouruncle==", "MULTI": "a\nb\r\n\t", "EMPTY": "", "PATH": ""}
    job = alice.post("/v1/jobs", with_task(args=args, env=env)).json()
    assert (job["task"]["args"], job["task"]["env"]) == (args, env)


# --- quotas ---------------------------------------------------------------------------------------


def limit(tenant: Tenant, **limits: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(**limits)


def test_a_tenant_has_at_most_its_number_of_jobs(alice: ApiClient, acme: Tenant) -> None:
    limit(acme, max_jobs=2)
    first = alice.post("/v1/jobs", good_body()).json()
    assert alice.post("/v1/jobs", good_body()).status_code == 201

    problem = assert_problem(alice.post("/v1/jobs", good_body()), 403, "quota_exceeded")
    assert "max_jobs" in problem["detail"]
    assert "2" in problem["detail"]

    assert alice.delete(f"/v1/jobs/{first['job_id']}").status_code == 204
    assert alice.post("/v1/jobs", good_body()).status_code == 201


@pytest.mark.parametrize(
    ("limits", "body", "field", "code"),
    [
        ({"max_timeout_s": 60}, with_task(timeout_s=61), "task.timeout_s", "too_large"),
        ({"max_cpu": "0.5"}, with_task(resources={"cpu": 0.51}), "task.resources.cpu",
         "too_large"),
        ({"max_memory_mb": 64}, with_task(resources={"memory_mb": 65}),
         "task.resources.memory_mb", "too_large"),
        ({"image_allow_list": ["registry.example/other"]}, good_body(), "task.image",
         "image_not_allowed"),
        ({"min_interval_s": 3_600},
         good_body(schedule={"cron": "0,59 9 * * *", "time_zone": "UTC"}), "schedule",
         "too_frequent"),
        ({"min_interval_s": 3_600}, good_body(schedule={"every": "59m"}), "schedule",
         "too_frequent"),
    ],
)  # fmt: skip
def test_a_job_stays_within_its_tenant_s_ceilings(
    alice: ApiClient, acme: Tenant, limits: dict[str, Any], body: Any, field: str, code: str
) -> None:
    limit(acme, **limits)
    assert refused(alice, body) == [(field, code)]


def test_the_range_in_a_refusal_is_the_tenant_s_own(alice: ApiClient, acme: Tenant) -> None:
    limit(acme, max_timeout_s=60)
    problem = alice.post("/v1/jobs", with_task(timeout_s=10**30)).json()
    assert "between 1 and 60" in problem["errors"][0]["message"]


def test_nobody_is_refused_for_resources_they_did_not_ask_for(
    alice: ApiClient, acme: Tenant
) -> None:
    limit(acme, max_cpu="0.25", max_memory_mb=128, min_interval_s=86_400)
    job = alice.post("/v1/jobs", good_body()).json()
    assert job["task"]["resources"] == {"cpu": 0.25, "memory_mb": 128}


def test_the_database_s_clock_decides_what_lies_in_the_past(alice: ApiClient) -> None:
    now = database_now().astimezone(UTC)
    for seconds, status in ((-1, 400), (60, 201)):
        at = (now + timedelta(seconds=seconds)).isoformat(timespec="seconds")
        assert alice.post("/v1/jobs", good_body(schedule={"at": at})).status_code == status


def test_the_id_is_ours(alice: ApiClient) -> None:
    ids = {alice.post("/v1/jobs", good_body()).json()["job_id"] for _ in range(3)}
    assert len({UUID(text) for text in ids}) == 3
