"""POST /v1/schedules/preview: the times a schedule will make, explained, and nothing stored."""

from typing import Any

import pytest

from jobs.api import examples
from jobs.models import Job
from tests.support.api_client import ApiClient, assert_problem

PATH = "/v1/schedules/preview"
NEW_YORK = {"cron": "30 1 * * *", "time_zone": "America/New_York"}


def preview(client: ApiClient, **body: Any) -> dict[str, Any]:
    answer = client.post(PATH, body)
    assert answer.status_code == 200, answer.content
    shown: dict[str, Any] = answer.json()
    return shown


def test_the_example_of_the_document_is_what_comes(alice: ApiClient) -> None:
    assert preview(alice, **examples.PREVIEW_REQUEST) == examples.PREVIEW


def test_a_key_that_may_only_read_may_ask_and_nothing_is_stored(carol: ApiClient) -> None:
    assert preview(carol, schedule=NEW_YORK)["occurrences"]
    assert not Job.objects.exists()


def test_policies_and_bounds_decide_as_they_do_for_a_job(alice: ApiClient) -> None:
    after = "2026-10-31T12:00:00Z"
    both = preview(alice, schedule=NEW_YORK, dst={"fold": "both"}, after=after, count=3)
    assert [(one["scheduled_for"], one["notes"]) for one in both["occurrences"]] == [
        ("2026-11-01T05:30:00Z", ["fold_first"]),
        ("2026-11-01T06:30:00Z", ["fold_second"]),
        ("2026-11-02T06:30:00Z", []),
    ]
    bounded = preview(
        alice, schedule=NEW_YORK, after=after, start_at="2026-11-02T00:00:00Z",
        end_at="2026-11-03T12:00:00Z",
    )  # fmt: skip
    assert [one["local"] for one in bounded["occurrences"]] == [
        "2026-11-02T01:30:00", "2026-11-03T01:30:00",
    ]  # fmt: skip


def test_an_interval_counts_from_start_at_or_from_after(alice: ApiClient) -> None:
    from_start = preview(
        alice, schedule={"every": "90m"}, after="2026-12-01T00:00:00Z",
        start_at="2026-12-02T00:00:00Z", count=1,
    )  # fmt: skip
    assert from_start["occurrences"][0]["scheduled_for"] == "2026-12-02T01:30:00Z"
    from_after = preview(alice, schedule={"every": "90m"}, after="2026-12-01T00:00:00Z", count=1)
    assert from_after["occurrences"][0]["scheduled_for"] == "2026-12-01T01:30:00Z"


def test_as_many_as_asked_for_and_ten_unasked(alice: ApiClient) -> None:
    schedule = {"cron": "* * * * *", "time_zone": "UTC"}
    assert len(preview(alice, schedule=schedule)["occurrences"]) == 10
    assert len(preview(alice, schedule=schedule, count=100)["occurrences"]) == 100


def test_what_surprises_is_said(alice: ApiClient) -> None:
    shown = preview(alice, schedule={"cron": "0 0 31 * 1", "time_zone": "UTC"})
    assert {warning["code"] for warning in shown["warnings"]} >= {"day_or_weekday"}
    assert "UTC" in shown["description"]


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "schedule", "required"),
        ({"schedule": {"cron": "0 0 30 2 *", "time_zone": "UTC"}}, "schedule.cron", "never_fires"),
        ({"schedule": NEW_YORK, "count": 101}, "count", "too_large"),
        ({"schedule": NEW_YORK, "count": 0}, "count", "too_small"),
        ({"schedule": NEW_YORK, "after": "now"}, "after", "invalid_instant"),
        ({"schedule": NEW_YORK, "dst": {"fold": "last"}}, "dst.fold", "invalid_choice"),
        ({"schedule": {"at": "2020-01-01T00:00:00Z"}}, "schedule.at", "invalid_at"),
        ({"schedule": NEW_YORK, "jobs": 1}, "jobs", "unknown_field"),
        ({"schedule": NEW_YORK, "start_at": "2027-01-01T00:00:00.0001Z"}, "start_at",
         "invalid_instant"),
    ],
)  # fmt: skip
def test_what_a_job_may_not_say_a_preview_may_not_ask(
    alice: ApiClient, body: dict[str, Any], field: str, code: str
) -> None:
    problem = assert_problem(alice.post(PATH, body), 400, "invalid_request")
    assert {error["field"]: error["code"] for error in problem["errors"]}[field] == code
