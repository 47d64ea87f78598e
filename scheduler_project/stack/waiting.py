"""Wait for a fact with a deadline, never for a duration."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(check: Callable[[], T], timeout_s: float, every_s: float = 0.1) -> T | None:
    """Return the first truthy answer of `check`, or None after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := check():
            return answer
        if time.monotonic() > deadline:
            return None
        time.sleep(every_s)
