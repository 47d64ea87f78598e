"""Late cursors: what runs, what is skipped, what is counted, and where the cursor goes."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from jobs.domain.instant import parse_instant as at
from jobs.domain.misfire import (
    MOST_LIVE_RUNS,
    Cursor,
    Decision,
    Misfire,
    MissedPolicy,
    MissedReason,
    MissedSpan,
    SkippedOccurrence,
    decide,
)
from jobs.domain.schedule import AtSchedule, CronSchedule, EverySchedule, wall_time

LOOK_AHEAD = timedelta(seconds=75)
MINUTELY = Cursor(CronSchedule("* * * * *", "UTC"), at("2026-12-01T10:00:00Z"))
DAILY = Cursor(CronSchedule("30 2 * * *", "America/New_York"), at("2026-12-01T07:30:00Z"))


def late(cursor: Cursor, misfire: Misfire, now: str, oldest_row: str | None = None) -> Decision:
    return decide(cursor, misfire, now=at(now), until=at(now) + LOOK_AHEAD,
                  oldest_row=None if oldest_row is None else at(oldest_row))  # fmt: skip


def instants(*texts: str) -> tuple[datetime, ...]:
    return tuple(at(text) for text in texts)


def test_in_time_everything_in_the_look_ahead_is_live() -> None:
    decision = late(MINUTELY, Misfire(), "2026-12-01T09:59:30Z")
    assert decision.live == instants("2026-12-01T10:00:00Z")
    assert decision.accounted == 1
    assert decision.next_run_at == at("2026-12-01T10:01:00Z")
    assert decision.last_wall_time == wall_time(MINUTELY.schedule, decision.live[0])


def test_before_the_look_ahead_nothing_changes() -> None:
    cursor = replace(DAILY, last_wall_time=datetime(2026, 11, 30, 2, 30))
    decision = late(cursor, Misfire(), "2026-12-01T00:00:00Z")
    assert decision == Decision(
        next_run_at=cursor.next_run_at, last_wall_time=cursor.last_wall_time
    )


def test_within_the_grace_an_occurrence_simply_runs_late() -> None:
    decision = late(DAILY, Misfire(), "2026-12-01T07:31:00Z")
    assert (decision.live, decision.catch_up) == (instants("2026-12-01T07:30:00Z"), ())


def test_past_the_grace_run_once_runs_the_latest_missed_and_counts_the_rest() -> None:
    decision = late(MINUTELY, Misfire(), "2026-12-01T11:00:30Z")
    assert decision.catch_up == instants("2026-12-01T10:59:00Z")
    assert decision.live == instants("2026-12-01T11:00:00Z", "2026-12-01T11:01:00Z")
    first, last = instants("2026-12-01T10:00:00Z", "2026-12-01T10:58:00Z")
    span = MissedSpan(first, last, 59, MissedReason.OUTAGE)
    assert decision.spans == (span,)
    assert decision.next_run_at == at("2026-12-01T11:02:00Z")


def test_one_missed_occurrence_runs_without_any_span() -> None:
    decision = late(DAILY, Misfire(), "2026-12-01T09:00:00Z")
    assert decision.catch_up == instants("2026-12-01T07:30:00Z")
    assert (decision.live, decision.skipped, decision.spans) == ((), (), ())
    assert decision.next_run_at == at("2026-12-02T07:30:00Z")


def test_skip_counts_them_and_waits_for_the_next() -> None:
    decision = late(MINUTELY, Misfire(MissedPolicy.SKIP), "2026-12-01T10:10:00Z")
    assert decision.catch_up == ()
    assert [(span.count, span.reason) for span in decision.spans] == [(9, MissedReason.OUTAGE)]
    assert decision.live[0] == at("2026-12-01T10:09:00Z")


def test_run_all_runs_each_missed_oldest_first() -> None:
    decision = late(MINUTELY, Misfire(MissedPolicy.RUN_ALL), "2026-12-01T10:05:00Z")
    assert decision.catch_up == tuple(
        at("2026-12-01T10:00:00Z") + timedelta(minutes=index) for index in range(4)
    )
    assert decision.spans == ()


def test_run_all_runs_the_latest_up_to_its_limit_and_counts_the_older() -> None:
    misfire = Misfire(MissedPolicy.RUN_ALL, max_catch_up=3)
    decision = late(MINUTELY, misfire, "2026-12-01T10:10:00Z")
    assert decision.catch_up == instants(
        "2026-12-01T10:06:00Z", "2026-12-01T10:07:00Z", "2026-12-01T10:08:00Z"
    )
    assert [(span.count, span.reason) for span in decision.spans] == [
        (6, MissedReason.BEYOND_CATCH_UP)
    ]


def test_a_limit_of_none_counts_them_all() -> None:
    decision = late(MINUTELY, Misfire(MissedPolicy.RUN_ALL, max_catch_up=0), "2026-12-01T10:10:00Z")
    assert decision.catch_up == ()
    assert decision.spans[0].count == 9


def test_past_the_deadline_nothing_runs() -> None:
    misfire = Misfire(MissedPolicy.RUN_ALL, deadline=timedelta(minutes=5))
    decision = late(MINUTELY, misfire, "2026-12-01T10:10:00Z")
    assert decision.catch_up[0] == at("2026-12-01T10:05:00Z")
    assert [(span.count, span.reason) for span in decision.spans] == [(5, MissedReason.DEADLINE)]


def test_a_single_occurrence_past_its_deadline_is_a_row() -> None:
    misfire = Misfire(deadline=timedelta(hours=1))
    decision = late(DAILY, misfire, "2026-12-01T12:00:00Z")
    assert decision.skipped == (SkippedOccurrence(DAILY.next_run_at, MissedReason.DEADLINE),)
    assert (decision.live, decision.catch_up, decision.spans) == ((), (), ())


def test_a_deadline_shorter_than_the_grace_holds_within_the_grace_too() -> None:
    misfire = Misfire(grace=timedelta(minutes=10), deadline=timedelta(minutes=1))
    decision = late(MINUTELY, misfire, "2026-12-01T10:03:00Z")
    assert [skip.scheduled_for for skip in decision.skipped] == list(
        instants("2026-12-01T10:00:00Z", "2026-12-01T10:01:00Z")
    )
    assert decision.live[0] == at("2026-12-01T10:02:00Z")


def test_before_the_oldest_partition_occurrences_are_only_counted() -> None:
    misfire = Misfire(MissedPolicy.RUN_ALL, deadline=timedelta(days=40))
    decision = late(DAILY, misfire, "2027-01-15T12:00:00Z", oldest_row="2027-01-13T00:00:00Z")
    assert decision.catch_up == instants(
        "2027-01-13T07:30:00Z", "2027-01-14T07:30:00Z", "2027-01-15T07:30:00Z"
    )
    assert [(span.count, span.reason) for span in decision.spans] == [
        (6, MissedReason.DEADLINE), (37, MissedReason.OUTAGE)
    ]  # fmt: skip


def test_a_flexible_window_is_not_lateness() -> None:
    cursor = replace(DAILY, flexible_window=timedelta(hours=2))
    decision = late(cursor, Misfire(), "2026-12-01T09:30:00Z")
    assert decision.live == instants("2026-12-01T07:30:00Z")


def test_the_end_of_the_schedule_ends_the_cursor() -> None:
    cursor = replace(MINUTELY, end_at=at("2026-12-01T10:04:00Z"))
    decision = late(cursor, Misfire(), "2026-12-01T12:00:00Z")
    assert decision.catch_up == instants("2026-12-01T10:04:00Z")
    assert decision.spans[0].count == 4
    assert decision.next_run_at is None
    one_off = Cursor(AtSchedule(at("2026-12-01T10:00:00Z")), at("2026-12-01T10:00:00Z"))
    decision = late(one_off, Misfire(), "2026-12-01T12:00:00Z")
    assert decision.catch_up == (one_off.next_run_at,)
    assert (decision.next_run_at, decision.last_wall_time) == (None, None)


def test_a_generous_grace_comes_in_portions_that_lose_nothing() -> None:
    misfire = Misfire(grace=timedelta(days=1))
    cursor, seen = MINUTELY, 0
    for _ in range(4):
        decision = late(cursor, misfire, "2026-12-01T20:00:00Z")
        assert len(decision.live) <= MOST_LIVE_RUNS
        seen += decision.accounted
        assert decision.next_run_at is not None
        cursor = replace(cursor, next_run_at=decision.next_run_at)
    assert seen == 602
    assert cursor.next_run_at == at("2026-12-01T20:02:00Z")


@pytest.mark.parametrize("policy", list(MissedPolicy))
def test_a_year_of_a_minutely_job_is_jumped_in_a_few_milliseconds(policy: MissedPolicy) -> None:
    cursor = replace(MINUTELY, schedule=CronSchedule("* * * * *", "America/New_York"))
    started = time.process_time()
    decision = late(cursor, Misfire(policy), "2027-12-01T10:00:00Z")
    assert time.process_time() - started < 0.25
    assert decision.accounted == 525_600 + 2
    assert len(decision.spans) == 1


def test_every_schedules_are_jumped_as_well() -> None:
    start = at("2026-12-01T10:00:00Z")
    cursor = Cursor(EverySchedule(timedelta(minutes=1), start), start + timedelta(minutes=1))
    decision = late(cursor, Misfire(), "2036-12-01T10:00:00Z")
    assert decision.catch_up == instants("2036-12-01T09:58:00Z")
    assert decision.spans[0].count == (at("2036-12-01T09:57:00Z") - start) // timedelta(minutes=1)
