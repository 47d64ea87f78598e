"""How far ahead and how much at once: the planner keeps away from this minute's go."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.pacing import LONGEST, URGENT, look_ahead, next_batch

FAR = timedelta(seconds=75)


@pytest.mark.parametrize(
    ("second", "expected"),
    [(0, URGENT), (2.999, URGENT), (3, FAR), (45, FAR), (58.999, FAR), (59, URGENT)],
)
def test_around_a_full_minute_only_what_is_urgent_is_planned(
    second: float, expected: timedelta
) -> None:
    now = datetime(2026, 11, 29, 8, 59, tzinfo=UTC) + timedelta(seconds=second)
    assert look_ahead(now, FAR) == expected


def test_a_look_ahead_that_is_shorter_anyway_stays_as_it_is() -> None:
    on_the_minute = datetime(2026, 11, 29, 9, tzinfo=UTC)
    assert look_ahead(on_the_minute, timedelta(seconds=10)) == timedelta(seconds=10)


@given(st.integers(1, 10_000), st.booleans(), st.floats(0, 60), st.integers(1, 10_000))
def test_a_batch_stays_between_one_and_the_most(
    batch: int, was_full: bool, took_s: float, most: int
) -> None:
    size = next_batch(
        min(batch, most), was_full=was_full, took=timedelta(seconds=took_s), most=most
    )
    assert 1 <= size <= most


def test_a_slow_database_gets_smaller_batches_and_a_quick_one_larger() -> None:
    slow, quick = LONGEST * 2, timedelta(milliseconds=50)
    assert next_batch(1_000, was_full=True, took=slow, most=5_000) == 500
    assert next_batch(1_000, was_full=True, took=quick, most=5_000) == 2_000
    assert next_batch(1_000, was_full=False, took=quick, most=5_000) == 1_000, "no need of more"
