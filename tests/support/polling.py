"""Wait for a fact with a deadline: no test sleeps for a duration and hopes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(
    check: Callable[[], T], within_s: float = 10.0, what: str = "", every_s: float = 0.05
) -> T:
    """Return the first truthy answer of `check`; AssertionError with its last answer after that."""
    deadline = time.monotonic() + within_s
    while True:
        if answer := check():
            return answer
        if time.monotonic() > deadline:
            expected = what or getattr(check, "__name__", "a fact")
            raise AssertionError(f"not within {within_s:g} s: {expected}; last answer: {answer!r}")
        time.sleep(every_s)
