"""A sandbox in memory, for tests of the stories around it.

Owns the rule that it behaves as the real one does wherever a caller could tell: one conformance
suite runs against both.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from runs.domain.outcome import SIGKILL_EXIT, signal_of_exit
from workers.sandbox.base import (
    ContainerExit,
    ContainerGone,
    ContainerHandle,
    ContainerSpec,
    EngineUnreachable,
    ImageNotFound,
    OwnedContainer,
    SandboxError,
    StaleFence,
)
from workers.sandbox.container_config import container_name
from workers.sandbox.engine_sandbox import DEFAULT_OUTPUT_BYTES
from workers.sandbox.engine_state import GONE

TERM_EXIT = 143
LOOK_UP_S = 0.01


@dataclass(frozen=True)
class FakeProgram:
    """What a container does. `duration_s` None: it runs until somebody stops it.

    `term_exit_code` None: it ignores TERM. `cannot_run`: the error of a program that the image
    has not got, or must not execute.
    """

    duration_s: float | None = 0.0
    exit_code: int = 0
    output: bytes = b""
    oom_killed: bool = False
    term_exit_code: int | None = TERM_EXIT
    cannot_run: SandboxError | None = None


@dataclass
class _Container:
    spec: ContainerSpec
    handle: ContainerHandle
    instance: str
    node: str
    state: str = "created"
    exit: ContainerExit | None = None
    started_at: datetime | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    # When the program ends by itself, on the monotonic clock; while frozen, how long it still has.
    ends_at: float | None = None
    left_s: float | None = None


class FakeEngine:
    """The containers of one pretended machine; several sandboxes and a warden may share it.

    `programs` maps a spec's args to what it does; args that are not there run for 0 s and
    succeed. `images` are those that exist. `silent` makes every call raise.
    """

    def __init__(self, images: tuple[str, ...] = ("scheduler-demo:latest",)) -> None:
        self.images = set(images)
        self.programs: dict[tuple[str, ...], FakeProgram] = {}
        self.silent = False
        self.lock = threading.RLock()
        self.containers: dict[str, _Container] = {}
        self._numbers = itertools.count(1)
        self._subscribers: list[queue.SimpleQueue[ContainerHandle | None]] = []

    def next_id(self) -> str:
        return f"fake{next(self._numbers):060d}"

    def announce(self, handle: ContainerHandle | None) -> None:
        with self.lock:
            for subscriber in self._subscribers:
                subscriber.put(handle)

    def subscribe(self) -> queue.SimpleQueue[ContainerHandle | None]:
        subscriber: queue.SimpleQueue[ContainerHandle | None] = queue.SimpleQueue()
        with self.lock:
            self._subscribers.append(subscriber)
        return subscriber


class FakeSandbox:
    """`Sandbox` and `NodeEngine` on a `FakeEngine`.

    `calls` lists what was asked, in order. `fail_next` makes the next call of a method raise.
    """

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        instance: str = "test",
        node: str = "node",
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.calls: list[tuple[str, str]] = []
        self._instance = instance
        self._node = node
        self._output_bytes = output_bytes
        self._failures: dict[str, list[SandboxError]] = {}

    def fail_next(self, method: str, error: SandboxError) -> None:
        """The next call of `method` raises `error` and does nothing."""
        self._failures.setdefault(method, []).append(error)

    def finish(self, handle: ContainerHandle, exit_code: int = 0) -> None:
        """End a running container, as its program would."""
        self._end(self._find(handle), exit_code)

    def prepare(self, spec: ContainerSpec) -> ContainerHandle:
        name = container_name(spec.run_id, spec.attempt, self._instance)
        self._called("prepare", name)
        if spec.image not in self.engine.images:
            raise ImageNotFound(f"no such image: {spec.image}")
        with self.engine.lock:
            existing = self._by_name(name)
            if existing is not None:
                old = existing.handle
                same = old.fence == spec.fence and old.session_id == spec.session_id
                if same and existing.state == "created":
                    return old
                if old.fence >= spec.fence:
                    raise StaleFence(f"container {name} already belongs to lease {old.fence}")
                self._destroy(existing)
            handle = ContainerHandle(
                self.engine.next_id(), name, spec.run_id, spec.attempt, spec.fence, spec.session_id
            )
            self.engine.containers[handle.container_id] = _Container(
                spec, handle, self._instance, self._node
            )
        self.engine.announce(handle)
        return handle

    def start(self, handle: ContainerHandle) -> datetime:
        self._called("start", handle.name)
        with self.engine.lock:
            container = self._find(handle)
            if container.started_at is not None:
                return container.started_at
            program = self._program(container)
            container.started_at = datetime.now(UTC)
            container.state = "running"
        self.engine.announce(handle)
        if program.cannot_run is not None:
            self._end(container, 127)
        elif program.duration_s == 0:
            self._end(container, program.exit_code)
        elif program.duration_s is not None:
            self._let_run(container, program.duration_s)
        return container.started_at

    def wait(
        self, handle: ContainerHandle, until_stop: threading.Event, timeout_s: float
    ) -> ContainerExit | None:
        self._called("wait", handle.name)
        deadline = time.monotonic() + timeout_s
        container = self.engine.containers.get(handle.container_id)
        if container is None:
            return GONE
        while not container.ended.wait(LOOK_UP_S):
            if until_stop.is_set() or time.monotonic() >= deadline:
                return None
        return self._exit_of(container)

    def stop(self, handle: ContainerHandle, grace_s: float) -> ContainerExit:
        self._called("stop", handle.name)
        container = self.engine.containers.get(handle.container_id)
        if container is not None and container.state == "running":
            on_term = self._program(container).term_exit_code
            if on_term is None:
                container.ended.wait(grace_s)
            else:
                self._end(container, on_term)
        return self._kill(handle)

    def kill(self, handle: ContainerHandle) -> ContainerExit:
        self._called("kill", handle.name)
        return self._kill(handle)

    def pause(self, handle: ContainerHandle) -> None:
        self._called("pause", handle.name)
        with self.engine.lock:
            container = self.engine.containers.get(handle.container_id)
            if container is not None and container.state == "running":
                container.state = "paused"
                if container.ends_at is not None:
                    container.left_s = container.ends_at - time.monotonic()
                    container.ends_at = None

    def unpause(self, handle: ContainerHandle) -> None:
        self._called("unpause", handle.name)
        with self.engine.lock:
            container = self.engine.containers.get(handle.container_id)
            if container is not None and container.state == "paused":
                container.state = "running"
                if container.left_s is not None:
                    self._let_run(container, container.left_s)

    def remove(self, handle: ContainerHandle) -> None:
        self._called("remove", handle.name)
        container = self.engine.containers.get(handle.container_id)
        if container is not None:
            self._destroy(container)

    def list_ours(self, session_id: UUID | None = None) -> list[OwnedContainer]:
        self._called("list_ours", str(session_id))
        with self.engine.lock:
            return [
                OwnedContainer(container.handle, container.state)
                for container in self.engine.containers.values()
                if (container.instance, container.node) == (self._instance, self._node)
                and session_id in {None, container.handle.session_id}
            ]

    def ping(self) -> bool:
        return not self.engine.silent

    def close(self) -> None:
        self.engine.announce(None)

    def init_pid(self, container_id: str) -> int | None:
        """Nothing runs here that could be signalled."""
        self._called("init_pid", container_id)
        return None

    def changes(self) -> Iterator[ContainerHandle]:
        subscriber = self.engine.subscribe()
        while (handle := subscriber.get()) is not None:
            yield handle

    def _called(self, method: str, subject: str) -> None:
        self.calls.append((method, subject))
        if self._failures.get(method):
            raise self._failures[method].pop(0)
        if self.engine.silent:
            raise EngineUnreachable("the container engine does not answer")

    def _let_run(self, container: _Container, seconds: float) -> None:
        """Let the program end by itself in so many seconds, unless it is frozen before."""
        container.ends_at = ends_at = time.monotonic() + seconds

        def end() -> None:
            if container.ends_at == ends_at:
                self._end(container, self._program(container).exit_code)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()

    def _program(self, container: _Container) -> FakeProgram:
        return self.engine.programs.get(tuple(container.spec.args or ()), FakeProgram())

    def _by_name(self, name: str) -> _Container | None:
        containers = self.engine.containers.values()
        return next((each for each in containers if each.handle.name == name), None)

    def _find(self, handle: ContainerHandle) -> _Container:
        container = self.engine.containers.get(handle.container_id)
        if container is None:
            raise ContainerGone("the container was removed")
        return container

    def _kill(self, handle: ContainerHandle) -> ContainerExit:
        container = self.engine.containers.get(handle.container_id)
        if container is None:
            return GONE
        if container.started_at is not None:
            self._end(container, SIGKILL_EXIT)
        return self._exit_of(container)

    def _destroy(self, container: _Container) -> None:
        with self.engine.lock:
            self.engine.containers.pop(container.handle.container_id, None)
            if container.exit is None:
                container.exit = GONE
            container.ended.set()

    def _end(self, container: _Container, exit_code: int) -> None:
        with self.engine.lock:
            if container.exit is not None:
                return
            program = self._program(container)
            failure = program.cannot_run
            kept = program.output[-self._output_bytes :]
            container.state = "exited"
            container.exit = ContainerExit(
                exit_code=exit_code,
                signal=signal_of_exit(exit_code),
                oom_killed=program.oom_killed,
                started_at=container.started_at,
                finished_at=datetime.now(UTC),
                error=str(failure) if failure else None,
                error_code=failure.outcome if failure else None,
                output=kept,
                output_truncated=len(program.output) > len(kept),
            )
            container.ended.set()

    def _exit_of(self, container: _Container) -> ContainerExit:
        if container.exit is None:
            error = EngineUnreachable("the container never started")
            return ContainerExit(exit_code=None, error=str(error), error_code=error.outcome)
        return container.exit
