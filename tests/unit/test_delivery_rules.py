"""What follows an attempt to deliver, when an endpoint is given up, and when a job rests."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.auto_pause import failures_in_a_row, should_pause
from runs.domain.delivery import (
    JITTER,
    SWITCH_OFF_AFTER,
    TRY_FOR,
    WAITS_S,
    AttemptResult,
    DeliveryStatus,
    EndpointOff,
    next_of_delivery,
    switch_off,
    waits_until_given_up,
)
from runs.domain.notification import EVENTS, known_events, message_body

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FAILURE = AttemptResult(status_code=500, error="status")
units = st.floats(0, 1, exclude_max=True)


@given(units)
def test_a_delivery_is_tried_for_24_hours_and_its_last_attempt_is_at_their_end(unit: float) -> None:
    waits = waits_until_given_up(unit)
    assert sum(waits) == pytest.approx(TRY_FOR.total_seconds(), abs=1e-3)
    assert 15 <= len(waits) <= 25


@given(units, st.integers(1, 40))
def test_a_wait_stays_within_its_jitter(unit: float, attempts: int) -> None:
    following = next_of_delivery(
        FAILURE, attempts=attempts, now=NOW, try_until=NOW + TRY_FOR, random_unit=unit
    )
    nominal = WAITS_S[min(attempts, len(WAITS_S)) - 1]
    assert following.status is DeliveryStatus.PENDING
    assert nominal * (1 - JITTER) <= following.wait_s <= nominal * (1 + JITTER)


def after(
    result: AttemptResult, *, attempts: int = 1, left: timedelta = TRY_FOR
) -> tuple[str, float]:
    following = next_of_delivery(
        result, attempts=attempts, now=NOW, try_until=NOW + left, random_unit=0.5
    )
    return following.status.value, following.wait_s


@pytest.mark.parametrize(
    ("result", "left", "expected"),
    [
        (AttemptResult(status_code=204), TRY_FOR, ("delivered", 0.0)),
        (FAILURE, TRY_FOR, ("pending", 5.0)),
        (FAILURE, timedelta(seconds=2), ("pending", 2.0)),
        (FAILURE, timedelta(0), ("failed", 0.0)),
        (AttemptResult(status_code=410, error="gone"), TRY_FOR, ("failed", 0.0)),
        (AttemptResult(429, "status", asked_wait_s=60), TRY_FOR, ("pending", 60.0)),
        (AttemptResult(429, "status", asked_wait_s=1), TRY_FOR, ("pending", 5.0)),
        (AttemptResult(429, "status", asked_wait_s=1e9), TRY_FOR, ("pending", 3_600.0)),
    ],
)
def test_what_follows_an_attempt(
    result: AttemptResult, left: timedelta, expected: tuple[str, float]
) -> None:
    assert after(result, left=left) == expected


@pytest.mark.parametrize(
    ("result", "attempts", "since", "expected"),
    [
        (AttemptResult(status_code=200), 5, NOW - SWITCH_OFF_AFTER, None),
        (FAILURE, 5, None, None),
        (FAILURE, 5, NOW - SWITCH_OFF_AFTER + timedelta(seconds=1), None),
        (FAILURE, 4, NOW - SWITCH_OFF_AFTER, None),
        (FAILURE, 5, NOW - SWITCH_OFF_AFTER, EndpointOff.FAILING),
        (AttemptResult(status_code=410, error="gone"), 1, NOW, EndpointOff.GONE),
    ],
)
def test_when_an_endpoint_is_switched_off(
    result: AttemptResult, attempts: int, since: datetime | None, expected: EndpointOff | None
) -> None:
    assert switch_off(result, attempts=attempts, failing_since=since, now=NOW) == expected


def test_the_page_has_the_waits_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    (row,) = re.findall(r"^\| wait \|(.*)\|$", page, re.M)
    units = {"s": 1, "min": 60, "h": 3_600}
    waits = [cell.split() for cell in row.split("|")]
    assert tuple(int(number) * units[unit] for number, unit in waits) == WAITS_S
    assert len(waits_until_given_up(0.5)) + 1 == 20


@pytest.mark.parametrize(
    ("newest_first", "row"),
    [
        ([], 0),
        (["succeeded", "failed"], 0),
        (["failed", "failed", "succeeded", "failed"], 2),
        (["failed", "skipped", "cancelled", "failed"], 2),
    ],
)
def test_failures_in_a_row(newest_first: list[str], row: int) -> None:
    assert failures_in_a_row(newest_first) == row


def test_a_job_is_paused_at_its_number_and_never_without_one() -> None:
    assert not should_pause(["failed"] * 2, 3)
    assert should_pause(["failed"] * 3, 3)
    assert not should_pause(["failed"] * 100, None)


def test_a_message_has_its_type_time_and_version() -> None:
    body = message_body("run.failed", NOW, {"run_id": "x"})
    assert body == {
        "type": "run.failed",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "version": 1,
        "data": {"run_id": "x"},
    }


def test_events_are_kept_once_and_in_order() -> None:
    assert known_events(["run.late", "run.failed", "run.late"]) == ["run.failed", "run.late"]
    assert "job.auto_paused" in EVENTS
