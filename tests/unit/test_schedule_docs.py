"""docs/time-zones.md: every example row is what the engine does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.domain.instant import format_instant, parse_instant
from jobs.domain.preview import preview
from jobs.domain.schedule import parse_dst, parse_schedule

PAGE = Path(__file__).parents[2] / "docs" / "time-zones.md"
ROW = re.compile(r"\| `(.+)` \| (\S+) \| (\S*) ?\| (\S+Z) \| (.+) \|")


def examples() -> list[tuple[str, ...]]:
    return [match.groups() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_its_examples() -> None:
    assert len(examples()) >= 20
    zones = {zone for _, zone, *_ in examples()}
    assert {"America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Europe/Dublin",
            "Pacific/Apia"} <= zones  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "dst", "after", "expected"), examples())
def test_an_example_on_the_page_is_true(
    cron: str, zone: str, dst: str, after: str, expected: str
) -> None:
    schedule = parse_schedule({"cron": cron, "time_zone": zone})
    policy = parse_dst(dict(part.split("=") for part in dst.split(",") if part))
    found = preview(schedule, parse_instant(after), expected.count("Z"), dst=policy).occurrences
    shown = [f"{format_instant(one.scheduled_for)} ({one.local:%H:%M})" for one in found]
    assert ", ".join(shown) == expected
