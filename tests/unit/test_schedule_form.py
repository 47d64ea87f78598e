"""The API's schedule object and the stored one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.domain.instant import format_interval, parse_instant, parse_interval
from jobs.domain.schedule import (
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    ScheduleError,
    check_at_in_future,
    next_occurrence,
    parse_dst,
    parse_schedule,
    schedule_from_json,
    schedule_to_json,
)

ANCHOR = datetime(2026, 12, 1, 10, 0, 30, 250_000, tzinfo=UTC)


def refusal(data: object, **options: Any) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(data, **options)
    assert caught.value.message.encode("utf-8")
    assert caught.value.field.encode("utf-8")
    return caught.value


def test_each_kind_is_read() -> None:
    cron = parse_schedule({"cron": "0 9 * * *", "time_zone": "Asia/Kolkata"})
    assert cron == CronSchedule("0 9 * * *", "Asia/Kolkata")
    at = parse_schedule({"at": "2027-03-01T20:30:00+05:30"})
    assert at == AtSchedule(datetime(2027, 3, 1, 15, tzinfo=UTC))
    every = parse_schedule({"every": "90m"}, anchor=ANCHOR)
    assert every == EverySchedule(timedelta(minutes=90), ANCHOR)


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        ([{"cron": "0 9 * * *"}], "invalid_schedule", "schedule"),
        ("0 9 * * *", "invalid_schedule", "schedule"),
        (None, "invalid_schedule", "schedule"),
        ({}, "invalid_schedule", "schedule"),
        ({1: "x"}, "invalid_schedule", "schedule"),
        ({"time_zone": "UTC"}, "invalid_schedule", "schedule"),
        ({"cron": "0 9 * * *"}, "invalid_schedule", "schedule.time_zone"),
        ({"cron": "0 9 * * *", "time_zone": None}, "invalid_time_zone", "schedule.time_zone"),
        ({"cron": "0 9 * * *", "time_zone": 5}, "invalid_time_zone", "schedule.time_zone"),
        ({"cron": "0 9 * * *", "time_zone": ["UTC"]}, "invalid_time_zone", "schedule.time_zone"),
        ({"cron": 5, "time_zone": "UTC"}, "invalid_cron", "schedule.cron"),
        ({"cron": True, "time_zone": "UTC"}, "invalid_cron", "schedule.cron"),
        ({"cron": None, "time_zone": "UTC"}, "invalid_cron", "schedule.cron"),
        ({"cron": ["0 9 * * *"], "time_zone": "UTC"}, "invalid_cron", "schedule.cron"),
        ({"cron": "0 9 * * *\x00", "time_zone": "UTC"}, "invalid_cron", "schedule.cron"),
        ({"cron": "0 9 30 2 *", "time_zone": "UTC"}, "never_fires", "schedule.cron"),
        ({"cron": "0 9 * * *", "at": "2027-03-01T15:00:00Z"}, "invalid_schedule", "schedule"),
        ({"every": "5m", "at": "2027-03-01T15:00:00Z"}, "invalid_schedule", "schedule"),
        ({"at": "2027-03-01T15:00:00Z", "time_zone": "UTC"}, "invalid_schedule",
         "schedule.time_zone"),
        ({"every": "5m", "time_zone": "UTC"}, "invalid_schedule", "schedule.time_zone"),
        ({"cron": "0 9 * * *", "time_zone": "UTC", "timezone": "UTC"}, "invalid_schedule",
         "schedule.timezone"),
        ({"at": "2027-03-01T15:00:00Z", "\ud800": 1}, "invalid_schedule", "schedule.\\ud800"),
        ({"Cron": "0 9 * * *", "time_zone": "UTC"}, "invalid_schedule", "schedule.Cron"),
        ({"every": 5}, "invalid_every", "schedule.every"),
        ({"every": True}, "invalid_every", "schedule.every"),
        ({"every": None}, "invalid_every", "schedule.every"),
    ],
)  # fmt: skip
def test_a_doubtful_object_is_refused_by_code_and_field(
    data: object, code: str, field: str
) -> None:
    error = refusal(data, anchor=ANCHOR)
    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-03-01T15:00:00Z", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2027-03-01t15:00:00z", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2027-03-01T15:00:00.750Z", datetime(2027, 3, 1, 15, 0, 0, 750_000, tzinfo=UTC)),
        ("2027-03-01T15:00:00.5Z", datetime(2027, 3, 1, 15, 0, 0, 500_000, tzinfo=UTC)),
        ("2027-03-01T15:00:00.123000000Z", datetime(2027, 3, 1, 15, 0, 0, 123_000, tzinfo=UTC)),
        ("2027-03-01T00:00:00+14:00", datetime(2027, 2, 28, 10, tzinfo=UTC)),
        ("2027-03-01T15:00:00-00:00", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2028-02-29T23:59:59-12:00", datetime(2028, 3, 1, 11, 59, 59, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
        ("2999-12-31T23:59:59Z", datetime(2999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_an_rfc_3339_instant_is_kept_exactly(text: str, instant: datetime) -> None:
    assert parse_schedule({"at": text}) == AtSchedule(instant)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "now", "tomorrow", "2027-03-01", "2027-03-01T15:00:00", "2027-03-01T15:00Z",
        "2027-03-01 15:00:00Z", "2027-03-01T24:00:00Z", "2027-03-01T23:60:00Z",
        "2027-03-01T23:59:60Z", "2027-02-29T10:00:00Z", "2027-13-01T00:00:00Z",
        "2027-00-10T00:00:00Z", "2027-03-01T15:00:00+25:00", "2027-03-01T15:00:00+05:60",
        "2027-03-01T15:00:00+0530", "2027-03-01T15:00:00+05", "2027-03-01T15:00:00 Z",
        "2027-03-01T15:00:00Z\x00", "2027-03-01T15:00:00Z\n", " 2027-03-01T15:00:00Z",
        "2027-03-01T15:00:00.Z", "2027-03-01T15:00:00.1234Z", "2027-03-01T15:00:00,5Z",
        "2027-03-01T15:00:00.0000000000001Z", "0001-01-01T00:00:00+01:00", "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "3000-01-01T00:00:00Z",
        "+2027-03-01T15:00:00Z", "20270301T150000Z", "2027-W09-1T15:00:00Z",
        "２０27-03-01T15:00:00Z", "2027-03-01T15:00:00Z[UTC]", "1900000000", "\ud800",
        1900000000, 1900000000.5, True, None, [], {}, float("nan"), 10**30,
    ],
)  # fmt: skip
def test_an_inexact_instant_is_refused_cleanly(value: object) -> None:
    error = refusal({"at": value})
    assert (error.code, error.field) == ("invalid_at", "schedule.at")
    assert error.hint


@pytest.mark.parametrize(
    ("text", "seconds", "stored"),
    [("1m", 60, "1m"), ("90m", 5400, "90m"), ("1h30m", 5400, "90m"), ("60m", 3600, "1h"),
     ("2d", 172_800, "2d"), ("1w", 604_800, "7d"), ("90s", 90, "90s"), ("24h", 86_400, "1d")],
)  # fmt: skip
def test_an_interval_is_a_length_of_time(text: str, seconds: int, stored: str) -> None:
    interval = parse_interval(text)
    assert interval == timedelta(seconds=seconds)
    assert format_interval(interval) == stored
    assert parse_interval(stored) == interval


@pytest.mark.parametrize(
    "text",
    ["", "m", "5", "0m", "59s", "30s", "-5m", "+5m", "1.5h", "5 m", "5M", "m5", "30m1h", "1h1h",
     "5min", "P1D", "PT5M", "1y", "4000d", "999999999999m", "٥m", "5m\n", "5m\x00"],
)  # fmt: skip
def test_a_doubtful_interval_is_refused(text: str) -> None:
    error = refusal({"every": text}, anchor=ANCHOR)
    assert (error.code, error.field) == ("invalid_every", "schedule.every")


def test_every_needs_its_anchor_from_the_caller() -> None:
    with pytest.raises(TypeError):
        parse_schedule({"every": "5m"})


@pytest.mark.parametrize(
    "schedule",
    [
        CronSchedule("0 9 * * MON-FRI", "Asia/Kolkata"),
        CronSchedule("@Daily", "US/Pacific"),
        AtSchedule(datetime(2027, 3, 1, 15, 0, 0, 750_000, tzinfo=UTC)),
        EverySchedule(timedelta(minutes=90), ANCHOR),
    ],
)
def test_a_stored_schedule_comes_back_equal(schedule: Any) -> None:
    assert schedule_from_json(schedule_to_json(schedule)) == schedule


@pytest.mark.parametrize(
    "stored",
    [None, [], "x", {}, {"cron": "99 * * * *", "time_zone": "UTC"}, {"cron": "0 9 * * *"},
     {"cron": "0 9 * * *", "time_zone": "Mars/Base"}, {"at": 5}, {"every": "5m"},
     {"every": "5m", "anchor": "yesterday"}, {"every": "5m", "anchor": None}, {"cron": None}],
)  # fmt: skip
def test_a_bad_stored_row_gives_the_error_that_sets_its_job_aside(stored: object) -> None:
    with pytest.raises(ScheduleError):
        schedule_from_json(stored)


def test_a_bad_schedule_built_past_the_reader_gives_the_same_error() -> None:
    with pytest.raises(ScheduleError):
        next_occurrence(CronSchedule("99 * * * *", "UTC"), ANCHOR)
    with pytest.raises(ScheduleError):
        next_occurrence(CronSchedule("0 9 * * *", "America"), ANCHOR)


def test_an_instant_must_lie_in_the_future_when_asked() -> None:
    check_at_in_future(ANCHOR + timedelta(milliseconds=1), ANCHOR)
    for at in (ANCHOR, ANCHOR - timedelta(days=1)):
        with pytest.raises(ScheduleError) as caught:
            check_at_in_future(at, ANCHOR)
        assert (caught.value.code, caught.value.field) == ("invalid_at", "schedule.at")


def test_dst_has_defaults_and_refuses_what_it_does_not_know() -> None:
    assert parse_dst({}) == DstPolicy("next_valid", "first")
    assert parse_dst({"gap": "skip", "fold": "both"}) == DstPolicy("skip", "both")
    for data, field in [
        ({"gap": "later"}, "dst.gap"), ({"fold": None}, "dst.fold"), ({"fold": True}, "dst.fold"),
        ({"folds": "first"}, "dst.folds"), ([], "dst"), (None, "dst"),
    ]:  # fmt: skip
        with pytest.raises(ScheduleError) as caught:
            parse_dst(data)
        assert caught.value.field == field


def test_an_error_is_a_value_error_whose_text_is_its_message() -> None:
    error = refusal({"at": "now"})
    assert isinstance(error, ValueError)
    assert str(error) == error.message
    assert parse_instant("2027-03-01T15:00:00Z").tzinfo is UTC
