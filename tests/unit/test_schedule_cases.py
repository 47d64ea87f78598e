"""The case files: what public bug reports and public schedules must give here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.domain.instant import format_instant, parse_instant
from jobs.domain.schedule import ScheduleError, next_occurrences, parse_schedule

CASES = Path(__file__).parent.parent / "cases"


def rows(name: str) -> list[Any]:
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    return [pytest.param(row, id=row["id"]) for row in map(json.loads, lines)]


def following(row: dict[str, Any], cron: str, time_zone: str) -> list[str]:
    schedule = parse_schedule({"cron": cron, "time_zone": time_zone})
    found = next_occurrences(schedule, parse_instant(row["after"]), len(row["expect_next"]))
    return [format_instant(instant) for instant in found]


@pytest.mark.parametrize("row", rows("cron_cases.jsonl"))
def test_a_reported_case_has_its_right_outcome(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(ScheduleError) as caught:
            parse_schedule({"cron": row["cron"], "time_zone": row["time_zone"]})
        assert caught.value.code == row["error"]
        assert caught.value.hint
        assert caught.value.message.encode("utf-8")  # a lone surrogate would break the answer
    else:
        assert following(row, row["cron"], row["time_zone"]) == row["expect_next"]


@pytest.mark.parametrize("row", rows("real_schedules.jsonl"))
def test_a_schedule_found_in_public_is_accepted_or_refused_with_a_hint(row: dict[str, Any]) -> None:
    time_zone = row["time_zone"] or "UTC"
    if row["product"] == "accept":
        assert following(row, row["expression"], time_zone) == row["expect_next"]
        return
    with pytest.raises(ScheduleError) as caught:
        parse_schedule({"cron": row["expression"], "time_zone": time_zone})
    assert caught.value.field == "schedule.cron"
    assert caught.value.hint
    if row["reason"] == "never_fires":
        assert caught.value.code == "never_fires"
        assert "enabled: false" in caught.value.hint
