"""What a cron expression may say, kind by kind."""

from __future__ import annotations

import time

import pytest

from jobs.domain.cron import parse_cron
from jobs.domain.schedule import ScheduleError


def refusal(expression: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        parse_cron(expression)
    assert caught.value.field == "schedule.cron"
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("minutes", "*/15 * * * *", (0, 15, 30, 45)),
        ("minutes", "5/15 * * * *", (5, 20, 35, 50)),
        ("minutes", "59/15 * * * *", (59,)),
        ("minutes", "30/40 * * * *", (30,)),
        ("minutes", "0-59/60 * * * *", (0,)),
        ("minutes", "23-23/1000 * * * *", (23,)),
        ("minutes", "007,7,07 * * * *", (7,)),
        ("minutes", "*/1 * * * *", tuple(range(60))),
        ("hours", "0 0-23/8 * * *", (0, 8, 16)),
        ("hours", "0 22,10 * * *", (10, 22)),
        ("days", "0 0 */30 * *", (1, 31)),
        ("months", "0 0 1 jan-Mar,DEC *", (1, 2, 3, 12)),
        ("months", "0 0 1 FEB/4 *", (2, 6, 10)),
        ("months", "0 0 1 10-DEC *", (10, 11, 12)),
        ("weekdays", "0 0 * * 7", (0,)),
        ("weekdays", "0 0 * * 0,7,SUN", (0,)),
        ("weekdays", "0 0 * * FRI-SUN", (0, 5, 6)),
        ("weekdays", "0 0 * * tue-sun", (0, 2, 3, 4, 5, 6)),
        ("weekdays", "0 0 * * 5-7", (0, 5, 6)),
        ("weekdays", "0 0 * * SUN-TUE", (0, 1, 2)),
        ("weekdays", "0 0 * * 0-7", (0, 1, 2, 3, 4, 5, 6)),
        ("weekdays", "0 0 * * */6", (0, 6)),
        ("weekdays", "0 0 * * 1/2", (1, 3, 5)),
        ("weekdays", "0 0 * * MON-SUN/3", (0, 1, 4)),
    ],
)
def test_a_field_has_the_values_it_says(field: str, text: str, values: tuple[int, ...]) -> None:
    assert getattr(parse_cron(text), field) == values


@pytest.mark.parametrize("macro", ["@daily", "@DAILY", "@Daily", "  @daily\t", "@midnight"])
def test_a_macro_means_its_five_fields_in_any_case(macro: str) -> None:
    assert parse_cron(macro) == parse_cron("0 0 * * *")


@pytest.mark.parametrize("text", ["0\t9 * * *", " 0 9 * * * ", "0  9  *  *  *", "\t0 9 * * *\t"])
def test_spaces_and_tabs_separate_fields_however_many(text: str) -> None:
    assert parse_cron(text) == parse_cron("0 9 * * *")


@pytest.mark.parametrize(
    ("text", "either_day"),
    [
        ("0 0 13 * 5", True),
        ("0 0 1-31 * 5", True),
        ("0 0 */2 * 5", False),
        ("0 0 1,15 * */2", False),
        ("0 0 *,5 * 1", False),
        ("0 0 * * 5", False),
    ],
)
def test_a_day_field_that_begins_with_a_star_is_unrestricted(text: str, either_day: bool) -> None:
    assert parse_cron(text).either_day is either_day


@pytest.mark.parametrize(
    ("text", "wildcard"),
    [
        ("*/5 2 * * *", True),
        ("0 * * * *", True),
        ("0 */2 * * *", True),
        ("0 0-23 * * *", False),
        ("0-59 0-23 * * *", False),
        ("30 2 */2 * *", False),
        ("@hourly", True),
        ("@daily", False),
    ],
)
def test_a_star_in_minute_or_hour_makes_a_wildcard(text: str, wildcard: bool) -> None:
    assert parse_cron(text).is_wildcard is wildcard


@pytest.mark.parametrize(
    ("text", "in_message", "in_hint"),
    [
        ("*/60 * * * *", "too large", '"60m"'),
        ("0 */24 * * *", "too large", '"0"'),
        ("10/60 * * * *", "too large", '"10"'),
        ("0 0 */31 * *", "too large", '"1"'),
        ("0 0 1 */12 *", "too large", '"1"'),
        ("0 0 * * */7", "too large", '"0"'),
        ("0 0 * * 2/9", "too large", '"2"'),
        ("*/0 * * * *", "step", "at least 1"),
        ("5-1 * * * *", "backwards", "5-59,0-1"),
        ("0 22-6 * * *", "backwards", "22-23,0-6"),
        ("0 0 * NOV-FEB *", "backwards", "NOV-DEC,JAN-FEB"),
        ("0 0 * * FRI-TUE", "backwards", "FRI-SAT,SUN-TUE"),
        ("0 0 * * 7-2", "backwards", "0-2"),
        ("60 * * * *", "60 is out of range", "0-59"),
        ("0 24 * * *", "24 is out of range", "0-23"),
        ("0 0 0 * *", "0 is out of range", "1-31"),
        ("0 0 32 * *", "32 is out of range", "1-31"),
        ("0 0 * 13 *", "13 is out of range", "1-12"),
        ("0 0 * * 8", "8 is out of range", "SUN-SAT"),
        ("0 0 L * *", "L (last)", "28-31"),
        ("0 0 L-3 * *", "L (last)", "28-31"),
        ("0 0 * * FRIL", "L (last)", "28-31"),
        ("0 0 15W * *", "W (nearest weekday)", "1-3"),
        ("0 0 * * MON#2", "# (n-th weekday", "8-14"),
        ("0 0 * * 5#3", "# (n-th weekday", "8-14"),
        ("0 0 ? * MON", "Quartz", '"*"'),
        ("0 ? * * *", "Quartz", '"*"'),
        ("H * * * *", "H or R (a value", "flexible_window_s"),
        ("H/15 * * * *", "H or R (a value", "flexible_window_s"),
        ("0 H(0-7) * * *", "H or R (a value", "flexible_window_s"),
        ("R * * * *", "H or R (a value", "flexible_window_s"),
        ("0 0 * * JAN", "belongs in the month field", "SUN-SAT"),
        ("0 0 * MON *", "belongs in the day of week field", "JAN-DEC"),
        ("0 0 * * Monday", "not a name", "MON"),
        ("0 0 * JANUARY *", "not a name", "JAN"),
        ("0 0 * * TU", "not a number or name", "TUE"),
        ("MON 0 * * *", "belongs in the day of week field", "0-59"),
        ("0 0 1 * * *", "6 fields", "without seconds"),
        ("0 0 0 1 1 ? 2027", "7 fields", "without seconds"),
        ("* * * *", "4 fields", "five fields"),
        ("0 9 * * *\n", "line break", "one line"),
        ("\r0 9 * * *", "line break", "one line"),
        ("0 9 * * *\x0b", "not allowed", "ASCII"),
        ("0\u00a09 * * *", "\\xa0", "ASCII"),
        ("\uff10 9 * * *", "\\uff10", "ASCII"),
        ("0 9 * * *\ufeff", "\\ufeff", "ASCII"),
        ("0 9 \ud800 * *", "\\ud800", "ASCII"),
        ("@reboot", "not supported", "schedule.at"),
        ("@every 5m", "not supported", "schedule.every"),
        ("@ daily", "not supported", "@daily"),
        ("@fortnightly", "not supported", "@weekly"),
        ("daily", "1 field,", "@daily"),
        ("rate(5 minutes)", "2 fields", '{"every": "5m"}'),
        ("cron(0 8 ? * MON-FRI *)", "6 fields", "EventBridge"),
        ("crontab(hour=7, minute=30)", "2 fields", "Celery"),
        ("*-*-* 05:15:00", "2 fields", '"15 5 * * *"'),
        ("TZ=UTC 0 1 * * *", "6 fields", "schedule.time_zone"),
        ("0 9 * * * # daily", "7 fields", "without a comment"),
        ("3h", "1 field,", '{"every": "3h"}'),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_names_the_nearest_form(
    text: str, in_message: str, in_hint: str
) -> None:
    error = refusal(text)
    assert error.code == "invalid_cron"
    assert in_message in error.message
    assert in_hint in error.hint


@pytest.mark.parametrize(
    "item",
    ["", ",", "1,,2", "1-", "-1", "1--2", "1-2-3", "*/", "/5", "*/5/2", "*-5", "1-*", "**", "*5",
     "5*", "+5", "1.5", "1e1", "0x1", "1_0", "~", "%", "[1]", "(1)", "!", "$", "a-b", "1/-2",
     "*/+2", "*/a", "1//2", "1;2", "1|2"],
)  # fmt: skip
@pytest.mark.parametrize("position", range(5))
def test_a_malformed_item_is_refused_in_every_field(item: str, position: int) -> None:
    parts = ["1"] * 5
    parts[position] = item
    assert refusal(" ".join(parts)).code == "invalid_cron"


@pytest.mark.parametrize(
    "text",
    ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30-31 FEB *", "* * 31 4 */1",
     "0 0 30 2 */2"],
)  # fmt: skip
def test_an_impossible_date_is_refused_and_points_to_enabled(text: str) -> None:
    error = refusal(text)
    assert error.code == "never_fires"
    assert "enabled: false" in error.hint


def test_an_impossible_date_beside_a_weekday_still_fires_on_the_weekday() -> None:
    assert parse_cron("0 0 30 2 1").either_day


def test_two_hundred_and_fifty_six_characters_are_the_most() -> None:
    longest = ",".join(["10"] * 83)[:248].rstrip(",")
    text = f"{longest} * * * *"
    assert len(text) <= 256
    assert parse_cron(text).minutes == (10,)
    assert "256" in refusal(text + " " * (257 - len(text))).message


def test_a_refusal_takes_less_than_a_millisecond_even_of_a_huge_text() -> None:
    for text in ("*/" * 500_000, "1-" * 120, ",".join("9" * 125), "rate(" + "9" * 240, "\t" * 256):
        started = time.process_time()
        for _ in range(10):
            refusal(text)
        assert (time.process_time() - started) / 10 < 0.001
