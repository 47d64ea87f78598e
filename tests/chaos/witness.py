"""What the engine says ran, beside what the database says: two accounts of the same containers.

A worker that is cut off or asleep writes nothing, and a fault in a guard might write what is not
so. The engine's events know neither leases nor fences.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlencode

from workers.sandbox.container_config import (
    LABEL_ATTEMPT,
    LABEL_FENCE,
    LABEL_INSTANCE,
    LABEL_JOB,
    LABEL_RUN,
)

# The engine tells of a death when it comes to it: one that was frozen may tell of a new container
# first. (The warden kills without it, through the kernel.)
TOLERANCE_S = 1.0
_RECONNECT_S = 0.1
# No word for so long: asked again from the last one, whether the engine is frozen or has no news.
_QUIET_S = 2.0


@dataclass(frozen=True)
class Life:
    """A container from its start to its end, in seconds since the epoch by the engine's clock.

    `ended_at` None: nobody has seen its end, because it still runs or its engine was killed.
    """

    container: str
    job: str
    run: str
    attempt: int
    fence: int
    started_at: float
    ended_at: float | None = None

    def __str__(self) -> str:
        return f"attempt {self.attempt} (fence {self.fence}) of run {self.run}"


def lives_together(
    lives: Iterable[Life], same: Callable[[Life], str]
) -> Iterator[tuple[Life, Life, float]]:
    """Yield each two lives with one `same` that were going on at once, and for how long (s)."""
    groups: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        groups[same(life)].append(life)
    for group in groups.values():
        group.sort(key=lambda life: life.started_at)
        for n, earlier in enumerate(group):
            for later in group[n + 1 :]:
                if earlier.ended_at is None:
                    continue
                both_s = (
                    min(earlier.ended_at, later.ended_at or earlier.ended_at) - later.started_at
                )
                if both_s > TOLERANCE_S:
                    yield earlier, later, both_s


class Witness:
    """Follows the events of an engine, also over its restarts, and keeps the lives it saw."""

    def __init__(self, docker_host: str, instance: str) -> None:
        self._socket = docker_host.removeprefix("unix://")
        self._filters = {"type": ["container"], "label": [f"{LABEL_INSTANCE}={instance}"]}
        self._lives: dict[str, Life] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="witness", daemon=True)
        self._last_event = 0

    def start(self) -> None:
        """From now on nothing is missed, even if the engine is away at first."""
        self._last_event = int(time.time())
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    @property
    def lives(self) -> list[Life]:
        """Every life seen so far, in order of starts."""
        with self._lock:
            return sorted(self._lives.values(), key=lambda life: life.started_at)

    def _follow(self) -> None:
        while not self._stop.wait(_RECONNECT_S):
            # Away, killed, frozen or quiet: again, from what was told last.
            with contextlib.suppress(OSError, HTTPException, ValueError):
                self._listen()

    def _listen(self) -> None:
        with contextlib.closing(_EngineConnection(self._socket, _QUIET_S)) as connection:
            words = {"since": self._last_event, "filters": json.dumps(self._filters)}
            connection.request("GET", f"/v1.41/events?{urlencode(words)}")
            with connection.getresponse() as answer:
                while (line := answer.readline()) and not self._stop.is_set():
                    self._saw(json.loads(line))

    def _saw(self, event: Mapping[str, Any]) -> None:
        at = event["timeNano"] / 1e9
        container, labels = event["Actor"]["ID"], event["Actor"]["Attributes"]
        with self._lock:
            self._last_event = max(self._last_event, int(at))
            life = self._lives.get(container)
            if event["Action"] == "start" and life is None:
                self._lives[container] = Life(
                    container,
                    labels[LABEL_JOB],
                    labels[LABEL_RUN],
                    int(labels[LABEL_ATTEMPT]),
                    int(labels[LABEL_FENCE]),
                    at,
                )
            elif event["Action"] == "die" and life is not None and life.ended_at is None:
                self._lives[container] = replace(life, ended_at=at)


class _EngineConnection(HTTPConnection):
    """HTTP on the engine's socket. Docker's client leaves its own open when nobody listens."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
