"""The interface between a run's story and whatever runs its container.

Owns the vocabulary: what a container is asked to be, how it ended, and the few errors that mean
something to the caller. Deadlines here are durations on the local monotonic clock; no wall clock
and no HTTP time-out ever decides that a run is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from runs.domain.outcome import Outcome, OutcomeCode, StopReason, classify, outcome

# `nobody` on every usual distribution; a tenant may be allowed another user.
UNPRIVILEGED_USER = "65534:65534"


@dataclass(frozen=True)
class ContainerSpec:
    """One attempt's container, before it exists. Holds everything; the sandbox adds no wishes.

    `args` replaces the image's command and leaves its entrypoint alone; None and [] both mean
    the image's own. `cpu` is in cores. `tmp_mb` bounds /tmp, which counts as memory. `tier`
    names the isolation (`container` is the engine's default runtime). `user` is numeric; empty
    means the image's own, which may be root. `timeout_s` is carried for the record: the caller
    passes it to `wait`.
    """

    run_id: UUID
    attempt: int
    fence: int
    session_id: UUID
    tenant_id: UUID | str
    job_id: UUID
    image: str
    args: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 1.0
    memory_mb: int = 256
    pids_limit: int = 128
    tmp_mb: int = 64
    timeout_s: int = 3600
    tier: str = "container"
    network: str = "none"
    user: str = UNPRIVILEGED_USER


@dataclass(frozen=True)
class ContainerHandle:
    """A container that exists (or did): enough to act on it and to know whose it is."""

    container_id: str
    name: str
    run_id: UUID
    attempt: int
    fence: int
    session_id: UUID


@dataclass(frozen=True)
class OwnedContainer:
    """One of our containers as the engine lists it. `state`: created, running, paused, exited…"""

    handle: ContainerHandle
    state: str

    @property
    def has_ended(self) -> bool:
        return self.state in {"exited", "dead"}


@dataclass(frozen=True)
class ContainerExit:
    """How a container ended.

    `exit_code` is None when nobody can know it any more (the container was removed by somebody
    else). `started_at` and `finished_at` are the engine's. `output` is the tail of stdout and
    stderr together; `output_truncated` says that there was more. `error` is the engine's
    sentence when it is to blame, `error_code` its class.
    """

    exit_code: int | None
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    error_code: OutcomeCode | None = None
    output: bytes = b""
    output_truncated: bool = False
    image_id: str | None = None

    def outcome(self, stopped_for: StopReason | None = None) -> Outcome:
        """The verdict; `stopped_for` says why we stopped it, if we did."""
        return classify(
            exit_code=self.exit_code,
            signal=self.signal,
            oom_killed=self.oom_killed,
            stopped_for=stopped_for,
            engine_error=self.error_code,
            detail=self.error or "",
        )


class SandboxError(Exception):
    """A container could not be made, started or followed. The message is for the customer.

    `outcome` is the code to record; `permanent` says that trying again cannot help.
    """

    code = OutcomeCode.ENGINE_UNREACHABLE

    def __init__(self, message: str, *, permanent: bool | None = None) -> None:
        super().__init__(message)
        self.verdict = outcome(self.code, message, permanent=permanent)

    @property
    def outcome(self) -> OutcomeCode:
        return self.code

    @property
    def permanent(self) -> bool:
        return self.verdict.permanent


class EngineUnreachable(SandboxError):
    """The engine does not answer, or answers with a trouble of its own. Another worker may try."""


class ImageNotFound(SandboxError):
    """No such image here or in its registry.

    Not permanent when the registry could not be asked: then it counts as an attempt, so that a
    registry that never answers ends in a dead letter and not in a loop.
    """

    code = OutcomeCode.IMAGE_NOT_FOUND

    def __init__(self, message: str, *, permanent: bool = True) -> None:
        super().__init__(message, permanent=permanent)
        self.verdict = outcome(
            self.code, message, permanent=permanent, counts_as_attempt=not permanent
        )


class PullDenied(SandboxError):
    """The registry refuses to hand out the image."""

    code = OutcomeCode.PULL_DENIED


class BadCommand(SandboxError):
    """The image has no such program, or no command at all."""

    code = OutcomeCode.BAD_COMMAND


class PermissionDenied(SandboxError):
    """The program may not be executed by the container's user."""

    code = OutcomeCode.PERMISSION_DENIED


class ContainerGone(SandboxError):
    """Somebody removed the container first: the warden, because the lease had run out."""

    code = OutcomeCode.LEASE_EXPIRED


class StaleFence(SandboxError):
    """A container of a *newer* lease of this attempt exists here: ours is over, leave it alone."""

    code = OutcomeCode.LEASE_EXPIRED


class Sandbox(Protocol):
    """What the worker needs of an engine. Every method may raise `EngineUnreachable`.

    Every call is bounded in time. Safe to use from many threads at once.
    """

    def prepare(self, spec: ContainerSpec) -> ContainerHandle:
        """Have the image here and create the container; nothing runs yet.

        Idempotent: the same lease gets the same container; one left by an older fence is
        replaced, with a kill if it must be. Errors: `ImageNotFound`, `PullDenied`,
        `BadCommand`, `StaleFence`.
        """

    def start(self, handle: ContainerHandle) -> datetime:
        """Start it and return the engine's start instant (UTC).

        Errors: `BadCommand`, `PermissionDenied`, `ContainerGone`. After `EngineUnreachable`
        it may be running or start later all the same: only `remove` settles that.
        """

    def wait(
        self, handle: ContainerHandle, until_stop: threading.Event, timeout_s: float
    ) -> ContainerExit | None:
        """Block until it has ended, and say how; None once `until_stop` or the time came first.

        After None the container may still run: the caller stops it. Follows the container
        across an engine's restart and is not ended by it.
        """

    def stop(self, handle: ContainerHandle, grace_s: float) -> ContainerExit:
        """TERM, `grace_s` seconds, KILL of the whole process tree; returns once it is dead."""

    def kill(self, handle: ContainerHandle) -> ContainerExit:
        """KILL the whole process tree at once; returns once it is dead.

        `EngineUnreachable` means that its death is not confirmed.
        """

    def pause(self, handle: ContainerHandle) -> None:
        """Freeze the whole process tree; returns once nothing of it executes.

        Already paused, ended or gone is fine: nothing executes. After `EngineUnreachable` it may
        be frozen or not, or be frozen later. It can still be killed and removed.
        """

    def unpause(self, handle: ContainerHandle) -> None:
        """Let it go on. One that is not paused, or no more, is fine."""

    def remove(self, handle: ContainerHandle) -> None:
        """Make it not exist, whatever state it is in. Already gone is fine."""

    def list_ours(self, session_id: UUID | None = None) -> list[OwnedContainer]:
        """This instance's containers on this node, of one session or of all."""

    def ping(self) -> bool:
        """Whether the engine answers. Never raises."""

    def close(self) -> None:
        """Give up threads and connections; containers stay as they are."""


class NodeEngine(Protocol):
    """What the warden needs of an engine; small, because it must work when little else does."""

    def list_ours(self, session_id: UUID | None = None) -> list[OwnedContainer]: ...

    def init_pid(self, container_id: str) -> int | None:
        """The host's pid of the container's init, or None when it does not run."""

    def remove(self, handle: ContainerHandle) -> None: ...

    def changes(self) -> Iterator[ContainerHandle]:
        """Blocks, yielding each of our containers that is created or started."""
