"""A duty goes on whatever its rounds do, and tries again in good time."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise

import pytest
from django.db.utils import OperationalError

from scheduler_project.lib.duty import Duty
from tests.support.polling import poll

MakeDuty = Callable[..., Duty]


@pytest.fixture
def make_duty() -> Iterator[MakeDuty]:
    """Makes a started duty of the given rounds, and stops it after the test."""
    with ExitStack() as stack:

        def make(run_once: Callable[[], Mapping[str, int]], **options: object) -> Duty:
            duty = Duty("test", run_once, **{"interval_s": 0.01} | options)  # type: ignore[arg-type]
            duty.start()
            stack.callback(duty.stop, 5)
            return duty

        yield make


class Rounds:
    """Counts rounds; each of the first ones raises an error."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.done = 0
        self.began_at: list[float] = []

    def __call__(self) -> dict[str, int]:
        if self.errors:
            raise self.errors.pop(0)
        self.began_at.append(time.monotonic())
        self.done += 1
        return {}


@pytest.mark.parametrize("error", [OperationalError("gone"), KeyError("a fault of ours")])
def test_a_duty_outlives_a_failed_round(make_duty: MakeDuty, error: Exception) -> None:
    rounds = Rounds(error, error)

    duty = make_duty(rounds)

    poll(lambda: rounds.done > 1, what="rounds after the failures")
    assert duty.is_alive()


def test_a_connection_that_cannot_even_be_closed_does_not_end_a_duty(
    make_duty: MakeDuty, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(
            "scheduler_project.lib.duty.connections.close_all", Rounds(*[RuntimeError()] * 9)
        )
        rounds = Rounds(OperationalError("gone"))
        duty = make_duty(rounds)
        poll(lambda: rounds.done or not duty.is_alive(), what="a round after the failure")

        assert duty.is_alive()
    assert duty.stop(5)


def test_after_failures_the_pause_grows_up_to_its_limit(make_duty: MakeDuty) -> None:
    rounds = Rounds(*[OperationalError("gone")] * 8)

    # Doubling from 10 ms without a limit, eight failures take over five seconds.
    make_duty(rounds, longest_backoff_s=0.02)

    poll(lambda: rounds.done, within_s=3, what="a round after eight failures")


def test_a_duty_whose_rounds_fail_is_not_taken_for_one_that_hangs(make_duty: MakeDuty) -> None:
    rounds = Rounds(*[OperationalError("gone")] * 1_000)

    duty = make_duty(rounds, longest_backoff_s=0.01)

    poll(lambda: len(rounds.errors) < 950, what="many rounds have failed")
    assert duty.silent_for_s() < 1


def test_a_duty_that_is_woken_often_sees_to_it_in_few_rounds(make_duty: MakeDuty) -> None:
    rounds = Rounds()
    duty = make_duty(rounds, interval_s=60.0, shortest_pause_s=0.2)
    poll(lambda: rounds.done == 1, what="the first round")

    wakes = 0
    while rounds.done < 3:
        duty.wake()
        wakes += 1

    assert all(later - earlier > 0.19 for earlier, later in pairwise(rounds.began_at))
    assert wakes > 10


def test_a_duty_that_rests_is_stopped_at_once(make_duty: MakeDuty) -> None:
    rounds = Rounds()
    duty = make_duty(rounds, interval_s=60.0, shortest_pause_s=60.0)
    poll(lambda: rounds.done == 1, what="the first round")

    assert duty.stop(5)
