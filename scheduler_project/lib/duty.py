"""A duty is a thread that calls `run_once() -> counts` again and again, and can be watched.

The owner of a duty (beat, the worker's keeper) only watches: a duty that has not finished a round
in time is stale, and then the whole process must go, because a thread can't be ended from outside.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from django.db import close_old_connections, connections
from django.db.utils import Error as DatabaseError

from scheduler_project.lib.events import emit

_LONGEST_BACKOFF_S = 5.0


class Duty:
    """One background duty with its own thread and, through Django, its own connection."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Mapping[str, int]],
        *,
        interval_s: float,
        busy: Callable[[Mapping[str, int]], bool] = lambda counts: False,
        longest_backoff_s: float = _LONGEST_BACKOFF_S,
        shortest_pause_s: float = 0.0,
    ) -> None:
        """`busy(counts)` says whether the next round should follow at once: more work waits.

        After failed rounds the pause doubles up to `longest_backoff_s`. A duty that is woken rests
        `shortest_pause_s` all the same: what it is woken for in that time is seen to in one round.
        """
        self.name = name
        self._run_once = run_once
        self.interval_s = interval_s
        self._busy = busy
        self._longest_backoff_s = longest_backoff_s
        self._shortest_pause_s = shortest_pause_s
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._finished_round_at = time.monotonic()
        self._failures = 0
        self._thread = threading.Thread(target=self._loop, name=f"duty-{name}", daemon=True)

    def start(self) -> None:
        """Begin; the first round follows at once."""
        self._finished_round_at = time.monotonic()
        self._thread.start()

    def wake(self) -> None:
        """Ask for a round now instead of after the interval. A hint: losing it costs latency."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Ask the duty to end after its present round; return whether it did in time."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def silent_for_s(self) -> float:
        """Return how long ago a round last ended, well or not (seconds, monotonic)."""
        return time.monotonic() - self._finished_round_at

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            pause_s = self._round()
            if pause_s > 0:
                self._stopped.wait(min(pause_s, self._shortest_pause_s))
                self._wake.wait(max(0.0, pause_s - self._shortest_pause_s))
            self._wake.clear()
        connections.close_all()

    def _round(self) -> float:
        """Run once; return the seconds to wait before the next round."""
        try:
            close_old_connections()
            counts = self._run_once()
        except DatabaseError as error:
            return self._failed(error)
        except Exception as error:
            logging.getLogger(__name__).exception("duty %s failed", self.name)
            return self._failed(error)
        self._failures = 0
        self._finished_round_at = time.monotonic()
        if any(counts.values()):
            emit(f"{self.name}.round", f"{self.name} did a round.", level=logging.DEBUG, **counts)
        return 0.0 if self._busy(counts) else self.interval_s

    def _failed(self, error: BaseException) -> float:
        # A broken connection must not be used again; the next round gets a fresh one. Closing it
        # may fail as well, and the thread must not die of that.
        with suppress(Exception):
            connections.close_all()
        self._failures += 1
        self._finished_round_at = time.monotonic()
        emit(
            f"{self.name}.failed",
            f"{self.name} failed and tries again.",
            level=logging.WARNING,
            error=f"{type(error).__name__}: {str(error).strip()!r}",
            failures=self._failures,
        )
        return min(self.interval_s * 2.0 ** min(self._failures, 6), self._longest_backoff_s)
