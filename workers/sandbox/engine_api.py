"""The dozen calls that we make to a container engine.

Owns the seam to the client library: behind it no HTTP status and no library exception exists,
only `SandboxError`s; in front of it, nothing knows which engine it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from workers.sandbox.base import SandboxError


class Conflict(SandboxError):
    """The name exists, the container does not run, or somebody is removing it: the call says."""


class EngineApi(Protocol):
    """Every call is bounded in time and raises `EngineUnreachable` when nothing answers.

    A container is named by its id or its name. `inspect` answers are the engine's own JSON.
    """

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Raises `ImageNotFound`."""

    def pull(self, image: str) -> None:
        """Raises `ImageNotFound` or `PullDenied`."""

    def create(self, config: dict[str, Any], name: str) -> str:
        """The new container's id. Raises `Conflict` when the name is taken."""

    def start(self, container: str) -> None:
        """Nothing happens to one that runs; *one that has ended is started again*."""

    def signal(self, container: str, name: str) -> None:
        """Raises `Conflict` when it does not run, `ContainerGone` when it does not exist."""

    def pause(self, container: str) -> None:
        """Raises `Conflict` when it is paused or does not run, `ContainerGone`."""

    def unpause(self, container: str) -> None:
        """Raises `Conflict` when it is not paused, `ContainerGone`."""

    def remove(self, container: str) -> None:
        """Killing it first if need be. Raises `Conflict` while another removal is under way."""

    def inspect(self, container: str) -> dict[str, Any] | None:
        """None when it does not exist."""

    def output(self, container: str, lines: int) -> bytes:
        """The last lines of stdout and stderr together."""

    def containers(self, labels: list[str]) -> list[dict[str, Any]]:
        """All with these labels, in any state."""

    def events(self, labels: list[str], names: list[str]) -> Iterator[dict[str, Any]]:
        """The named events of containers with these labels, until the stream breaks or `close`."""

    def cpus(self) -> int:
        """Cores of the engine's machine."""

    def ping(self) -> bool: ...

    def close(self) -> None: ...
