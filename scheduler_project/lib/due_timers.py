"""Every ETA that has come is acted on at once, however many came together.

kombu's event loop fires at most ten timers a turn, and when all ten were due it then waits for up
to a second for something else to happen: an otherwise idle worker that holds 2,000 tasks of one
ETA runs them at ten a second (kombu 5.6, `Hub.fire_timers`; measured on a worker of threads).
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery import Celery, bootsteps

# So many are fired before the loop looks at its sockets again.
TIMERS_A_TURN = 500


def fire_due_timers(hub: Any, min_delay: float = 1, max_delay: float = 10,
                    max_timers: int = TIMERS_A_TURN, propagate: Any = ()) -> float:  # fmt: skip
    """Fire what is due and return how long, in seconds, the loop may wait for its sockets.

    Zero when there may be more that is due.
    """
    wait_s: float = type(hub).fire_timers(hub, min_delay, max_delay, max_timers, propagate)
    if not hub.timer._queue:
        return wait_s
    next_in_s: float = hub.timer._queue[0].eta - monotonic()
    return max(0.0, min(wait_s, next_in_s))


class FireDueTimers(bootsteps.StartStopStep):
    """Celery's step that gives the worker's event loop this way of firing."""

    requires = ("celery.worker.components:Hub",)

    def create(self, parent: Any) -> None:
        """Called by Celery once, before the loop begins; a pool without a loop has no hub."""
        if hub := getattr(parent, "hub", None):
            hub.fire_timers = lambda **keywords: fire_due_timers(hub, **keywords)


def install(app: Celery) -> None:
    """Make it a part of every worker of `app`."""
    app.steps["worker"].add(FireDueTimers)
