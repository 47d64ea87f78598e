"""POST …/backfill: what is missing is run, what exists stays, and the bounds are said."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job, MissedSpan, ScheduleCursor
from runs.api import examples
from runs.models import Run
from runs.planner import plan_once
from scheduler_project.lib.instants import format_instant
from tests.api.test_jobs_examples import assert_alike
from tests.support.api_client import ApiClient, assert_problem
from tests.support.job_bodies import good_body
from tests.support.story_clock import StoryClock, story_clock

BEGIN = datetime(2031, 12, 1, 9, 0, 30, tzinfo=UTC)
HOURLY = {"cron": "0 * * * *", "time_zone": "UTC"}


@pytest.fixture
def clock(db: None) -> Iterator[StoryClock]:
    with story_clock(BEGIN, days=10) as clock:
        yield clock


@pytest.fixture
def job(clock: StoryClock, alice: ApiClient) -> dict[str, Any]:
    """An hourly job that was switched off for a day."""
    answer = alice.post("/v1/jobs", good_body(schedule=HOURLY, enabled=False))
    assert answer.status_code == 201, answer.content
    clock.advance(timedelta(days=1))
    job: dict[str, Any] = answer.json()
    return job


def backfill(client: ApiClient, job: dict[str, Any], since: Any, to: Any, **more: Any) -> Any:
    texts = [at if isinstance(at, str) else format_instant(at) for at in (since, to)]
    body = {"from": texts[0], "to": texts[1], **more}
    return client.post(f"/v1/jobs/{job['job_id']}/backfill", body)


def at(hour: int, day: int = 1) -> datetime:
    return datetime(2031, 12, day, hour, tzinfo=UTC)


def scheduled(job: dict[str, Any], **conditions: Any) -> list[datetime]:
    runs = Run.objects.filter(job_id=job["job_id"], **conditions).order_by("scheduled_for")
    return list(runs.values_list("scheduled_for", flat=True))


def test_the_missing_occurrences_of_a_range_are_run_at_the_rate(
    alice: ApiClient, job: dict[str, Any], clock: StoryClock
) -> None:
    answer = backfill(alice, job, at(10), at(14), rate_per_minute=10)
    assert answer.status_code == 202, answer.content
    assert answer.json() == {
        "created": 4,
        "existing": 0,
        "first_ready_at": format_instant(clock.now),
        "last_ready_at": format_instant(clock.now + timedelta(seconds=18)),
    }
    runs = Run.objects.filter(job_id=job["job_id"]).order_by("scheduled_for")
    assert [run.scheduled_for for run in runs] == [at(10), at(11), at(12), at(13)]  # 14:00 is not
    assert {(run.trigger, run.status) for run in runs} == {("backfill", "queued")}
    assert [run.ready_at - clock.now for run in runs] == [
        timedelta(seconds=6 * n) for n in range(4)
    ]
    assert all(run.due_at == run.scheduled_for and run.deadline_at is None for run in runs)


def test_asking_again_makes_only_what_is_still_missing(
    alice: ApiClient, job: dict[str, Any]
) -> None:
    backfill(alice, job, at(10), at(12))
    Run.objects.filter(scheduled_for=at(10)).update(status="succeeded", finished_at=at(12))
    again = backfill(alice, job, at(10), at(13)).json()
    assert (again["created"], again["existing"]) == (1, 2)
    assert Run.objects.get(scheduled_for=at(10)).status == "succeeded"
    nothing = backfill(alice, job, at(10), at(13)).json()
    assert nothing == {
        "created": 0, "existing": 3, "first_ready_at": None, "last_ready_at": None,
    }  # fmt: skip


def test_a_second_backfill_goes_behind_the_first(
    alice: ApiClient, job: dict[str, Any], clock: StoryClock
) -> None:
    backfill(alice, job, at(10), at(13))
    second = backfill(alice, job, at(13), at(15)).json()
    assert second["first_ready_at"] == format_instant(clock.now + timedelta(seconds=3))


def test_the_same_key_gives_the_first_answer_again(alice: ApiClient, job: dict[str, Any]) -> None:
    body = {"from": format_instant(at(10)), "to": format_instant(at(12))}
    path = f"/v1/jobs/{job['job_id']}/backfill"
    first = alice.post(path, body, Idempotency_Key="one")
    again = alice.post(path, body, Idempotency_Key="one")
    assert (again.status_code, again.json()) == (202, first.json())
    assert first.json()["created"] == 2
    assert len(scheduled(job)) == 2


def test_each_occurrence_is_that_of_the_schedule_of_its_time(
    alice: ApiClient, clock: StoryClock
) -> None:
    daily = {"cron": "30 9 * * *", "time_zone": "UTC"}
    job = alice.post("/v1/jobs", good_body(schedule=daily)).json()
    clock.advance(timedelta(days=2))
    changed = {"schedule": {"cron": "30 11 * * *", "time_zone": "UTC"}, "enabled": True}
    alice.patch(f"/v1/jobs/{job['job_id']}", changed, If_Match="*")
    clock.advance(timedelta(days=2))
    plan_once()

    answer = backfill(alice, job, BEGIN, clock.now).json()
    half = timedelta(minutes=30)
    expected = [at(9) + half, at(9, 2) + half, at(11, 3) + half, at(11, 4) + half]
    assert scheduled(job, scheduled_for__lte=clock.now) == expected
    assert answer["created"] + answer["existing"] == 4
    # The latest missed ones run by the job's own policy; the backfill leaves them as they are.
    assert scheduled(job, trigger="catch_up") == [expected[1], expected[3]]


def test_what_the_planner_had_not_yet_seen_is_settled_first(
    alice: ApiClient, clock: StoryClock
) -> None:
    job = alice.post("/v1/jobs", good_body(schedule=HOURLY)).json()
    clock.set(at(13))
    answer = backfill(alice, job, at(10), at(12)).json()
    assert (answer["created"], answer["existing"]) == (2, 0)
    assert scheduled(job) == [at(10), at(11), at(12), at(13)]
    assert scheduled(job, trigger="catch_up") == [at(12)]
    span = MissedSpan.objects.get(job_id=job["job_id"])
    assert (span.count, span.reason) == (2, "outage")
    cursor = ScheduleCursor.objects.get(job_id=job["job_id"])
    assert cursor.next_run_at == at(14)


@pytest.mark.parametrize(
    ("since", "to", "more", "field", "code"),
    [
        (BEGIN - timedelta(seconds=1), at(12), {}, "from", "before_history"),
        (at(10), at(10, 3), {}, "to", "in_future"),
        (at(12), at(12), {}, "to", "ends_before_start"),
        (at(10), at(12), {"rate_per_minute": 0}, "rate_per_minute", "too_small"),
        (at(10), at(12), {"rate_per_minute": 601}, "rate_per_minute", "too_large"),
        (at(10), at(12), {"rate": 6}, "rate", "unknown_field"),
        ("2031-12-01", at(12), {}, "from", "invalid_instant"),
    ],
)
def test_what_cannot_be_backfilled_is_refused_by_name(
    alice: ApiClient, job: dict[str, Any], since: Any, to: Any, more: dict[str, Any], field: str,
    code: str,
) -> None:  # fmt: skip
    problem = assert_problem(backfill(alice, job, since, to, **more), 400, "invalid_request")
    assert {error["field"]: error["code"] for error in problem["errors"]} == {field: code}
    assert not Run.objects.exists()


def test_a_range_with_too_many_occurrences_is_refused(alice: ApiClient, clock: StoryClock) -> None:
    minutely = {"cron": "* * * * *", "time_zone": "UTC"}
    job = alice.post("/v1/jobs", good_body(schedule=minutely, enabled=False)).json()
    clock.advance(timedelta(days=1))
    problem = assert_problem(backfill(alice, job, BEGIN, clock.now), 400, "invalid_request")
    assert problem["errors"][0]["code"] == "too_many"
    part = backfill(alice, job, BEGIN, BEGIN + timedelta(minutes=1000))
    assert part.json()["created"] == 1000


def test_nothing_before_the_oldest_day_that_is_kept(
    alice: ApiClient, job: dict[str, Any], clock: StoryClock
) -> None:
    created = BEGIN - timedelta(days=20)
    Job.objects.filter(job_id=job["job_id"]).update(created_at=created)
    problem = assert_problem(backfill(alice, job, created, at(0, 2)), 400, "invalid_request")
    assert problem["errors"][0]["code"] == "before_history"
    assert problem["errors"][0]["hint"] == "2031-11-29T00:00:00Z or later"


def test_strangers_and_deleted_jobs_have_nothing_to_backfill(
    alice: ApiClient, bob: ApiClient, carol: ApiClient, job: dict[str, Any]
) -> None:
    assert_problem(backfill(bob, job, at(10), at(12)), 404, "not_found")
    assert_problem(backfill(carol, job, at(10), at(12)), 403, "insufficient_scope")
    alice.delete(f"/v1/jobs/{job['job_id']}")
    assert_problem(backfill(alice, job, at(10), at(12)), 404, "not_found")


def test_the_examples_are_taken_and_given(alice: ApiClient, job: dict[str, Any]) -> None:
    assert set(examples.BACKFILL_REQUEST) == {"from", "to", "rate_per_minute"}
    assert_alike(examples.BACKFILL, backfill(alice, job, at(10), at(12)).json())
