"""The product's Celery application, whose workers run containers that do nothing.

    celery -A bench.no_op_container worker …

Everything but the engine is the product: a container is a line in the file NO_OP_LOG, written when
it starts, with the run's id and the time. So a drain shows what scheduling costs, not what runc
does. NO_OP_S: how long each container lasts; nothing at all unless it is set.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import django

from bench.no_op_log import NoOpLog
from scheduler_project.celery import app

django.setup()  # Celery does it when a worker starts; what is imported below has models

from workers import lifecycle  # noqa: E402
from workers.sandbox.base import (  # noqa: E402
    ContainerExit,
    ContainerHandle,
    ContainerSpec,
    OwnedContainer,
)

__all__ = ["app"]


class NoOpSandbox:
    """`Sandbox` of containers that end as they start, or after so many seconds."""

    def __init__(self, log: NoOpLog, lasts_s: float) -> None:
        self._log = log
        self._lasts_s = lasts_s
        self._starts: dict[str, datetime] = {}

    def prepare(self, spec: ContainerSpec) -> ContainerHandle:
        name = f"{spec.run_id}-{spec.attempt}"
        return ContainerHandle(name, name, spec.run_id, spec.attempt, spec.fence, spec.session_id)

    def start(self, handle: ContainerHandle) -> datetime:
        self._log.write(str(handle.run_id))
        self._starts[handle.container_id] = at = datetime.now(UTC)
        return at

    def wait(
        self, handle: ContainerHandle, until_stop: threading.Event, timeout_s: float
    ) -> ContainerExit:
        until_stop.wait(min(timeout_s, self._lasts_s))
        return self.kill(handle)

    def stop(self, handle: ContainerHandle, grace_s: float) -> ContainerExit:
        return self.kill(handle)

    def kill(self, handle: ContainerHandle) -> ContainerExit:
        started_at = self._starts.get(handle.container_id)
        return ContainerExit(exit_code=0, started_at=started_at, finished_at=datetime.now(UTC))

    def remove(self, handle: ContainerHandle) -> None:
        self._starts.pop(handle.container_id, None)

    def list_ours(self, session_id: UUID | None = None) -> list[OwnedContainer]:
        return []

    def ping(self) -> bool:
        return True

    def close(self) -> None:
        self._log.close()


def _sandbox(**_: Any) -> NoOpSandbox:
    return NoOpSandbox(NoOpLog(os.environ["NO_OP_LOG"]), float(os.environ.get("NO_OP_S", "0")))


setattr(lifecycle, "DockerSandbox", _sandbox)  # noqa: B010, mypy: not exported there
