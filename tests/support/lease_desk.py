"""`runs.leases` in memory, for the stories of a worker: the same answers, and failures on demand.

Owns the rule that it answers as the database does wherever a worker could tell; the statements
themselves are tested on a real one.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.utils import OperationalError

from runs import leases
from runs.domain.run_id import make_run_id, to_milliseconds
from runs.leases import (
    Beat,
    CompleteAnswer,
    Completion,
    GoAnswer,
    GoReply,
    GoRequest,
    Leased,
    OwnedRun,
    Refused,
    RunRef,
    SessionOffer,
    Start,
)

TASK = {"image": "scheduler-demo:latest", "args": ["true"], "env": {}, "timeout_s": 60}
_NAMES = (
    "open_session", "heartbeat", "look", "drain", "end_session", "lease", "hand_back", "go",
    "record_starts", "complete",
)  # fmt: skip


@dataclass
class Row:
    """A run as the database has it."""

    leased: Leased
    status: str = "queued"
    owner: UUID | None = None
    ready_at: float = field(default_factory=time.monotonic)
    placed_at: float = field(default_factory=time.monotonic)
    cancel_requested: bool = False


class LeaseDesk:
    """The database's side. `fail(call, n)`: its next n calls reach nobody; `lose(call, n)`: their
    answers get lost on the way back, after they were carried out."""

    def __init__(self) -> None:
        self.rows: dict[UUID, Row] = {}
        self.calls: list[str] = []
        self.largest: dict[str, int] = defaultdict(int)  # the most that one call asked for
        self.completions: list[Completion] = []
        self.starts: list[Start] = []
        self.go_answers: dict[UUID, list[GoReply]] = defaultdict(list)
        self.session_is_alive = True
        self.draining = False
        self.accepting: tuple[bool, str] = (True, "")
        self.ended = False
        self._failures: dict[str, int] = defaultdict(int)
        self._losses: dict[str, int] = defaultdict(int)
        self._fences = itertools.count(1)
        self._lock = threading.RLock()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the module's functions until the test ends."""
        for name in _NAMES:
            monkeypatch.setattr(leases, name, self._over_the_wire(name, getattr(self, name)))

    def fail(self, call: str, times: int = 1) -> None:
        self._failures[call] = times

    def lose(self, call: str, times: int = 1) -> None:
        self._losses[call] = times

    def _over_the_wire(self, name: str, function: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.calls.append(name)
                size = len(args[-1]) if isinstance(args[-1], Sequence) else 1
                self.largest[name] = max(self.largest[name], size)
                if self._failures[name] > 0:
                    self._failures[name] -= 1
                    raise OperationalError("the connection is cut")
                answer = function(*args, **options)
                if self._losses[name] > 0:
                    self._losses[name] -= 1
                    raise OperationalError("the connection is cut before the answer")
                return answer

        return called

    # --- what a test sets up ------------------------------------------------------------------

    def place(self, owner: UUID, *, ready_in_s: float = -1, **task: Any) -> Row:
        """A run placed on the session; `task` overrides fields of its task."""
        now = to_milliseconds(datetime.now(UTC))
        run_id = make_run_id(now, uuid4().bytes[:10])
        leased = Leased(
            run_id=run_id, scheduled_for=now, job_id=uuid4(), tenant_id=uuid4(), tier="container",
            attempt=1, fence=0, ready_in_s=ready_in_s, task=TASK | task, task_version=1,
            allow_root=False,
        )  # fmt: skip
        row = Row(leased, owner=owner, ready_at=time.monotonic() + ready_in_s)
        self.rows[run_id] = row
        return row

    def give_away(self, row: Row) -> None:
        """Somebody else has the run now."""
        with self._lock:
            row.status, row.owner = "leased", uuid4()
            row.leased = replace(row.leased, fence=next(self._fences))

    def completion_of(self, row: Row) -> Completion | None:
        return next((c for c in self.completions if c.run_id == row.leased.run_id), None)

    # --- runs.leases --------------------------------------------------------------------------

    def open_session(self, offer: SessionOffer, *, accepting: bool) -> None:
        self.accepting = (accepting, "")

    def heartbeat(self, session_id: UUID, *, accepting: bool, reason: str) -> Beat:
        return self._beat(session_id, accepting, reason)

    def look(self, session_id: UUID, *, accepting: bool, reason: str) -> Beat:
        return self._beat(session_id, accepting, reason)

    def _beat(self, session_id: UUID, accepting: bool, reason: str) -> Beat:
        if not self.session_is_alive:
            return Beat(alive=False)
        self.accepting = (accepting, reason)
        owned = [
            OwnedRun(
                row.leased.run_id, row.leased.scheduled_for, row.leased.job_id, row.status,
                row.leased.fence, row.leased.attempt, row.cancel_requested,
                row.ready_at - time.monotonic(), time.monotonic() - row.placed_at,
            )
            for row in self.rows.values()
            if row.owner == session_id
        ]  # fmt: skip
        return Beat(alive=True, draining=self.draining, owned=owned)

    def drain(self, session_id: UUID) -> None:
        self.draining = True

    def end_session(self, session_id: UUID) -> bool:
        self.ended = not any(
            row.owner == session_id and row.status == "running" for row in self.rows.values()
        )
        return self.ended

    def lease(self, session_id: UUID, refs: Sequence[RunRef]) -> dict[UUID, Leased | Refused]:
        answers: dict[UUID, Leased | Refused] = {}
        for ref in refs:
            row = self.rows.get(ref.run_id)
            if row is None or row.status != "queued" or row.owner != session_id:
                answers[ref.run_id] = Refused(ref.run_id, row.status if row else "gone")
                continue
            row.status = "leased"
            row.leased = replace(
                row.leased, fence=next(self._fences), ready_in_s=row.ready_at - time.monotonic()
            )
            answers[ref.run_id] = row.leased
        return answers

    def hand_back(self, session_id: UUID, runs: Sequence[Leased]) -> set[UUID]:
        handed_back = set()
        for run in runs:
            row = self.rows.get(run.run_id)
            if row and self._holds(row, session_id, run.fence) and row.status == "leased":
                row.status, row.owner = "queued", None
                handed_back.add(run.run_id)
        return handed_back

    def go(self, session_id: UUID, node: str, requests: Sequence[GoRequest]) -> dict[UUID, GoReply]:
        return {request.run_id: self._go(session_id, request) for request in requests}

    def _go(self, session_id: UUID, request: GoRequest) -> GoReply:
        row = self.rows.get(request.run_id)
        if row is None or not self._holds(row, session_id, request.fence):
            return GoReply(GoAnswer.LEASE_LOST)
        if row.status == "running":
            return GoReply(GoAnswer.GO)
        planned = self.go_answers[request.run_id]
        reply = planned.pop(0) if planned else GoReply(GoAnswer.GO)
        if reply.answer is GoAnswer.GO:
            row.status = "running"
        if reply.answer in (GoAnswer.BLOCK, GoAnswer.SKIP):
            row.status, row.owner = reply.answer.value, None
        return reply

    def record_starts(self, session_id: UUID, starts: Sequence[Start]) -> int:
        self.starts += starts
        return len(starts)

    def complete(
        self, session_id: UUID, node: str, completions: Sequence[Completion]
    ) -> dict[UUID, CompleteAnswer]:
        return {each.run_id: self._complete(session_id, each) for each in completions}

    def _complete(self, session_id: UUID, completion: Completion) -> CompleteAnswer:
        row = self.rows.get(completion.run_id)
        if row is None or not self._holds(row, session_id, completion.fence):
            repeated = completion in self.completions
            return CompleteAnswer.OK if repeated else CompleteAnswer.STALE_FENCE
        self.completions.append(completion)
        row.status, row.owner = "ended", None
        return CompleteAnswer.OK

    @staticmethod
    def _holds(row: Row, session_id: UUID, fence: int) -> bool:
        return row.owner == session_id and row.leased.fence == fence
