"""The event loop of a worker fires every due timer, and waits no longer than to the next."""

from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from scheduler_project.lib.due_timers import TIMERS_A_TURN, fire_due_timers


@pytest.fixture
def hub() -> Any:
    hub = Hub(timer=Timer())
    yield hub
    hub.close()


@pytest.mark.parametrize("due", [0, 1, 10, 11, TIMERS_A_TURN])
def test_all_that_is_due_is_fired_in_one_turn(hub: Any, due: int) -> None:
    fired: list[int] = []
    for number in range(due):
        hub.timer.call_at(0.0, fired.append, (number,))
    fire_due_timers(hub)
    assert sorted(fired) == list(range(due))


def test_what_is_left_of_a_larger_burst_is_not_waited_for(hub: Any) -> None:
    for _ in range(TIMERS_A_TURN + 1):
        hub.timer.call_at(0.0, lambda: None)
    assert fire_due_timers(hub) == 0
    assert len(hub.timer._queue) == 1


def test_the_loop_wakes_for_the_next_timer(hub: Any) -> None:
    hub.timer.call_after(0.4, lambda: None)
    assert 0 < fire_due_timers(hub) <= 0.4


def test_a_timer_far_ahead_keeps_nobody_from_looking(hub: Any) -> None:
    hub.timer.call_after(3_600, lambda: None)
    assert fire_due_timers(hub) <= 10


def test_kombu_still_has_the_flaw(hub: Any) -> None:
    """When this fails, kombu has mended it, and lib/due_timers.py can go."""
    for _ in range(11):
        hub.timer.call_at(0.0, lambda: None)
    assert hub.fire_timers() >= 1
    assert hub.timer._queue
