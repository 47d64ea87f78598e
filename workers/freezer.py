"""The second chance of running containers while the database is silent: frozen first, killed later.

Owns the rule that at the worker's deadline a program stops executing without losing its work: the
engine's pause freezes it. It goes on only when an answered heartbeat has proven that the lease is
still ours; without one it is killed, before the warden would do it. What can't be confirmed frozen
soon is killed at once, since it may be running.

`enforce` is called by the thread that keeps the deadline and never waits: the engine is asked from
threads of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from scheduler_project.lib.events import emit
from workers.sandbox.base import ContainerHandle, Sandbox, SandboxError

# Of the time between the worker's deadline and the warden's: until then a pause must be confirmed,
# and until then a frozen container may hope. What is left is for the deaths of a full worker.
_CONFIRM_SHARE = 0.4
_HOPE_SHARE = 0.8
# A pause takes 30 ms; so many at once freeze a full worker within the first share.
_MOST_THREADS = 8
# Between two tries to thaw: the engine does not answer.
_THAW_RETRY_S = 0.5


@dataclass(frozen=True)
class FreezeTimes:
    """Instants of one lease, in seconds of `CLOCK_BOOTTIME`."""

    freeze_at: float
    confirmed_by: float
    kill_at: float


def freeze_times(worker_deadline: float, warden_deadline: float) -> FreezeTimes:
    """When to freeze, and when to kill what is not frozen yet and what still is."""
    room_s = max(0.0, warden_deadline - worker_deadline)
    return FreezeTimes(
        freeze_at=worker_deadline,
        confirmed_by=worker_deadline + _CONFIRM_SHARE * room_s,
        kill_at=worker_deadline + _HOPE_SHARE * room_s,
    )


class Ice(Enum):
    """What we know of a container's program."""

    RUNNING = "running"
    FREEZING = "freezing"
    FROZEN = "frozen"
    # The engine did not answer: it may be frozen or not.
    UNSURE = "unsure"
    THAWING = "thawing"


class Act(Enum):
    """What to do with a container now."""

    NOTHING = "nothing"
    FREEZE = "freeze"
    THAW = "thaw"
    KILL = "kill"


def act_of(ice: Ice, now: float, times: FreezeTimes) -> Act:
    """Return what `now` asks for. A lease that was proven meanwhile has later times."""
    if now < times.freeze_at:
        return Act.THAW if ice in (Ice.FROZEN, Ice.UNSURE) else Act.NOTHING
    if now >= times.kill_at or ice is Ice.UNSURE:
        return Act.KILL
    if ice is Ice.FROZEN:
        return Act.NOTHING
    if now >= times.confirmed_by:
        return Act.KILL
    return Act.FREEZE if ice is Ice.RUNNING else Act.NOTHING


class StartedContainer:
    """A container whose program has begun, and how long it was kept from running.

    `stop` is the event of its run: set, the container is being ended and is frozen no more.
    """

    def __init__(self, handle: ContainerHandle, stop: threading.Event) -> None:
        self.handle = handle
        self.stop = stop
        self.ice = Ice.RUNNING
        self.call: Future[Ice] | None = None
        self._frozen_since: float | None = None
        self._frozen_s = 0.0

    @property
    def is_frozen(self) -> bool:
        """Whether it is surely frozen."""
        return self.ice is Ice.FROZEN

    def frozen_s(self) -> float:
        """Return for how long it was frozen; that time is not the customer's."""
        since = self._frozen_since
        return self._frozen_s + (0.0 if since is None else time.monotonic() - since)

    def take_answer(self) -> None:
        """Note what the engine has answered since."""
        if self.call is not None and self.call.done():
            self.ice, self.call = self.call.result(), None
            if self.ice is Ice.FROZEN:
                self._frozen_since = time.monotonic()

    def count_frozen(self) -> None:
        """It is about to go on: from now on the time is the customer's again."""
        self._frozen_s, self._frozen_since = self.frozen_s(), None


class Freezer:
    """Freezes and thaws the containers of one worker process."""

    def __init__(self, sandbox: Sandbox, containers: int) -> None:
        self._sandbox = sandbox
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(
            min(_MOST_THREADS, containers), thread_name_prefix="freezer"
        )

    def enforce(
        self, containers: list[StartedContainer], now: float, times: FreezeTimes
    ) -> list[StartedContainer]:
        """Ask for what is due, and return the containers that must be killed now."""
        doomed, frozen, thawed = [], 0, 0
        for container in containers:
            container.take_answer()
            act = act_of(container.ice, now, times)
            if act is Act.KILL:
                doomed.append(container)
            elif container.stop.is_set():
                continue
            elif act is Act.FREEZE:
                self._ask(container, Ice.FREEZING, self._freeze)
                frozen += 1
            elif act is Act.THAW:
                container.count_frozen()
                self._ask(container, Ice.THAWING, self._thaw)
                thawed += 1
        if frozen:
            emit("worker.frozen", "No heartbeat was answered in time; containers are frozen.",
                 containers=frozen)  # fmt: skip
        if thawed:
            emit("worker.thawed", "The lease is still ours; frozen containers go on.",
                 containers=thawed)  # fmt: skip
        return doomed

    def close(self) -> None:
        """Ask for nothing any more."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(
        self, container: StartedContainer, ice: Ice, call: Callable[[StartedContainer], Ice]
    ) -> None:
        container.ice = ice
        container.call = self._pool.submit(call, container)

    def _freeze(self, container: StartedContainer) -> Ice:
        if container.stop.is_set():  # a kill is on its way, which a pause would only hold up
            return Ice.RUNNING
        try:
            self._sandbox.pause(container.handle)
        except SandboxError:
            return Ice.UNSURE
        return Ice.FROZEN

    def _thaw(self, container: StartedContainer) -> Ice:
        """Until it goes on: a program that we stopped must not stay so because of one lost call."""
        while True:
            try:
                self._sandbox.unpause(container.handle)
                return Ice.RUNNING
            except SandboxError:
                if self._closed.wait(_THAW_RETRY_S) or container.stop.is_set():
                    return Ice.UNSURE
