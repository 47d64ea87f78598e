"""Zone names and zone data: the pinned package and nothing else."""

from __future__ import annotations

import time
import zoneinfo
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest
import tzdata

from jobs.domain.schedule import ScheduleError
from jobs.domain.zones import (
    check_pinned_tzdata,
    check_time_zone,
    load_zone,
    nearest_zone_name,
    time_zone_names,
    tzdata_version,
)


def test_every_listed_name_loads() -> None:
    assert len(time_zone_names()) > 590
    for name in time_zone_names():
        assert load_zone(name).key == name


@pytest.mark.parametrize(
    "name",
    ["US/Pacific", "Asia/Calcutta", "Europe/Kiev", "GB", "UTC", "Zulu", "EST5EDT", "Etc/GMT+5",
     "GMT0", "America/Argentina/Buenos_Aires", "America/Port-au-Prince"],
)  # fmt: skip
def test_links_and_old_names_are_names(name: str) -> None:
    assert check_time_zone(name) == name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("", "UTC"), (" ", "UTC"), ("\ud800", "UTC"), ("utc", "UTC"), ("Utc", "UTC"), ("Z", "UTC"),
        ("america/new_york", "America/New_York"), ("EUROPE/PARIS", "Europe/Paris"),
        ("America/New York", "America/New_York"), (" Asia/Kolkata", "Asia/Kolkata"),
        ("Asia/Kolkata\n", "Asia/Kolkata"), ("Asia/Kolkata\x00", "Asia/Kolkata"),
        ("/Europe/Paris", "Europe/Paris"), ("Europe/Paris/", "Europe/Paris"),
        ("posix/Europe/Paris", "Europe/Paris"), ("right/Asia/Tokyo", "Asia/Tokyo"),
        ("New_York", "America/New_York"), ("London", "Europe/London"), ("kolkata", "Asia/Kolkata"),
        ("Amercia/New_York", "America/New_York"), ("Europe/Pariss", "Europe/Paris"),
        ("Asia/Kolkatta", "Asia/Kolkata"), ("\u0415urope/Paris", "Europe/Paris"),
        ("IST", "Asia/Kolkata"), ("EDT", "America/New_York"), ("PST", "America/Los_Angeles"),
        ("CEST", "Europe/Berlin"), ("BST", "Europe/London"), ("JST", "Asia/Tokyo"),
        ("Eastern Standard Time", "America/New_York"), ("UTC+5", "Etc/GMT-5"),
        ("GMT-03:00", "Etc/GMT+3"), ("+05:30", "Asia/Kolkata"), ("UTC+0", "UTC"),
        ("America", "America/New_York"), ("Europe/../Europe/Paris", "Europe/Paris"),
        ("localtime", "UTC"), ("posixrules", "UTC"), ("Factory", "UTC"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        check_time_zone(name)
    assert caught.value.code == "invalid_time_zone"
    assert caught.value.field == "schedule.time_zone"
    assert nearest in caught.value.hint
    assert caught.value.message.encode("utf-8")


@pytest.mark.parametrize(
    "name",
    ["Pacific", "Etc", "__init__.py", "../etc/passwd", "/etc/localtime", "zone.tab", "tzdata.zi",
     "leapseconds", "America\\New_York", "C:\\Zones", "A" * 300, "..", ".", "a/b/c/d", "%s",
     "UTC+99", "UTC+5:99", "+", "-", "UTC\u0665", "Europe/Par\x00is"],
)  # fmt: skip
def test_an_odd_name_opens_nothing_and_gets_a_real_name(name: str) -> None:
    with pytest.raises(ScheduleError):
        load_zone(name)
    assert nearest_zone_name(name) in time_zone_names()


def test_refusing_a_name_takes_less_than_a_millisecond() -> None:
    for name in ("Amercia/New_Yrok", "x" * 64, "y" * 1_000_000):
        nearest_zone_name(name)  # the tables are built once
        started = time.process_time()
        for _ in range(10):
            nearest_zone_name(name)
        assert (time.process_time() - started) / 10 < 0.001


def test_the_operating_systems_files_are_not_used(tmp_path: Path) -> None:
    bait = tmp_path / "America" / "Vancouver"
    bait.parent.mkdir()
    bait.write_bytes(resources.files("tzdata").joinpath("zoneinfo", "UTC").read_bytes())
    load_zone.cache_clear()
    winter = datetime(2026, 12, 15, tzinfo=UTC)
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        baited = winter.astimezone(zoneinfo.ZoneInfo.no_cache("America/Vancouver"))
        ours = winter.astimezone(load_zone("America/Vancouver"))
    finally:
        zoneinfo.reset_tzpath()
    assert baited.isoformat() == "2026-12-15T00:00:00+00:00"
    # And not last year's files either: from 2026 on Vancouver stays on one offset.
    assert ours.isoformat() == "2026-12-14T17:00:00-07:00"


def test_the_edition_is_known_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tzdata_version() == tzdata.IANA_VERSION
    assert check_pinned_tzdata() == []
    monkeypatch.setattr(tzdata, "__version__", "2025.2")
    assert "2025.2 is older" in check_pinned_tzdata()[0]
