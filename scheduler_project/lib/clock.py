"""Clocks of this process: none of them may be compared with an instant stored in the database."""

import time


def boottime() -> float:
    """Return seconds of CLOCK_BOOTTIME: it goes on while the machine is suspended.

    A lease is timed with it, because CLOCK_MONOTONIC stands still during a suspend and would let a
    worker believe in a lease that has long ended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
