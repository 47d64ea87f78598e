"""Sixteen runs that need one image make one pull.

Owns the rule that callers who ask for the same work at the same time share its one result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class SingleFlight:
    """Runs work under a key once at a time; whoever asks meanwhile waits for that result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, Future[None]] = {}

    def do(self, key: str, work: Callable[[], None]) -> None:
        """Have `work` done, by this caller or by one already at it; raises what it raised."""
        mine: Future[None] = Future()
        with self._lock:
            flight = self._flights.setdefault(key, mine)
        if flight is not mine:
            flight.result()
            return
        try:
            work()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(None)
        finally:
            # Later callers do the work anew: a failure is not remembered.
            with self._lock:
                del self._flights[key]
