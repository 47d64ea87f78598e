"""The node's warden: a process of its own that kills containers whose lease has run out.

Owns the rule that no container outlives its session's deadline, whether the worker that made it
is dead, frozen or unable to reach anybody, and whether or not the engine answers.

It asks no database and no network. What it believes is a file per session (`workers.deadlines`);
what it may touch carries this instance's and this node's labels; what it kills without the engine
is an init process that it has verified itself.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from scheduler_project.lib.events import emit
from workers.deadlines import (
    SessionDeadline,
    boottime_s,
    read_deadlines,
    remove_deadline,
    write_warden_alive,
)
from workers.processes import ProcessIdentity, identify_container_init
from workers.sandbox.base import NodeEngine, OwnedContainer, SandboxError
from workers.sandbox.docker import DockerSandbox

# Between two rounds when nothing calls for one.
ROUND_S = 1.0
# A worker writes its file before its first container, so a container without one has lost it;
# the grace is for a directory that is just being cleared and filled again.
NO_FILE_GRACE_S = 3.0
# A container that ended by itself stays this long past its deadline while its worker is frozen:
# once awake, the worker may still report it.
EXITED_KEEP_S = 600.0
# A file without containers is litter this long after its deadline; a worker that comes back
# writes it anew with its first heartbeat.
FILE_KEEP_S = 60.0
# Each call to the engine; the kernel needs none of it, so the engine need not be waited for.
CALL_TIMEOUT_S = 2.0
REMOVAL_THREADS = 4


@dataclass(frozen=True)
class _Init:
    """A running container's init, recorded while the engine could name it."""

    session_id: UUID
    process: ProcessIdentity | None


@dataclass
class Round:
    """What one round did. `struck`: inits killed without the engine."""

    struck: int = 0
    removed: int = 0
    files_removed: int = 0
    engine_answers: bool = True

    @property
    def did_something(self) -> bool:
        return bool(self.struck or self.removed or self.files_removed)


class Warden:
    """One node's warden. `round_once` is a whole round; `run` repeats it until stopped."""

    def __init__(
        self,
        engine: NodeEngine,
        directory: Path,
        *,
        node: str,
        now: Callable[[], float] = boottime_s,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._node = node
        self._now = now
        # Deadlines last read; one whose file became unreadable stays until it passes.
        self._deadlines: dict[UUID, SessionDeadline] = {}
        self._inits: dict[str, _Init] = {}
        self._first_seen: dict[str, float] = {}
        self._struck: set[str] = set()
        self._removals: dict[str, Future[bool]] = {}
        self._pool = ThreadPoolExecutor(REMOVAL_THREADS, thread_name_prefix="warden-remove")
        self._wake = threading.Event()
        self._engine_answers = True

    def run(self, stop: threading.Event) -> None:
        """Rounds until `stop`: each second, at each deadline, and when a dead session stirs."""
        threading.Thread(
            target=self._follow, args=(stop,), name="warden-follow", daemon=True
        ).start()
        while not stop.is_set():
            done = self._round()
            if done.did_something:
                emit("warden.round", "Containers past their lease were ended.",
                     struck=done.struck, removed=done.removed, files_removed=done.files_removed,
                     engine_answers=done.engine_answers)  # fmt: skip
            self._wake.wait(self._pause_s())
            self._wake.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _round(self) -> Round:
        try:
            return self.round_once()
        except Exception:
            # A warden that dies of one bad round kills nothing in the next; without a fresh
            # sign of life workers take no new leases meanwhile.
            logging.getLogger(__name__).exception("a round failed")
            return Round()

    def wake(self) -> None:
        """Ask for a round now."""
        self._wake.set()

    def round_once(self) -> Round:
        """One round.

        1. Read the deadlines. 2. Kill the recorded inits of sessions that are over: this needs
        no engine and comes first, so that a hung one delays nothing. 3. List the containers and
        record new inits. 4. Kill those too. 5. Remove what is over, through the engine. 6. Clear
        files without containers. We say that we live before and after asking the engine, which
        may take a while to not answer.
        """
        done = Round()
        self._read()
        self._strike(done)
        self._say_alive()
        containers = self._look(done)
        self._say_alive()
        if containers is not None:
            self._strike(done)
            done.removed = self._remove_over(containers)
            done.files_removed = self._clear_files({each.handle.session_id for each in containers})
        return done

    def _say_alive(self) -> None:
        write_warden_alive(self._directory, node=self._node, engine_answers=self._engine_answers)

    def _read(self) -> None:
        found = read_deadlines(self._directory)
        for session_id in set(self._deadlines) - set(found):
            del self._deadlines[session_id]
        for session_id, deadline in found.items():
            # An unreadable file is no news: it neither extends the deadline nor ends it early.
            if deadline is not None:
                self._deadlines[session_id] = deadline

    def _is_over(self, session_id: UUID) -> bool:
        """Whether nothing of this session may run: no deadline, a past one, or a dead process."""
        deadline = self._deadlines.get(session_id)
        if deadline is None:
            return True
        return self._now() >= deadline.warden_deadline or deadline.process_is_gone()

    def _may_end(self, container_id: str, session_id: UUID) -> bool:
        if not self._is_over(session_id):
            return False
        # By our own clock since we first saw it, for the engine's dates are wall clock.
        age_s = self._now() - self._first_seen.setdefault(container_id, self._now())
        return session_id in self._deadlines or age_s >= NO_FILE_GRACE_S

    def _strike(self, done: Round) -> None:
        for container_id, init in self._inits.items():
            if container_id in self._struck or init.process is None:
                continue
            if self._may_end(container_id, init.session_id) and init.process.kill():
                self._struck.add(container_id)
                done.struck += 1
                emit("warden.killed", "A container was killed: its lease had run out.",
                     level=logging.WARNING, container=container_id[:12],
                     session=init.session_id)  # fmt: skip

    def _look(self, done: Round) -> list[OwnedContainer] | None:
        """Our containers as the engine lists them, None when it does not answer."""
        try:
            containers = self._engine.list_ours()
            self._forget_all_but({each.handle.container_id for each in containers})
            for each in containers:
                self._note(each)
        except SandboxError as error:
            if self._engine_answers:
                emit("warden.engine_silent", "The container engine does not answer.",
                     level=logging.WARNING, error=str(error))  # fmt: skip
            done.engine_answers = self._engine_answers = False
            return None
        self._engine_answers = True
        return containers

    def _note(self, container: OwnedContainer) -> None:
        container_id = container.handle.container_id
        self._first_seen.setdefault(container_id, self._now())
        if container_id in self._inits or container.state not in {"running", "paused"}:
            return
        pid = self._engine.init_pid(container_id)
        process = identify_container_init(pid, container_id) if pid else None
        self._inits[container_id] = _Init(container.handle.session_id, process)

    def _forget_all_but(self, container_ids: set[str]) -> None:
        for known in (self._inits, self._first_seen):
            for container_id in set(known) - container_ids:
                del known[container_id]
        self._struck &= container_ids

    def _remove_over(self, containers: Sequence[OwnedContainer]) -> int:
        """Remove what is over; wait no longer than one call may take, the rest goes on."""
        for each in containers:
            container_id = each.handle.container_id
            if container_id not in self._removals and self._may_remove(each):
                self._removals[container_id] = self._pool.submit(self._remove, each)
        finished, _ = wait(self._removals.values(), timeout=CALL_TIMEOUT_S)
        self._removals = {
            key: removal for key, removal in self._removals.items() if removal not in finished
        }
        return sum(removal.result() for removal in finished)

    def _may_remove(self, container: OwnedContainer) -> bool:
        handle = container.handle
        if not self._may_end(handle.container_id, handle.session_id):
            return False
        deadline = self._deadlines.get(handle.session_id)
        ended_by_itself = container.has_ended and handle.container_id not in self._struck
        if not ended_by_itself or deadline is None or deadline.process_is_gone():
            return True
        return self._now() >= deadline.warden_deadline + EXITED_KEEP_S

    def _remove(self, container: OwnedContainer) -> bool:
        try:
            self._engine.remove(container.handle)
        except SandboxError as error:
            emit("warden.not_removed", "A container could not be removed yet.",
                 level=logging.WARNING, name=container.handle.name, error=str(error))  # fmt: skip
            return False
        return True

    def _clear_files(self, sessions_with_containers: set[UUID]) -> int:
        """Remove the files of sessions that are over for good and have no container left."""
        cleared = 0
        for session_id, deadline in list(self._deadlines.items()):
            long_past = self._now() >= deadline.warden_deadline + FILE_KEEP_S
            dead = long_past or deadline.process_is_gone()
            if not dead or session_id in sessions_with_containers:
                continue
            # Looked at once more: a worker that woke up a moment ago has written it anew.
            if read_deadlines(self._directory).get(session_id) == deadline:
                remove_deadline(self._directory, session_id)
                cleared += 1
        return cleared

    def _pause_s(self) -> float:
        """Until the next deadline, and a second at most."""
        now = self._now()
        ahead = [each.warden_deadline - now for each in self._deadlines.values()]
        return min([ROUND_S, *(pause for pause in ahead if pause > 0)])

    def _follow(self, stop: threading.Event) -> None:
        """Wake the rounds when a session that is over makes or starts a container."""
        while not stop.is_set():
            with suppress(SandboxError):
                for handle in self._engine.changes():
                    # A live session's containers need no round each: that would cost a list call
                    # for every run of the node.
                    if self._is_over(handle.session_id):
                        self.wake()
            stop.wait(ROUND_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m workers.warden`: run until TERM or INT."""
    parser = argparse.ArgumentParser(prog="python -m workers.warden", description=__doc__)
    parser.add_argument("--deadlines", type=Path, required=True, metavar="DIR",
                        help="where workers write their deadlines; on tmpfs")  # fmt: skip
    parser.add_argument("--node", required=True, help="the node's name, as its workers say it")
    parser.add_argument("--instance", required=True, help="the stack's name, as in its labels")
    parser.add_argument("--docker-host", help="the engine's URL; default DOCKER_HOST or local")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO,
                        format="%(asctime)s %(levelname)s %(message)s")  # fmt: skip
    stop = threading.Event()
    sandbox = DockerSandbox(
        instance=options.instance,
        node=options.node,
        docker_host=options.docker_host,
        call_timeout_s=CALL_TIMEOUT_S,
    )
    warden = Warden(sandbox, options.deadlines, node=options.node)

    def leave(*_: object) -> None:
        stop.set()
        warden.wake()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    emit("warden.started", "The warden watches.", node=options.node, instance=options.instance)
    warden.run(stop)
    sandbox.close()
    emit("warden.stopped", "The warden has stopped.", node=options.node)
    return 0


if __name__ == "__main__":
    sys.exit(main())
