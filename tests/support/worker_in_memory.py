"""A worker process's keeper with an engine and a database in memory, and time that runs fast."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from runs.leases import SessionOffer
from tests.support.lease_desk import LeaseDesk
from workers import execution, keeper
from workers.deadlines import write_warden_alive
from workers.execution import Limits, execute_run
from workers.keeper import Keeper, LeaseTiming
from workers.sandbox.base import ContainerHandle
from workers.sandbox.fake import FakeSandbox

# Everything that takes seconds in production, by module and name.
_PAUSES_S = [
    (keeper, "_LOOK_INTERVAL_S", 0.05),
    (keeper, "_ENFORCE_INTERVAL_S", 0.02),
    (keeper, "_RETRY_INTERVAL_S", 0.05),
    (keeper, "_UNKNOWN_RUN_PATIENCE_S", 0.3),
    (keeper, "_SWEEP_INTERVAL_S", 0.1),
    (execution, "_SLOT_PATIENCE_DUE_S", 0.3),
    (execution, "_SLOT_PATIENCE_PREPARED_S", 0.2),
    (execution, "_KILL_RETRY_S", 0.05),
    (execution, "_TIMEOUT_GRACE_S", 0.1),
    (execution, "_CANCEL_GRACE_S", 0.1),
]
LONG_LEASE = LeaseTiming(
    lease_s=60, heartbeat_s=0.2, worker_margin_s=2, warden_margin_s=1, prepare_lead_s=0.5
)
# Heartbeats every 0.2 s; without one, containers are frozen after 1 s and stopped after 1.96 s.
SHORT_LEASE = LeaseTiming(
    lease_s=2.5, heartbeat_s=0.2, worker_margin_s=1.5, warden_margin_s=0.3, prepare_lead_s=0.5
)


class WorkerInMemory:
    """A keeper on `desk` and `sandbox`; `signals` are those that it has sent to its process."""

    def __init__(
        self, desk: LeaseDesk, directory: Path, monkeypatch: pytest.MonkeyPatch, slots: int
    ) -> None:
        for module, name, seconds in _PAUSES_S:
            monkeypatch.setattr(module, name, seconds)
        self.desk = desk
        self.sandbox = FakeSandbox()
        self.directory = directory
        self.session_id = uuid4()
        self.signals: list[int] = []
        # There is no database here; another test of this process may have left a connection.
        monkeypatch.setattr(keeper, "close_old_connections", lambda: None)
        monkeypatch.setattr("os.kill", lambda pid, number: self.signals.append(number))
        self._slots = slots
        self._threads: list[threading.Thread] = []
        self.became: dict[UUID, str] = {}
        write_warden_alive(directory, node="node", engine_answers=True)

    def open(self, timing: LeaseTiming = LONG_LEASE) -> "WorkerInMemory":
        """Start the keeper's threads."""
        offer = SessionOffer(
            session_id=self.session_id, node="node", celery_name="worker@node", pid=1,
            queue=f"runs.{self.session_id}", region="default", tiers=["container"],
            slots=self._slots, prepared_limit=self._slots,
        )  # fmt: skip
        self.keeper = Keeper(offer, timing, self.sandbox, self.directory, self._execute)
        self.keeper.open()
        return self

    def run(self, run_id: UUID) -> str:
        """What its Celery task does: one run to its end, in this thread."""
        return self._execute(run_id)

    def run_in_thread(self, run_id: UUID) -> None:
        """The same in a thread; `became[run_id]` says in the end what became of it."""
        thread = threading.Thread(target=self._execute, args=[run_id], daemon=True)
        self._threads.append(thread)
        thread.start()

    def _execute(self, run_id: UUID) -> str:
        word = execute_run(self.keeper, self.sandbox, run_id, Limits(output_tail_bytes=8))
        self.became[run_id] = word
        return word

    def containers(self, state: str = "") -> list[ContainerHandle]:
        """Handles of the engine's containers, in the given state or any."""
        with self.sandbox.engine.lock:
            return [
                each.handle
                for each in self.sandbox.engine.containers.values()
                if state in ("", each.state)
            ]

    def asked(self, method: str) -> int:
        """How often the engine was asked for `method`."""
        return sum(name == method for name, _ in list(self.sandbox.calls))

    def free_slots(self) -> int:
        """How many slots are free now."""
        taken = 0
        while self.keeper.slots.acquire(blocking=False):
            taken += 1
        for _ in range(taken):
            self.keeper.slots.release()
        return taken

    def end_stories(self) -> None:
        """End every story by force; engine and database answer again."""
        self.sandbox.engine.silent = False
        for call in ("go", "complete", "heartbeat", "look"):
            self.desk.fail(call, 0)
        self.keeper.give_up()
        until = time.monotonic() + 5
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            assert not thread.is_alive(), "a story hangs"


@contextlib.contextmanager
def worker_in_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> Iterator[WorkerInMemory]:
    """A worker, not yet opened; closed at the end if it was."""
    desk = LeaseDesk()
    desk.install(monkeypatch)
    worker = WorkerInMemory(desk, directory, monkeypatch, slots)
    yield worker
    if hasattr(worker, "keeper"):
        worker.end_stories()
        worker.keeper.close(timeout_s=5)
