"""How a fault is judged by the starts around it."""

import pytest

from bench.recovery import recovery_of

# Due at 100, 101, …; usually 0.1 s late; the kill is at 103.5.
DUE = {f"r{n}": 100.0 + n for n in range(8)}
ON_TIME = [(run, due + 0.1) for run, due in DUE.items()]


def judged(starts: list[tuple[str, float]]) -> dict[str, float]:
    recovery = recovery_of(starts, DUE, since=100.0, killed_at=103.5, until=108.0)
    return {name: round(value, 3) for name, value in vars(recovery).items()}


def test_a_fault_that_nobody_notices_takes_no_time() -> None:
    assert judged(ON_TIME) == {
        "first_start_s": 0.6, "on_time_after_s": 0.0, "worst_lag_s": 0.1, "usual_lag_s": 0.1,
        "late": 0, "ran_again": 0, "lost": 0,
    }  # fmt: skip


def test_it_lasts_until_the_last_late_start() -> None:
    starts = [(run, max(at, 106.3)) if at > 103.5 else (run, at) for run, at in ON_TIME]
    found = judged(starts)
    assert (found["late"], found["on_time_after_s"], found["worst_lag_s"]) == (2, 2.8, 2.3)


def test_it_lasts_until_what_was_killed_has_started_again() -> None:
    found = judged([*ON_TIME, ("r3", 136.0)])
    assert (found["ran_again"], found["on_time_after_s"], found["late"]) == (1, 32.5, 0)


def test_what_never_starts_is_lost() -> None:
    assert judged(ON_TIME[:-1])["lost"] == 1


def test_without_a_usual_lag_nothing_can_be_said() -> None:
    with pytest.raises(RuntimeError, match="nothing has run"):
        recovery_of([], DUE, since=100.0, killed_at=103.5, until=108.0)
