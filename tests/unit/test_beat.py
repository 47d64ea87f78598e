"""Beat only watches its duties, and goes when one of them is stale."""

import threading
from collections.abc import Callable, Iterator

import pytest
from pytest_django import Settings

from scheduler_project.beat import ShardedScheduler, StaleDuty
from scheduler_project.lib.duty import Duty
from tests.support.polling import poll

BeatOf = Callable[[Duty], ShardedScheduler]


@pytest.fixture
def hung() -> Iterator[Duty]:
    """A duty whose first round does not come back."""
    comes_back = threading.Event()

    def hang() -> dict[str, int]:
        comes_back.wait()
        return {}

    duty = Duty("hung", hang, interval_s=0.1)
    duty.start()
    yield duty
    comes_back.set()
    assert duty.stop(5)


def beat_that_watches(duty: Duty) -> ShardedScheduler:
    beat = ShardedScheduler.__new__(ShardedScheduler)
    beat._duties = [duty]
    return beat


def test_a_scheduler_whose_duty_hangs_ends(hung: Duty, settings: Settings) -> None:
    settings.DUTY_STALE_S = 0.3
    beat = beat_that_watches(hung)
    assert beat.tick() > 0, "it may take its time"

    def ends() -> bool:
        try:
            beat.tick()
        except StaleDuty as end:
            return end.code == 1
        return False

    poll(ends, 5, "beat ends with an error, for its supervisor")


def test_a_scheduler_whose_duties_do_their_rounds_stays(settings: Settings) -> None:
    settings.DUTY_STALE_S = 0.3
    rounds = []
    duty = Duty("sound", lambda: rounds.append(1) or {}, interval_s=0.01)  # type: ignore[func-returns-value]
    duty.start()
    beat = beat_that_watches(duty)
    try:
        poll(lambda: len(rounds) > 60, 10, "many rounds, longer than any may hang")
        assert beat.tick() > 0
    finally:
        duty.stop(5)


def test_a_scheduler_whose_duty_s_thread_is_dead_ends() -> None:
    dead = Duty("dead", dict, interval_s=0.1)
    dead.start()
    dead.stop(5)

    with pytest.raises(StaleDuty):
        beat_that_watches(dead).tick()
