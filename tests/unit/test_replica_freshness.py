"""How old what a replica shows is: marks of the primary's log, and which of them it has reached."""

import math

import pytest
from django.db.utils import InterfaceError, OperationalError

from scheduler_project.lib import replica
from scheduler_project.lib.replica import Freshness, read_list


class Clock:
    """The process's monotonic clock, under the test's hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(replica, "time", clock)
    return clock


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Freshness:
    """A replica that has just reached the primary."""
    freshness = Freshness()
    freshness.note(100, clock.now, 100)
    monkeypatch.setattr(replica, "freshness", freshness)
    monkeypatch.setattr(replica, "connections", {"replica": None})
    return freshness


def test_a_replica_nobody_has_looked_at_is_infinitely_old(clock: Clock) -> None:
    assert Freshness().lag_s() == math.inf
    assert not Freshness().is_good()


def test_it_is_as_old_as_the_latest_mark_that_it_has_reached(clock: Clock) -> None:
    freshness = Freshness()
    freshness.note(100, clock.now, 90)
    assert freshness.lag_s() == math.inf
    clock.now += 1
    freshness.note(200, clock.now, 150)
    assert freshness.lag_s() == 1.0
    clock.now += 5
    freshness.note(300, clock.now, 299)
    assert freshness.lag_s() == 5.0
    clock.now += 1
    freshness.note(300, clock.now, 300)
    assert freshness.lag_s() == 0.0


def test_a_primary_that_writes_nothing_keeps_its_replica_fresh(clock: Clock) -> None:
    freshness = Freshness()
    for _ in range(100):
        clock.now += 60
        freshness.note(100, clock.now, 100)
        assert freshness.lag_s() == 0.0


def test_a_replica_that_stands_still_grows_old_and_gathers_no_marks_without_end(
    clock: Clock,
) -> None:
    freshness = Freshness()
    freshness.note(100, clock.now, 100)
    for n in range(5_000):
        clock.now += 1
        freshness.note(101 + n, clock.now, 100)
    assert freshness.lag_s() == 5_000
    assert len(freshness._marks) <= replica._MOST_MARKS
    freshness.note(10_000, clock.now, 10_000)
    assert freshness.is_good()


def test_nobody_who_looks_means_growing_old(well: Freshness, clock: Clock) -> None:
    assert well.is_good()
    clock.now += 3
    assert not well.is_good()


def test_a_list_is_read_from_a_good_replica_and_else_from_the_primary(
    well: Freshness, clock: Clock
) -> None:
    assert read_list(lambda alias: alias) == "replica"
    clock.now += 3
    assert read_list(lambda alias: alias) == "default"


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_replica_that_fails_is_not_asked_again_before_it_is_looked_at(
    well: Freshness, clock: Clock, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def read(alias: str) -> str:
        asked.append(alias)
        if alias == "replica":
            raise error("terminating connection due to conflict with recovery")
        return alias

    monkeypatch.setattr(replica, "forget_connection", lambda: None)
    assert read_list(read) == "default"
    assert read_list(read) == "default"
    assert asked == ["replica", "default", "default"]
    well.note(200, clock.now, 200)
    assert read_list(lambda alias: alias) == "replica"
