"""Laws of the engine over random schedules, zones, policies and instants."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.domain import schedule as engine
from jobs.domain.counting import count_occurrences, latest_occurrences, min_interval_s
from jobs.domain.cron import parse_cron
from jobs.domain.preview import preview
from jobs.domain.schedule import (
    CronSchedule,
    DstPolicy,
    Schedule,
    ScheduleError,
    load_zone,
    next_occurrence,
    next_occurrences,
    occurrences,
    parse_schedule,
    schedule_from_json,
    schedule_to_json,
    time_zone_names,
    wall_time,
)

UTC_2010 = datetime(2010, 1, 1, tzinfo=UTC)
FOLD_2026 = datetime(2026, 11, 1, 6, tzinfo=UTC)  # New York's second showing of 01:00
# Generous: the machine is shared, and what this guards against takes seconds, or for ever.
SLOWEST_S = 0.005


@st.composite
def items(draw: st.DrawFn, low: int, high: int) -> str:
    """One list item of a field that holds `low` to `high`."""
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high - low))
    return draw(
        st.sampled_from(
            ["*", f"{first}", f"{first}-{last}", f"*/{step}", f"{first}/{step}",
             f"{first}-{last}/{step}"]
        )
    )  # fmt: skip


@st.composite
def expressions(draw: st.DrawFn) -> str:
    bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    fields = [
        ",".join(draw(st.lists(items(low, high), min_size=1, max_size=3))) for low, high in bounds
    ]
    # Mostly plain days, as people write them; otherwise almost nothing would fire near a change.
    for index in (2, 3, 4):
        fields[index] = draw(st.sampled_from(["*", "*", fields[index]]))
    return " ".join(fields)


zones = st.sampled_from(
    ["UTC", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "Africa/Casablanca",
     "Pacific/Apia", "America/Havana", "Antarctica/Troll", "Asia/Kolkata", "Asia/Tehran",
     *sorted(time_zone_names())[::40]]
)  # fmt: skip
policies = st.builds(
    DstPolicy, st.sampled_from(["next_valid", "skip"]), st.sampled_from(["first", "second", "both"])
)
instants = st.integers(0, 25 * 365 * 86_400).map(lambda s: UTC_2010 + timedelta(seconds=s))


@st.composite
def schedules(draw: st.DrawFn) -> CronSchedule:
    text = draw(expressions())
    try:
        parse_cron(text)
    except ScheduleError as error:
        if error.code != "never_fires":
            raise
        text = "30 2 * * *"
    return CronSchedule(text, draw(zones))


def outcome(read: Callable[[], Schedule]) -> Schedule | ScheduleError:
    """What `read` gives, its refusal included; any other exception is an accident."""
    try:
        return read()
    except ScheduleError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(schedules(), instants, policies)
def test_the_next_is_later_as_an_instant_and_on_the_wall(
    schedule: CronSchedule, after: datetime, dst: DstPolicy
) -> None:
    found = next_occurrences(schedule, after, 12, dst=dst)
    assert all(later > earlier for earlier, later in pairwise([after, *found]))
    if parse_cron(schedule.expression).is_wildcard or dst.fold == "both":
        return
    walls = [wall_time(schedule, instant) for instant in found]
    assert all(later > earlier for earlier, later in pairwise(w for w in walls if w is not None))


@settings(max_examples=200, deadline=None)
@given(schedules(), instants, policies)
def test_the_last_wall_time_changes_nothing_while_the_rules_stay(
    schedule: CronSchedule, after: datetime, dst: DstPolicy
) -> None:
    first = next_occurrence(schedule, after, dst=dst)
    if first is None:
        return
    plain = next_occurrence(schedule, first, dst=dst)
    wall = wall_time(schedule, first)
    assert next_occurrence(schedule, first, dst=dst, last_wall_time=wall) == plain


@settings(max_examples=200, deadline=None)
@given(schedules(), instants, policies, st.integers(0, 60 * 24 * 20))
def test_stepping_ranging_and_counting_agree(
    schedule: CronSchedule, after: datetime, dst: DstPolicy, minutes: int
) -> None:
    until = after + timedelta(minutes=minutes)
    stepped: list[datetime] = []
    at = next_occurrence(schedule, after, dst=dst)
    while at is not None and at <= until and len(stepped) < 400:
        stepped.append(at)
        at = next_occurrence(schedule, at, dst=dst)
    if len(stepped) == 400:
        until = stepped[-1]
    assert occurrences(schedule, after, until, limit=500, dst=dst) == stepped
    assert count_occurrences(schedule, after, until, dst=dst) == len(stepped)
    assert latest_occurrences(schedule, after, until, 5, dst=dst) == stepped[-5:]


@settings(max_examples=100, deadline=None)
@given(schedules(), instants, policies)
def test_no_two_occurrences_are_closer_than_the_smallest_gap(
    schedule: CronSchedule, after: datetime, dst: DstPolicy
) -> None:
    smallest = min_interval_s(schedule, after, dst=dst)
    assert smallest is not None
    end = after + timedelta(days=3 * 365)
    found = occurrences(schedule, after, end, limit=60, dst=dst)
    assert all((later - earlier).total_seconds() >= smallest for earlier, later in pairwise(found))


@settings(max_examples=200, deadline=None)
@given(schedules(), instants, policies)
@example(CronSchedule("0 0 31 4,6,9,11 1", "UTC"), UTC_2010, DstPolicy())
@example(CronSchedule("0 0 30 2 0,6", "UTC"), UTC_2010, DstPolicy())
@example(CronSchedule("0 0 29 2 */6", "America/New_York"), UTC_2010, DstPolicy())
@example(CronSchedule("0-58 1 * * *", "America/New_York"), FOLD_2026, DstPolicy())
def test_no_accepted_expression_is_slow(
    schedule: CronSchedule, after: datetime, dst: DstPolicy
) -> None:
    def uncached() -> float:
        engine._next_cron.cache_clear()
        started = time.process_time()
        next_occurrence(schedule, after, dst=dst)
        return time.process_time() - started

    load_zone(schedule.time_zone)
    assert min(uncached() for _ in range(3)) < SLOWEST_S


@settings(max_examples=300, deadline=None)
@given(schedules(), instants, policies)
def test_any_accepted_schedule_can_be_previewed(
    schedule: CronSchedule, after: datetime, dst: DstPolicy
) -> None:
    shown = preview(schedule, after, 3, dst=dst)
    planned = next_occurrences(schedule, after, 3, dst=dst)
    assert [one.scheduled_for for one in shown.occurrences] == planned
    assert shown.description.endswith(f"({schedule.time_zone})")


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("0123456789*/-,LWH#?@ MONJAN", max_size=40)))
def test_any_text_is_read_or_refused_but_never_an_accident(text: str) -> None:
    schedule = outcome(lambda: parse_schedule({"cron": text, "time_zone": "Europe/Berlin"}))
    if isinstance(schedule, ScheduleError):
        assert schedule.hint
        assert schedule.message.encode("utf-8")
        return
    assert schedule_from_json(schedule_to_json(schedule)) == schedule
    assert next_occurrence(schedule, UTC_2010) is not None


@settings(max_examples=300, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["cron", "at", "every", "time_zone", "anchor", "x"]), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_any_json_is_read_or_refused_but_never_an_accident(data: object) -> None:
    for read in (lambda: parse_schedule(data, anchor=UTC_2010), lambda: schedule_from_json(data)):
        found = outcome(read)
        if isinstance(found, ScheduleError):
            assert found.message.encode("utf-8")
