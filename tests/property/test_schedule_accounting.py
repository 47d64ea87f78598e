"""The law of accounting: occurrences expected = rows + counts, over random histories of ticks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.domain.counting import count_occurrences
from jobs.domain.misfire import Cursor, Misfire, MissedPolicy, decide
from jobs.domain.schedule import (
    CronSchedule,
    DstPolicy,
    EverySchedule,
    next_occurrence,
    occurrences,
)

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
LOOK_AHEAD = timedelta(seconds=75)

schedules = st.one_of(
    st.builds(
        CronSchedule,
        st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "15,45 0-5 * * 0", "0 0 1 * *"]),
        st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]),
    ),
    st.builds(EverySchedule, st.just(timedelta(minutes=7)), st.just(BEGIN)),
)
policies = st.builds(
    DstPolicy, st.sampled_from(["next_valid", "skip"]), st.sampled_from(["first", "second", "both"])
)
misfires = st.builds(
    Misfire,
    policy=st.sampled_from(list(MissedPolicy)),
    grace=st.sampled_from(
        [timedelta(), timedelta(minutes=1), timedelta(hours=3), timedelta(days=5)]
    ),
    deadline=st.sampled_from([None, timedelta(seconds=30), timedelta(hours=1), timedelta(days=9)]),
    max_catch_up=st.sampled_from([0, 1, 5, 100]),
)
# Mostly short pauses between two looks at the cursor, sometimes an outage of weeks.
pauses = st.lists(
    st.one_of(st.integers(1, 90), st.integers(60, 20_000), st.integers(1, 40 * 86_400)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(schedules, policies, misfires, pauses, st.sampled_from([None, 3, 20]),
       st.sampled_from([None, 25]), st.sampled_from([0, 600]))  # fmt: skip
def test_every_occurrence_is_a_row_or_counted_once(
    schedule: CronSchedule | EverySchedule,
    dst: DstPolicy,
    misfire: Misfire,
    pauses: list[int],
    oldest_row_days: int | None,
    end_days: int | None,
    window_s: int,
) -> None:
    end_at = None if end_days is None else BEGIN + timedelta(days=end_days)
    first = next_occurrence(schedule, BEGIN, dst=dst, end_at=end_at)
    if first is None:
        return
    cursor: Cursor | None = Cursor(
        schedule, first, dst, end_at=end_at, flexible_window=timedelta(seconds=window_s)
    )
    now, rows, counted = BEGIN, [], 0
    for pause in pauses:
        now += timedelta(seconds=pause)
        if cursor is None:
            break
        oldest = None if oldest_row_days is None else now - timedelta(days=oldest_row_days)
        decision = decide(cursor, misfire, now=now, until=now + LOOK_AHEAD, oldest_row=oldest)
        skipped = [skip.scheduled_for for skip in decision.skipped]
        decided = [*decision.live, *decision.catch_up, *skipped]
        rows += decided
        for span in decision.spans:
            counted += span.count
            assert span.count == count_occurrences(
                schedule, span.first - timedelta(seconds=1), span.last, dst=dst
            )
            assert not any(span.first <= row <= span.last for row in rows)
        assert oldest is None or all(row >= oldest for row in decided)
        assert len(decision.catch_up) <= max(1, misfire.max_catch_up)
        assert list(decision.catch_up) == sorted(decision.catch_up)
        if misfire.deadline is not None:
            useless = now - misfire.deadline - cursor.flexible_window
            assert all(run >= useless for run in (*decision.live, *decision.catch_up))
        cursor = None if decision.next_run_at is None else replace(
            cursor, next_run_at=decision.next_run_at, last_wall_time=decision.last_wall_time
        )  # fmt: skip
    planned_to = now + LOOK_AHEAD if cursor is None else cursor.next_run_at - timedelta(seconds=1)
    if end_at is not None:
        planned_to = min(planned_to, end_at)
    assert len(rows) == len(set(rows))
    assert count_occurrences(schedule, BEGIN, planned_to, dst=dst) == len(rows) + counted
    real = set(occurrences(schedule, BEGIN, planned_to, limit=3000, dst=dst))
    assert len(real) == 3000 or set(rows) <= real
