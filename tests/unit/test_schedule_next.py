"""The next occurrence: bounds, kinds, policies of clock changes, and new zone rules."""

from __future__ import annotations

import io
import threading
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise

import pytest

from jobs.domain import schedule as engine
from jobs.domain.counting import (
    count_occurrences,
    latest_occurrences,
    min_interval_s,
    nominal_interval_s,
)
from jobs.domain.instant import format_instant, parse_instant
from jobs.domain.schedule import (
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    Schedule,
    format_wall,
    load_zone,
    next_occurrence,
    next_occurrences,
    occurrences,
    parse_wall,
    wall_time,
)

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return parse_instant(text)


def texts(schedule: Schedule, after: str, count: int, dst: DstPolicy) -> list[str]:
    return [
        format_instant(found) for found in next_occurrences(schedule, at(after), count, dst=dst)
    ]


@pytest.mark.parametrize(
    ("dst", "expected"),
    [
        (DstPolicy("next_valid"), ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
        (DstPolicy("skip"), ["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"]),
    ],
)
def test_a_time_in_a_gap_follows_the_jobs_choice(dst: DstPolicy, expected: list[str]) -> None:
    assert texts(CronSchedule("30 2 * * *", NEW_YORK), "2026-03-07T12:00:00Z", 2, dst) == expected


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
        ("second", ["2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]),
        ("both", ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]),
    ],
)
def test_a_time_in_a_fold_follows_the_jobs_choice(fold: str, expected: list[str]) -> None:
    dst = DstPolicy(fold=fold)  # type: ignore[arg-type]
    schedule = CronSchedule("30 1 * * *", NEW_YORK)
    assert texts(schedule, "2026-10-31T12:00:00Z", len(expected), dst) == expected


@pytest.mark.parametrize("gap", ["next_valid", "skip"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_a_wildcard_keeps_its_cadence_whatever_the_job_chose(gap: str, fold: str) -> None:
    dst = DstPolicy(gap, fold)  # type: ignore[arg-type]
    for after in ("2026-03-08T05:00:00Z", "2026-11-01T04:00:00Z"):
        found = next_occurrences(CronSchedule("*/20 * * * *", NEW_YORK), at(after), 20, dst=dst)
        steps = {later - earlier for earlier, later in pairwise(found)}
        assert steps == {timedelta(minutes=20)}


def test_bounds_are_inclusive_for_every_kind() -> None:
    nine, ten = at("2026-12-01T09:00:00Z"), at("2026-12-01T10:00:00Z")
    early = at("2026-11-01T00:00:00Z")
    for schedule in (
        CronSchedule("0 9,10,11 * * *", "UTC"),
        EverySchedule(timedelta(hours=1), early),
        AtSchedule(nine),
    ):
        assert next_occurrence(schedule, early, start_at=nine, end_at=ten) == nine
        assert next_occurrence(schedule, nine, end_at=nine) is None
    schedule = CronSchedule("0 9,10,11 * * *", "UTC")
    assert occurrences(schedule, early, ten, limit=9, start_at=nine) == [nine, ten]
    assert next_occurrences(schedule, early, 9, start_at=nine, end_at=ten) == [nine, ten]


def test_a_one_off_comes_once() -> None:
    schedule = AtSchedule(at("2027-03-01T15:00:00.750Z"))
    assert next_occurrence(schedule, at("2027-03-01T15:00:00Z")) == schedule.at
    assert next_occurrence(schedule, schedule.at) is None


def test_every_counts_elapsed_time_from_its_anchor_across_a_clock_change() -> None:
    schedule = EverySchedule(timedelta(hours=24), at("2026-03-07T12:00:00Z"))
    found = [format_instant(x) for x in next_occurrences(schedule, at("2026-01-01T00:00:00Z"), 2)]
    assert found == ["2026-03-08T12:00:00Z", "2026-03-09T12:00:00Z"]
    assert next_occurrence(schedule, at("2026-03-09T12:00:00Z")) == at("2026-03-10T12:00:00Z")


def test_after_may_be_in_any_zone_and_the_answer_is_utc() -> None:
    local = datetime(2026, 10, 16, 8, 59, 59, tzinfo=load_zone("Asia/Kolkata"))
    found = next_occurrence(CronSchedule("0 9 * * *", "Asia/Kolkata"), local)
    assert found == at("2026-10-16T03:30:00Z")
    assert found is not None
    assert found.tzinfo is UTC


def test_seconds_and_microseconds_of_after_do_not_matter_beyond_strictly_later() -> None:
    schedule = CronSchedule("* * * * *", "Asia/Kathmandu")
    minute = at("2026-12-01T10:15:00Z")
    for extra in (timedelta(microseconds=1), timedelta(seconds=59, microseconds=999_999)):
        assert next_occurrence(schedule, minute + extra) == minute + timedelta(minutes=1)
        assert next_occurrence(schedule, minute - extra) == minute


def test_offsets_with_seconds_before_1973_are_walked_exactly() -> None:
    schedule = CronSchedule("30 12 * * *", "Africa/Monrovia")  # 44 min 30 s behind until 1972
    assert next_occurrence(schedule, at("1971-06-01T13:14:29Z")) == at("1971-06-01T13:14:30Z")
    assert next_occurrence(schedule, at("1971-06-01T13:14:30Z")) == at("1971-06-02T13:14:30Z")


def test_the_end_of_the_calendar_is_an_end_and_not_an_error() -> None:
    last = at("2999-12-31T23:59:59Z")
    for schedule in (
        CronSchedule("0 0 29 2 *", "UTC"),
        CronSchedule("0 0 1 1 *", "Pacific/Kiritimati"),
        CronSchedule("* * * * *", "Pacific/Pago_Pago"),
        EverySchedule(timedelta(days=1), last - timedelta(days=1)),
    ):
        following = next_occurrence(schedule, last)
        assert following is None or following < at("2999-12-31T23:59:59Z") + timedelta(days=1)
        assert len(next_occurrences(schedule, last - timedelta(days=2), 10_000)) < 10_000


def test_threads_share_one_expression_without_disturbing_each_other() -> None:
    schedule = CronSchedule("*/7 3,5 * * 1-5", "Europe/Berlin")
    starts = [at("2026-01-01T00:00:00Z") + timedelta(days=37 * index) for index in range(8)]
    expected = [next_occurrences(schedule, start, 50) for start in starts]
    engine._next_cron.cache_clear()
    found: dict[int, list[datetime]] = {}

    def work(index: int) -> None:
        found[index] = next_occurrences(schedule, starts[index], 50)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(8)] == expected


def zone_as(name: str, key: str) -> zoneinfo.ZoneInfo:
    """The rules of zone `name` under the name `key`: what a tzdata upgrade does to a zone."""
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(data), key=key)


@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_new_zone_rules_never_run_a_local_day_twice(
    monkeypatch: pytest.MonkeyPatch, fold: str
) -> None:
    dst = DstPolicy(fold=fold)  # type: ignore[arg-type]
    schedule = CronSchedule("0 9 * * *", NEW_YORK)
    ran = next_occurrence(schedule, at("2026-12-01T00:00:00Z"), dst=dst)
    assert ran == at("2026-12-01T14:00:00Z")
    last_wall = wall_time(schedule, ran)
    # The country moves an hour west: 9 o'clock comes again, an hour after the run.
    monkeypatch.setattr(engine, "load_zone", lambda name: zone_as("America/Chicago", name))
    engine._next_cron.cache_clear()
    assert next_occurrence(schedule, ran, dst=dst) == at("2026-12-01T15:00:00Z")
    kept = next_occurrence(schedule, ran, dst=dst, last_wall_time=last_wall)
    assert kept == at("2026-12-02T15:00:00Z")
    engine._next_cron.cache_clear()


def test_new_zone_rules_do_not_stall_a_wildcard(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = CronSchedule("*/5 * * * *", NEW_YORK)
    ran = at("2026-12-01T14:00:00Z")
    last_wall = wall_time(schedule, ran)
    monkeypatch.setattr(engine, "load_zone", lambda name: zone_as("America/Chicago", name))
    engine._next_cron.cache_clear()
    found = next_occurrence(schedule, ran, last_wall_time=last_wall)
    assert found == at("2026-12-01T14:05:00Z")
    engine._next_cron.cache_clear()


def test_a_wall_time_survives_the_cursors_text() -> None:
    schedule = CronSchedule("30 1 * * *", NEW_YORK)
    wall = wall_time(schedule, at("2026-11-01T06:30:00Z"))
    assert wall == datetime(2026, 11, 1, 1, 30)
    assert format_wall(wall) == "2026-11-01T01:30"
    assert parse_wall(format_wall(wall)) == wall
    assert (format_wall(None), parse_wall("")) == ("", None)
    assert wall_time(AtSchedule(at("2026-11-01T06:30:00Z")), at("2026-11-01T06:30:00Z")) is None
    with pytest.raises(ValueError, match="no offset"):
        parse_wall("2026-11-01T01:30Z")


@pytest.mark.parametrize(
    ("expression", "zone", "nominal", "real"),
    [
        ("* * * * *", NEW_YORK, 60, 60),
        ("*/7 * * * *", "UTC", 240, 240),
        ("0 9 * * *", "UTC", 86_400, 86_400),
        ("0 9 * * *", NEW_YORK, 86_400, 82_800),
        ("0 9 * * MON", NEW_YORK, 7 * 86_400, 7 * 86_400 - 3_600),
        ("30 2,3 * * *", NEW_YORK, 3_600, 1_800),
        ("50 23 * * *", "UTC", 86_400, 86_400),
        ("0,50 0,23 * * *", "UTC", 600, 600),
        ("0 0 29 2 *", "UTC", 4 * 365 * 86_400 + 86_400, 4 * 365 * 86_400 + 86_400),
        ("0 0 31 * *", "UTC", 31 * 86_400, 31 * 86_400),
        ("0 0 1,31 * *", "UTC", 86_400, 86_400),
        ("0 0 */2 * 1", "UTC", 7 * 86_400, 7 * 86_400),
    ],
)
def test_the_smallest_gap_is_known_nominally_and_really(
    expression: str, zone: str, nominal: int, real: int
) -> None:
    schedule = CronSchedule(expression, zone)
    assert nominal_interval_s(schedule) == nominal
    assert min_interval_s(schedule, at("2026-01-01T00:00:00Z")) == real


def test_other_kinds_have_their_interval_or_none() -> None:
    now = at("2026-01-01T00:00:00Z")
    assert min_interval_s(EverySchedule(timedelta(minutes=5), now), now) == 300
    assert min_interval_s(AtSchedule(now), now) is None


def test_every_and_at_are_counted_by_arithmetic() -> None:
    start = at("2026-01-01T00:00:00Z")
    end = start + timedelta(days=365)
    every = EverySchedule(timedelta(minutes=1), start)
    assert count_occurrences(every, start, end) == 525_600
    assert count_occurrences(every, end, start) == 0
    assert count_occurrences(every, start - timedelta(days=1), start) == 0
    assert latest_occurrences(every, start, end, 2) == [end - timedelta(minutes=1), end]
    assert latest_occurrences(every, start, start + timedelta(minutes=1), 5) == [
        start + timedelta(minutes=1)
    ]
    assert count_occurrences(AtSchedule(end), start, end) == 1
    assert count_occurrences(AtSchedule(end), end, end + timedelta(days=1)) == 0
    assert latest_occurrences(AtSchedule(end), start, end, 3) == [end]
