"""A container's life on an engine: made, started, followed to its end, killed, removed.

Owns the rule that a container is started at most once and that its death is believed only when
the engine or the kernel confirms it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from signal import SIGKILL
from typing import Any
from uuid import UUID

from jobs.domain.image import full_reference
from runs.domain.outcome import OutcomeCode
from workers.processes import ProcessIdentity, identify_container_init
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
from workers.sandbox.container_config import (
    LABEL_INSTANCE,
    LABEL_NODE,
    LABEL_SESSION,
    ImageFacts,
    checked_instance,
    container_config,
    container_name,
    handle_from_labels,
)
from workers.sandbox.engine_api import Conflict, EngineApi
from workers.sandbox.engine_state import GONE, exit_of_state, parse_instant
from workers.sandbox.exits import LIVE_STATES, ExitWatcher
from workers.sandbox.single_flight import SingleFlight

DEFAULT_OUTPUT_BYTES = 16 * 1024
MAX_OUTPUT_BYTES = 64 * 1024

# How often a waiting thread looks up for a stop request: unnoticeable to a person, and sixteen
# threads doing it cost less than one percent of a core.
LOOK_UP_S = 0.05
# How long the word of a kill for memory may come after the exit itself.
MEMORY_FLAG_S = 1.0
# Between questions to an engine that does not answer.
ENGINE_PAUSE_S = 0.5
# A SIGKILL takes 40 ms; after this long the kernel or the engine is stuck.
DEATH_TIMEOUT_S = 10.0

RUNTIMES: Mapping[str, str | None] = {"container": None, "sandbox": "runsc"}

_KILLED_WITHOUT_ENGINE = ContainerExit(
    exit_code=None,
    error="killed while the container engine did not answer",
    error_code=OutcomeCode.ENGINE_UNREACHABLE,
)


class EngineSandbox:
    """A node's engine as one instance of the product sees it: a `Sandbox` and a `NodeEngine`.

    `instance` names the stack: two stacks on one engine never see each other's containers.
    `output_bytes` is the tail of output that is kept. `pull`: "missing" asks the registry for
    an image that is not here, "never" does not. `runtimes`: tier → the engine's runtime (None:
    its default); a tier not named there is a runtime's own name.
    """

    def __init__(
        self,
        engine: EngineApi,
        *,
        instance: str,
        node: str,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
        pull: str = "missing",
        runtimes: Mapping[str, str | None] = RUNTIMES,
    ) -> None:
        if not 0 <= output_bytes <= MAX_OUTPUT_BYTES:
            raise ValueError(f"output_bytes must be between 0 and {MAX_OUTPUT_BYTES}")
        if pull not in {"missing", "never"}:
            raise ValueError("pull must be 'missing' or 'never'")
        self._engine = engine
        self._instance = checked_instance(instance)
        self._node = node
        self._output_bytes = output_bytes
        self._pulls_allowed = pull == "missing"
        self._runtimes = runtimes
        self._pulls = SingleFlight()
        self._watcher = ExitWatcher(self._ended_ids, self._states)
        # Containers that this process tried to start, with their init once it is known.
        self._inits: dict[str, ProcessIdentity | None] = {}

    # What the worker calls.

    def prepare(self, spec: ContainerSpec) -> ContainerHandle:
        # As the customer wrote it, a name could be read as the id of anybody's image.
        spec = replace(spec, image=full_reference(spec.image))
        config = container_config(
            spec,
            instance=self._instance,
            node=self._node,
            runtime=self._runtimes.get(spec.tier, spec.tier),
            node_cpus=self._engine.cpus(),
            image=self._image(spec.image),
        )
        name = container_name(spec.run_id, spec.attempt, self._instance)
        try:
            container_id = self._engine.create(config, name)
        except Conflict:
            existing = self._adopt_or_clear(spec, name)
            if existing is not None:
                return existing
            container_id = self._engine.create(config, name)
        return ContainerHandle(
            container_id, name, spec.run_id, spec.attempt, spec.fence, spec.session_id
        )

    def start(self, handle: ContainerHandle) -> datetime:
        container_id = handle.container_id
        # Before the start, so that no exit, however quick, goes unseen.
        self._watcher.watch(container_id)
        if container_id in self._inits:
            # The engine starts a container that has ended once more, and the program would run
            # twice: after an unknown answer, look before asking again.
            started_at = self._note_start(container_id)
            if started_at is not None:
                return started_at
        self._inits[container_id] = None
        self._engine.start(container_id)
        started_at = self._note_start(container_id)
        if started_at is None:
            raise EngineUnreachable("the engine says that it started the container, and did not")
        return started_at

    def wait(
        self, handle: ContainerHandle, until_stop: threading.Event, timeout_s: float
    ) -> ContainerExit | None:
        deadline = time.monotonic() + timeout_s
        ended = self._watcher.watch(handle.container_id)
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            if ended.wait(min(LOOK_UP_S, remaining_s)):
                try:
                    found = self._exit_of(handle)
                except EngineUnreachable:
                    until_stop.wait(min(ENGINE_PAUSE_S, remaining_s))
                else:
                    if found is not None:
                        return self._with_memory_flag(handle, found)
                    # It runs after all. An exit between the look and this line is found by the
                    # watcher's list a second later.
                    ended.clear()
            if until_stop.is_set() or time.monotonic() >= deadline:
                return None

    def _with_memory_flag(self, handle: ContainerHandle, found: ContainerExit) -> ContainerExit:
        """The exit, after another look for the memory flag where it could still be on its way.

        The engine learns of a kill for memory by an event of its own, which a busy machine may
        bring after the exit: looked at once, such a kill would be told to the customer as a signal.
        """
        until = time.monotonic() + MEMORY_FLAG_S
        while found.signal == SIGKILL and not found.oom_killed and time.monotonic() < until:
            time.sleep(LOOK_UP_S)
            with suppress(EngineUnreachable):
                again = self._exit_of(handle)
                if again is None or again.exit_code is None:
                    return found
                found = again
        return found

    def stop(self, handle: ContainerHandle, grace_s: float) -> ContainerExit:
        ended = self._watcher.watch(handle.container_id)
        with suppress(EngineUnreachable):
            self._signal(handle, "SIGTERM")
            ended.wait(grace_s)
        return self.kill(handle)

    def kill(self, handle: ContainerHandle) -> ContainerExit:
        init = self._inits.get(handle.container_id)
        if init is not None:
            # Needs no engine and takes microseconds; the engine then only finds it dead.
            init.kill()
        deadline = time.monotonic() + DEATH_TIMEOUT_S
        try:
            self._signal(handle, "SIGKILL")
            while (found := self._exit_of(handle)) is None:
                if time.monotonic() >= deadline:
                    raise EngineUnreachable("the container was killed and does not die")
                time.sleep(LOOK_UP_S)
        except EngineUnreachable:
            if init is not None and _died(init):
                return _KILLED_WITHOUT_ENGINE
            raise
        return found

    def pause(self, handle: ContainerHandle) -> None:
        with suppress(Conflict, ContainerGone):
            self._engine.pause(handle.container_id)

    def unpause(self, handle: ContainerHandle) -> None:
        try:
            with suppress(Conflict, ContainerGone):
                self._engine.unpause(handle.container_id)
        except EngineUnreachable:
            # Docker calls it a fault of its own when there is nothing to unpause.
            inspected = self._engine.inspect(handle.container_id)
            if inspected is not None and inspected["State"]["Status"] == "paused":
                raise

    def remove(self, handle: ContainerHandle) -> None:
        deadline = time.monotonic() + DEATH_TIMEOUT_S
        while not self._try_remove(handle.container_id):
            if time.monotonic() >= deadline:
                raise EngineUnreachable("the container is being removed and does not go")
            time.sleep(LOOK_UP_S)
        self._watcher.forget(handle.container_id)
        self._inits.pop(handle.container_id, None)

    def list_ours(self, session_id: UUID | None = None) -> list[OwnedContainer]:
        labels = self._our_labels()
        if session_id is not None:
            labels.append(f"{LABEL_SESSION}={session_id}")
        return [
            OwnedContainer(handle, item["State"])
            for item in self._engine.containers(labels)
            if (handle := _listed_handle(item)) is not None
        ]

    def ping(self) -> bool:
        return self._engine.ping()

    def close(self) -> None:
        self._watcher.close()
        self._engine.close()

    # What the warden calls besides.

    def init_pid(self, container_id: str) -> int | None:
        inspected = self._engine.inspect(container_id)
        return None if inspected is None else inspected["State"]["Pid"] or None

    def changes(self) -> Iterator[ContainerHandle]:
        for event in self._engine.events(self._our_labels(), ["create", "start"]):
            actor = event["Actor"]
            name = actor["Attributes"].get("name", "")
            handle = handle_from_labels(actor["ID"], name, actor["Attributes"])
            if handle is not None:
                yield handle

    # Making.

    def _image(self, image: str) -> ImageFacts:
        """What the image declares; pulls it if it is not here."""
        try:
            inspected = self._engine.inspect_image(image)
        except ImageNotFound:
            if not self._pulls_allowed:
                raise
            self._pulls.do(image, lambda: self._engine.pull(image))
            inspected = self._engine.inspect_image(image)
        return ImageFacts.of(inspected)

    def _adopt_or_clear(self, spec: ContainerSpec, name: str) -> ContainerHandle | None:
        """Settle who owns the name: our own container of this lease, or None once it is free."""
        inspected = self._engine.inspect(name)
        if inspected is None:
            return None
        labels = inspected["Config"]["Labels"] or {}
        handle = handle_from_labels(inspected["Id"], name, labels)
        if handle is None or labels.get(LABEL_INSTANCE) != self._instance:
            raise EngineUnreachable(f"the name {name} is taken by a container that is not ours")
        if handle.fence < spec.fence:
            self.remove(handle)
            return None
        untouched = inspected["State"]["Status"] == "created"
        if handle.fence == spec.fence and handle.session_id == spec.session_id and untouched:
            # The answer to an earlier create got lost.
            return handle
        raise StaleFence(f"container {name} already belongs to lease {handle.fence}")

    def _note_start(self, container_id: str) -> datetime | None:
        """Remember the init process; return the engine's start instant, None before it."""
        inspected = self._engine.inspect(container_id)
        if inspected is None:
            raise ContainerGone("the container was removed")
        pid = inspected["State"]["Pid"]
        if pid:
            self._inits[container_id] = identify_container_init(pid, container_id)
        return parse_instant(inspected["State"]["StartedAt"])

    # Ending.

    def _signal(self, handle: ContainerHandle, name: str) -> None:
        """Send a signal to the container's init; one that does not run needs none."""
        with suppress(Conflict, ContainerGone):
            self._engine.signal(handle.container_id, name)

    def _exit_of(self, handle: ContainerHandle) -> ContainerExit | None:
        """How it ended, with its output; None while it runs."""
        inspected = self._engine.inspect(handle.container_id)
        if inspected is None:
            self._watcher.forget(handle.container_id)
            return GONE
        status = inspected["State"]["Status"]
        if status in LIVE_STATES and status != "created":
            return None
        output, truncated = self._output(handle.container_id)
        lost = self._watcher.engine_was_lost(handle.container_id)
        return exit_of_state(inspected, output, truncated, engine_was_lost=lost)

    def _output(self, container_id: str) -> tuple[bytes, bool]:
        """The tail of the output and whether there was more."""
        # So many lines hold at least so many bytes, and one more tells that there was more.
        lines = self._output_bytes + 1
        try:
            output = self._engine.output(container_id, lines)
        except SandboxError:
            # A run that has ended does not fail because its log cannot be read.
            return b"", False
        kept = output[-self._output_bytes :] if self._output_bytes else b""
        return kept, len(output) > len(kept)

    def _try_remove(self, container_id: str) -> bool:
        try:
            self._engine.remove(container_id)
        except ContainerGone:
            return True
        except Conflict:
            # Somebody else is removing it: not gone yet.
            return False
        return True

    # What the watcher asks.

    def _our_labels(self) -> list[str]:
        return [f"{LABEL_INSTANCE}={self._instance}", f"{LABEL_NODE}={self._node}"]

    def _states(self) -> dict[str, str]:
        return {item.handle.container_id: item.state for item in self.list_ours()}

    def _ended_ids(self) -> Iterator[str]:
        for event in self._engine.events(self._our_labels(), ["die", "destroy"]):
            yield event["Actor"]["ID"]


def _listed_handle(item: Mapping[str, Any]) -> ContainerHandle | None:
    names = item["Names"] or [item["Id"]]
    return handle_from_labels(item["Id"], names[0].lstrip("/"), item["Labels"])


def _died(init: ProcessIdentity) -> bool:
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    while init.is_alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_UP_S)
    return True
