"""What the engine itself says of containers: when each began and ended, by the engine's clock.

The record in the database can't tell of an attempt whose worker is dead; the engine can.
"""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from scheduler_project.stack.engine import INSTANCE_LABEL, Engine


@dataclass
class Life:
    """One container, from its creation on. None: it has not happened."""

    container_id: str
    run_id: str
    attempt: int
    session_id: str
    started_at: datetime | None = None
    died_at: datetime | None = None
    removed_at: datetime | None = None


class EngineWitness:
    """Follows the engine's events of one stack for the block; `lives` in the order of creation."""

    def __init__(self, engine: Engine, instance: str) -> None:
        self._engine = engine
        self._instance = instance
        self._lock = threading.Lock()
        self._lives: dict[str, Life] = {}
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._stream: Any = None

    def __enter__(self) -> "EngineWitness":
        self._thread.start()
        assert self._listens.wait(10), "the engine gives no events"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stream.close()
        self._thread.join(5)

    @property
    def lives(self) -> list[Life]:
        with self._lock:
            return list(self._lives.values())

    def of_attempt(self, attempt: int) -> list[Life]:
        return [life for life in self.lives if life.attempt == attempt]

    def alive(self) -> list[Life]:
        """Those that have started and not died."""
        return [life for life in self.lives if life.started_at and not life.died_at]

    def overlaps(self) -> list[tuple[Life, Life]]:
        """Pairs of attempts of one run that executed at the same time: there must be none."""
        ran = [life for life in self.lives if life.started_at]
        return [
            (first, second)
            for first in ran
            for second in ran
            if first.run_id == second.run_id
            and first.started_at < second.started_at  # type: ignore[operator]
            and (first.died_at is None or second.started_at < first.died_at)  # type: ignore[operator]
        ]

    def _follow(self) -> None:
        filters = {"type": "container", "label": f"{INSTANCE_LABEL}={self._instance}"}
        with self._engine.client() as client:
            # Without a time-out: a quiet engine is no silent one.
            client.api.timeout = None
            self._stream = client.events(filters=filters, decode=True)
            self._listens.set()
            for event in self._stream:
                self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        labels, container_id = event["Actor"]["Attributes"], event["Actor"]["ID"]
        at = datetime.fromtimestamp(event["timeNano"] / 1e9, UTC)
        with self._lock:
            life = self._lives.setdefault(
                container_id,
                Life(
                    container_id,
                    labels["scheduler.run_id"],
                    int(labels["scheduler.attempt"]),
                    labels["scheduler.session"],
                ),
            )
            match event["Action"]:
                case "start":
                    life.started_at = at
                case "die":
                    life.died_at = at
                case "destroy":
                    life.removed_at = at
