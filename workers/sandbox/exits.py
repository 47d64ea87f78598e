"""Notices that containers have ended, for all threads of a process at once.

Owns the rule that an exit is seen twice over: the engine's event stream tells within
milliseconds, and a list of our containers each second finds whatever the stream lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from scheduler_project.lib.events import emit
from workers.sandbox.base import SandboxError

# One call for all containers of the process, about 5 ms with 16 of them.
POLL_S = 1.0

# States in which a program may still run, or has yet to.
LIVE_STATES = frozenset({"created", "running", "paused", "restarting"})


@dataclass
class _Watched:
    ended: threading.Event = field(default_factory=threading.Event)
    # How often the engine had been lost when the watch began.
    losses_before: int = 0


class ExitWatcher:
    """Two threads however many containers: one follows events, one lists.

    `ended_ids()` blocks and yields the id of each container that ends, until its stream
    breaks (then it raises or returns). `states()` is the state of every container of ours,
    by id. Both raise `SandboxError` while the engine is away, which ends no container.
    """

    def __init__(
        self,
        ended_ids: Callable[[], Iterator[str]],
        states: Callable[[], Mapping[str, str]],
        poll_s: float = POLL_S,
    ) -> None:
        self._ended_ids = ended_ids
        self._states = states
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._engine_losses = 0
        self._closed = threading.Event()
        self._busy = threading.Event()
        self._threads: list[threading.Thread] = []

    def watch(self, container_id: str) -> threading.Event:
        """The event set when it has ended or is gone. Call before starting it: then no exit,
        however quick, is missed."""
        with self._lock:
            self._start_threads()
            watched = self._watched.get(container_id)
            if watched is None:
                watched = _Watched(losses_before=self._engine_losses)
                self._watched[container_id] = watched
            self._busy.set()
            return watched.ended

    def forget(self, container_id: str) -> None:
        """Stop watching; the caller no longer cares how it ends."""
        with self._lock:
            self._watched.pop(container_id, None)
            if not self._watched:
                self._busy.clear()

    def engine_was_lost(self, container_id: str) -> bool:
        """Whether the engine went away at some time while this container was watched."""
        with self._lock:
            watched = self._watched.get(container_id)
            return watched is not None and self._engine_losses > watched.losses_before

    def close(self) -> None:
        """End both threads; the owner breaks the event stream."""
        self._closed.set()
        self._busy.set()

    def _start_threads(self) -> None:
        if self._threads:
            return
        for target in (self._follow, self._poll):
            thread = threading.Thread(target=target, name=f"exits{target.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self) -> None:
        said = False
        while not self._closed.is_set():
            began = time.monotonic()
            reason = "the stream ended"
            try:
                for container_id in self._ended_ids():
                    self._mark(container_id)
            except SandboxError as error:
                reason = str(error)
            with self._lock:
                self._engine_losses += 1
            # Once per outage: a stream that lasted had been connected again.
            said = said and time.monotonic() - began < self._poll_s
            if not said and not self._closed.is_set():
                emit("engine.events_lost", "The container engine's events broke off.",
                     level=logging.WARNING, reason=reason)  # fmt: skip
                said = True
            self._closed.wait(self._poll_s)

    def _poll(self) -> None:
        # The first wait gives the event stream its second; nobody is watched before that.
        while not self._closed.wait(self._poll_s):
            self._busy.wait()
            self.poll_once()

    def poll_once(self) -> None:
        """Mark everything watched that the engine no longer lists as live."""
        # Before the listing: what is watched exists, so what is then not listed is gone. The
        # other way round a container created in between would be taken for one that ended.
        with self._lock:
            watched = [key for key, value in self._watched.items() if not value.ended.is_set()]
        if not watched:
            return
        try:
            states = self._states()
        except SandboxError:
            return
        for container_id in watched:
            if states.get(container_id) not in LIVE_STATES:
                self._mark(container_id)

    def _mark(self, container_id: str) -> None:
        with self._lock:
            watched = self._watched.get(container_id)
        if watched is not None:
            watched.ended.set()
