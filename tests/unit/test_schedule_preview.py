"""The preview: local times, notes, words and warnings."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from jobs.domain.instant import parse_instant as at
from jobs.domain.preview import describe, preview
from jobs.domain.schedule import (
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    next_occurrences,
)

NEW_YORK = "America/New_York"


def warnings(expression: str, zone: str = "UTC", dst: DstPolicy | None = None) -> dict[str, str]:
    found = preview(CronSchedule(expression, zone), at("2026-01-01T00:00:00Z"), 1,
                    dst=dst or DstPolicy())  # fmt: skip
    return {warning.code: warning.message for warning in found.warnings}


def test_occurrences_are_those_that_planning_makes() -> None:
    schedule, after = CronSchedule("*/7 1-3 * * 0", NEW_YORK), at("2026-03-07T00:00:00Z")
    shown = preview(schedule, after, 100).occurrences
    assert [one.scheduled_for for one in shown] == next_occurrences(schedule, after, 100)


def test_local_time_and_offset_are_the_zones() -> None:
    (one,) = preview(CronSchedule("0 9 * * *", "Asia/Kathmandu"), at("2026-12-01T00:00:00Z"), 1
                     ).occurrences  # fmt: skip
    assert (one.local, one.offset, one.notes) == (datetime(2026, 12, 1, 9), "+05:45", ())


@pytest.mark.parametrize(
    ("expression", "dst", "after", "notes"),
    [
        ("30 2 * * *", DstPolicy(), "2026-03-08T00:00:00Z", [("dst_shifted",), ()]),
        ("0,30 2-3 * * *", DstPolicy(), "2026-03-08T00:00:00Z", [(), ()]),
        ("30 1 * * *", DstPolicy(), "2026-11-01T00:00:00Z", [("fold_first",), ()]),
        ("30 1 * * *", DstPolicy(fold="second"), "2026-11-01T00:00:00Z", [("fold_second",), ()]),
        ("30 1 * * *", DstPolicy(fold="both"), "2026-11-01T00:00:00Z",
         [("fold_first",), ("fold_second",)]),
        ("0 * * * *", DstPolicy(), "2026-11-01T04:00:00Z", [("fold_first",), ("fold_second",)]),
    ],
)  # fmt: skip
def test_notes_say_what_the_clock_change_did(
    expression: str, dst: DstPolicy, after: str, notes: list[tuple[str, ...]]
) -> None:
    shown = preview(CronSchedule(expression, NEW_YORK), at(after), 2, dst=dst).occurrences
    assert [one.notes for one in shown] == notes


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * MON-FRI", "At 09:00, Monday through Friday (UTC)"),
        ("@daily", "At 00:00 (UTC)"),
        ("@HOURLY", "Every hour (UTC)"),
        ("30 4 1,15 * 5", "At 04:30, on day 1 and 15 of the month, or on Friday (UTC)"),
        ("0 0 */2 * 1", "At 00:00, every 2 days, and only on Monday (UTC)"),
        ("0 0 1-31 * 5", "At 00:00 (UTC)"),
        ("17 23-23/24 * * *", "At 23:17 (UTC)"),
        ("0 0 * * 7", "At 00:00, only on Sunday (UTC)"),
        ("*,5 * * * *", "Every minute (UTC)"),
        ("0 0 * * FRI-SUN", "At 00:00, Friday through Sunday (UTC)"),
    ],
)
def test_a_cron_schedule_is_told_in_words(expression: str, words: str) -> None:
    assert describe(CronSchedule(expression, "UTC")) == words


def test_the_other_kinds_are_told_in_words() -> None:
    now = at("2026-12-01T10:00:00Z")
    assert describe(AtSchedule(now)) == "Once, at 2026-12-01T10:00:00Z"
    every = describe(EverySchedule(timedelta(minutes=90), now))
    assert every == "Every 90m, counted from 2026-12-01T10:00:00Z"
    found = preview(EverySchedule(timedelta(minutes=90), now), now, 2)
    assert [one.offset for one in found.occurrences] == ["+00:00", "+00:00"]
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("expression", "zone", "codes"),
    [
        ("0 9 * * *", NEW_YORK, set()),
        ("30 2 * * *", "UTC", set()),
        ("30 2 * * *", NEW_YORK, {"dst_exposed"}),
        ("30 1 * * *", NEW_YORK, {"dst_exposed"}),
        ("30 2 * * 1-5", NEW_YORK, set()),
        ("*/30 2 * * *", NEW_YORK, set()),
        ("0 0 13 * 5", "UTC", {"day_or_weekday"}),
        ("0 0 */2 * 5", "UTC", {"day_and_weekday", "uneven_step"}),
        ("0 0 31 * *", "UTC", {"short_months"}),
        ("0 0 1,30 * *", "UTC", {"short_months"}),
        ("0 0 31 1,3 *", "UTC", set()),
        ("0 0 29 2 *", "UTC", {"short_months"}),
        ("0 0 28-31 * *", "UTC", set()),
        ("*/7 * * * *", "UTC", {"uneven_step"}),
        ("*/15 * * * *", "UTC", set()),
    ],
)
def test_warnings_are_for_what_surprises(expression: str, zone: str, codes: set[str]) -> None:
    assert set(warnings(expression, zone)) == codes


def test_the_warning_of_a_clock_change_says_when_and_what() -> None:
    gap = warnings("30 2 * * *", NEW_YORK)["dst_exposed"]
    assert gap == ("on 2026-03-08 the clock in America/New_York goes from 02:00 to 03:00: "
                   "times in between fire once, at 03:00")  # fmt: skip
    skip = warnings("30 2 * * *", NEW_YORK, DstPolicy(gap="skip"))["dst_exposed"]
    assert skip.endswith("do not fire")
    both = warnings("30 1 * * *", NEW_YORK, DstPolicy(fold="both"))["dst_exposed"]
    assert both.endswith("fire at both showings")
