"""The keeper of one worker process: its session, its lease, and all that it says to the database.

The lease is timed with CLOCK_BOOTTIME from *before* a heartbeat is sent, and an unknown answer
extends nothing. A thread that does no database I/O stops every run when the lease nears its end.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from django.db import close_old_connections

from runs import leases
from runs.domain.outcome import OutcomeCode, StopReason, outcome
from runs.domain.run_id import scheduled_for_of
from runs.domain.state import RunStatus
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
from runs.wakeups import wake_dispatcher
from scheduler_project.lib.duty import Duty
from scheduler_project.lib.events import emit
from workers.batching import Batcher, UnknownOutcome
from workers.deadlines import (
    boottime_s,
    remove_deadline,
    warden_is_alive,
    write_deadline,
)
from workers.freezer import Freezer, StartedContainer, freeze_times
from workers.sandbox.base import ContainerHandle, Sandbox, SandboxError

Answer = TypeVar("Answer")

_LOOK_INTERVAL_S = 1.0
_ENFORCE_INTERVAL_S = 0.1
_RETRY_INTERVAL_S = 0.5
# A run that the rows give us and no thread of ours knows: its message, or our thread, is lost.
_UNKNOWN_RUN_PATIENCE_S = 3.0
_SWEEP_INTERVAL_S = 15.0
# Answers to a run that asks for its go, after which somebody else may have its slot.
_GIVES_UP_ITS_SLOT = {GoAnswer.SKIP, GoAnswer.BLOCK, GoAnswer.LEASE_LOST}


@dataclass(frozen=True)
class LeaseTiming:
    """The lease arithmetic (architecture §6), in seconds."""

    lease_s: float
    heartbeat_s: float
    worker_margin_s: float
    warden_margin_s: float
    prepare_lead_s: float


@dataclass
class LocalRun:
    """A run that a thread of this process works on."""

    run_id: UUID
    stop: threading.Event = field(default_factory=threading.Event)
    stop_reason: StopReason | None = None
    # Set while the run has not started: it can be handed back without loss.
    leave: threading.Event = field(default_factory=threading.Event)
    fence: int = 0
    leased_at: float = 0.0
    # From the start on: what can be frozen when the lease nears its end.
    container: StartedContainer | None = None

    def began(self, handle: ContainerHandle) -> StartedContainer:
        """Remember the container that was started."""
        self.container = StartedContainer(handle, self.stop)
        return self.container

    def holds(self, fence: int) -> None:
        """Remember the lease; rows read before this instant know nothing of it."""
        self.fence = fence
        self.leased_at = time.monotonic()

    def stop_for(self, reason: StopReason) -> None:
        """Stop the run; the first reason stands, but a lost lease overrules a cancel."""
        if self.stop_reason is None or reason is StopReason.LEASE_LOST:
            self.stop_reason = reason
        self.leave.set()
        self.stop.set()


class Keeper:
    """Session, lease and batches of one worker process."""

    def __init__(
        self,
        offer: SessionOffer,
        timing: LeaseTiming,
        sandbox: Sandbox,
        deadlines_dir: Path,
        execute: Callable[[UUID], str],
    ) -> None:
        """`execute` runs one run to its end; the keeper calls it for runs without a message."""
        self.offer = offer
        self.slots = threading.BoundedSemaphore(offer.slots)
        self._timing = timing
        self._sandbox = sandbox
        self._deadlines_dir = deadlines_dir
        self._execute = execute
        self._lock = threading.Lock()
        self._local: dict[UUID, LocalRun] = {}
        self._unknown_since: dict[UUID, float] = {}
        # Runs that a thread of the finders was asked to see to, until it has.
        self._found: set[UUID] = set()
        self._worker_deadline = 0.0
        self._renewed_at = 0.0
        # When a renewal last came after the deadline that it was to move (CLOCK_BOOTTIME).
        self._gap_ended_at = 0.0
        self._engine_answers = True
        self._deadline_is_written = True
        self._draining = threading.Event()
        self._lost = threading.Event()
        # Set when this process has to end: nothing waits any longer for database or engine.
        self.given_up = threading.Event()
        self._closed = threading.Event()
        session_id, node = offer.session_id, offer.node
        self._leases: Batcher[RunRef, Leased | Refused] = Batcher(
            "lease", lambda refs: _ordered(refs, leases.lease(session_id, refs))
        )
        self._goes: Batcher[GoRequest, GoReply] = Batcher(
            "go", lambda requests: _go(session_id, node, requests)
        )
        self._completions: Batcher[Completion, CompleteAnswer] = Batcher(
            "complete", lambda ends: _complete(session_id, node, ends)
        )
        self._starts: Batcher[Start, None] = Batcher(
            "start", lambda starts: _record_starts(session_id, starts), gather_s=0.25
        )
        self._returns: Batcher[Leased, bool] = Batcher(
            "hand-back",
            lambda runs: _hand_back(session_id, runs),
        )
        self._batchers: list[Batcher[Any, Any]] = [
            self._leases, self._goes, self._completions, self._starts, self._returns
        ]  # fmt: skip
        # Tried again each second after a miss: a longer pause may be what the lease has left.
        self._heart = Duty(
            "heartbeat",
            self._beat_once,
            interval_s=_LOOK_INTERVAL_S,
            longest_backoff_s=_LOOK_INTERVAL_S,
        )
        self._duties = [
            self._heart,
            Duty("engine-health", self._check_health, interval_s=2.0),
            Duty("leftovers", self._sweep, interval_s=_SWEEP_INTERVAL_S),
        ]
        self._freezer = Freezer(sandbox, offer.slots)
        self._enforcer = threading.Thread(target=self._enforce, name="enforcer", daemon=True)
        self._finders = ThreadPoolExecutor(
            max_workers=offer.slots + offer.prepared_limit + 1, thread_name_prefix="found-run"
        )

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Register the session, write its deadline file, and start the threads."""
        sent_at = boottime_s()
        leases.open_session(self.offer, accepting=self._not_accepting_reason() == "")
        self._extend(sent_at)
        for batcher in self._batchers:
            batcher.start()
        for duty in self._duties:
            duty.start()
        self._enforcer.start()
        emit("worker.opened", "A worker session has opened.", session=self.offer.session_id,
             slots=self.offer.slots, queue=self.offer.queue)  # fmt: skip

    def drain(self) -> None:
        """Take nothing new and hand back what has not started; running runs go on."""
        self._draining.set()
        self._heart.wake()
        for local in self._known():
            local.leave.set()

    def stop_running(self, reason: StopReason) -> None:
        """Stop every run of this process."""
        for local in self._known():
            local.stop_for(reason)

    def give_up(self) -> None:
        """Stop every run, and wait for nothing any more: what can't be confirmed at once is left to
        the warden and the reaper."""
        self.given_up.set()
        self.stop_running(StopReason.LEASE_LOST)

    def close(self, timeout_s: float = 10.0) -> None:
        """Say the last things, end the session and forget its deadline. Call once, at the end."""
        self.drain()  # told nobody yet when Celery ends by an error of its own
        self._finders.shutdown(wait=True, cancel_futures=True)
        threads: list[Batcher[Any, Any] | Duty] = [*self._batchers, *self._duties]
        for each in threads:  # all are told before the first is waited for
            each.stop(0)
        until = time.monotonic() + timeout_s
        for each in threads:
            each.stop(max(0.0, until - time.monotonic()))
        self._closed.set()
        self._freezer.close()
        try:
            # This thread's connection is as old as the process, and may be dead by now.
            close_old_connections()
            ended = leases.end_session(self.offer.session_id)
        except Exception as error:
            ended = False
            emit("worker.end_unknown", "The session's end was not recorded; its lease ends it.",
                 error=str(error))  # fmt: skip
        if ended:
            remove_deadline(self._deadlines_dir, self.offer.session_id)
        emit("worker.closed", "A worker session has closed.", session=self.offer.session_id)

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is taken."""
        return self._draining.is_set()

    @property
    def is_accepting(self) -> bool:
        """Whether this worker may be given runs."""
        return self._not_accepting_reason() == ""

    @property
    def unused_slots(self) -> int:
        """How many slots no run holds."""
        return self.slots._value

    # --- runs of this process -----------------------------------------------------------------

    def adopt(self, run_id: UUID) -> LocalRun | None:
        """Register a run for the calling thread; None when another thread has it already."""
        with self._lock:
            if run_id in self._local or self._draining.is_set():
                return None
            self._local[run_id] = local = LocalRun(run_id)
            self._unknown_since.pop(run_id, None)
            return local

    def forget(self, run_id: UUID) -> None:
        """The calling thread is done with the run."""
        with self._lock:
            self._local.pop(run_id, None)

    def _known(self) -> list[LocalRun]:
        with self._lock:
            return list(self._local.values())

    # --- questions to the database, in batches ---------------------------------------------------

    def lease(self, run_id: UUID) -> Leased | Refused:
        """Ask for a lease. An unknown answer is a refusal: the look finds the run if it is ours."""
        try:
            return self._leases.ask(RunRef(run_id, scheduled_for_of(run_id)))
        except UnknownOutcome:
            return Refused(run_id, "unknown_outcome")

    def go(self, request: GoRequest, local: LocalRun) -> GoReply:
        """Ask for the go, again after an unknown answer, until it is known or the lease is lost."""
        while True:
            try:
                return self._goes.ask(request)
            except UnknownOutcome:
                if local.stop.wait(_RETRY_INTERVAL_S):
                    return GoReply(GoAnswer.LEASE_LOST)

    def lease_is_current(self) -> bool:
        """Whether the lease holds by this process's own clock, which no thread must outrun."""
        return boottime_s() < self._worker_deadline

    def lease_has_held_since(self, began: float) -> bool:
        """Whether it holds now and has without a gap since `began` (CLOCK_BOOTTIME, seconds).

        A process that was frozen past its deadline may renew in time for the database, and yet too
        late for the warden, which has killed its containers meanwhile.
        """
        # In this order: whoever sees the new deadline sees the gap before it.
        return self.lease_is_current() and self._gap_ended_at < began

    def complete(self, completion: Completion) -> CompleteAnswer:
        """Report an end, again after an unknown answer: the result of a finished run is true."""
        while True:
            try:
                return self._completions.ask(completion)
            except UnknownOutcome:
                if self.given_up.wait(_RETRY_INTERVAL_S):
                    return CompleteAnswer.STALE_FENCE

    def started(self, lease: Leased, started_at: datetime) -> None:
        """Note a start; not waited for, as the completion carries it again."""
        self._starts.submit(Start(lease.run_id, lease.scheduled_for, lease.fence, started_at))

    def hand_back(self, lease: Leased) -> None:
        """Put a leased run back into the fair queue; unknown: the reaper or the look does it."""
        try:
            self._returns.ask(lease)
        except UnknownOutcome as error:
            emit("worker.hand_back_unknown", "A hand-back was not confirmed.",
                 run_id=lease.run_id, error=str(error))  # fmt: skip

    # --- lease --------------------------------------------------------------------------------

    def _beat_once(self) -> dict[str, int]:
        """Look at our rows; renew the lease when it is time (or a renewal was missed)."""
        reason = self._not_accepting_reason()
        asked_at = time.monotonic()
        sent_at = boottime_s()
        if sent_at - self._renewed_at >= self._timing.heartbeat_s:
            beat = leases.heartbeat(self.offer.session_id, accepting=reason == "", reason=reason)
            if beat.alive:
                self._extend(sent_at)
        else:
            beat = leases.look(self.offer.session_id, accepting=reason == "", reason=reason)
        if not beat.alive:
            return self._lease_is_lost()
        if self._draining.is_set() and not beat.draining:
            leases.drain(self.offer.session_id)
        elif beat.draining and not self._draining.is_set():  # asked for by an operator
            self.drain()
        return self._act_on(beat, asked_at)

    def _extend(self, sent_at: float) -> None:
        """The database has extended the lease at some time after `sent_at`."""
        self._renewed_at = sent_at
        now = boottime_s()
        if now >= self._worker_deadline:
            self._gap_ended_at = now
        self._worker_deadline = sent_at + self._timing.lease_s - self._timing.worker_margin_s
        try:
            write_deadline(
                self._deadlines_dir,
                self.offer.session_id,
                os.getpid(),
                worker_deadline=self._worker_deadline,
                warden_deadline=sent_at + self._timing.lease_s - self._timing.warden_margin_s,
            )
        except OSError as error:
            # The warden will end our containers at the deadline that it knows: take no new ones.
            emit("worker.deadline_not_written", "The deadline file can't be written.",
                 level=logging.ERROR, error=str(error))  # fmt: skip
            self._deadline_is_written = False
        else:
            self._deadline_is_written = True

    def _lease_is_lost(self) -> dict[str, int]:
        """The session is over: stop everything and end, so that a new life begins."""
        if self._lost.is_set():  # said once: each further signal would begin the end anew
            return {}
        self._lost.set()
        emit("worker.lease_lost", "The session's lease is lost; its containers are stopped.",
             session=self.offer.session_id)  # fmt: skip
        self._draining.set()
        self.give_up()
        os.kill(os.getpid(), signal.SIGTERM)
        return {"lease_lost": 1}

    def _enforce(self) -> None:
        """When the lease nears its end, have what runs frozen and stop the rest; later stop all.

        No database here, no disk, and nothing that waits for the engine.
        """
        while not self._closed.wait(_ENFORCE_INTERVAL_S):
            self._keep_deadline(boottime_s())

    def _keep_deadline(self, now: float) -> None:
        known = self._known()
        room_s = self._timing.worker_margin_s - self._timing.warden_margin_s
        times = freeze_times(self._worker_deadline, self._worker_deadline + room_s)
        started = [local.container for local in known if local.container is not None]
        doomed = self._freezer.enforce(started, now, times)
        for local in known:
            not_started = local.container is None and now >= times.freeze_at
            if not_started or local.container in doomed:
                local.stop_for(StopReason.LEASE_LOST)

    def _act_on(self, beat: Beat, asked_at: float) -> dict[str, int]:
        owned = {run.run_id: run for run in beat.owned}
        stopped = self._stop_lost_and_cancelled(owned, asked_at)
        now = time.monotonic()
        unknown = [run for run in beat.owned if self._is_unknown(run, now)]
        for run in unknown:
            with self._lock:
                self._unknown_since.pop(run.run_id, None)
                self._found.add(run.run_id)
            self._finders.submit(self._see_to, run)
        return {"found": len(unknown), "stopped": stopped}

    def _stop_lost_and_cancelled(self, owned: dict[UUID, OwnedRun], asked_at: float) -> int:
        """Stop what the rows no longer give us, and what a customer has cancelled.

        A run leased after we asked is passed over: its row was read from before its lease, and
        would look as if somebody else had taken it.
        """
        stopped = 0
        for local in self._known():
            if not local.fence or local.leased_at >= asked_at or local.stop.is_set():
                continue
            run = owned.get(local.run_id)
            if run is None or run.fence != local.fence:
                local.stop_for(StopReason.LEASE_LOST)
                stopped += 1
            elif run.cancel_requested:
                local.stop_for(StopReason.CANCEL)
                stopped += 1
        return stopped

    def _is_unknown(self, run: OwnedRun, now: float) -> bool:
        """Whether the rows give us a run that should be under way here and is not."""
        with self._lock:
            if run.run_id in self._local or run.run_id in self._found or self._draining.is_set():
                self._unknown_since.pop(run.run_id, None)
                return False
        if run.status == RunStatus.QUEUED:
            # Its message should have come when it was placed, or later when it became time to
            # prepare: a second is a hint lost. Sooner, we would only race with the message.
            return (
                run.placed_ago_s >= _LOOK_INTERVAL_S
                and run.ready_in_s <= self._timing.prepare_lead_s - _LOOK_INTERVAL_S
            )
        since = self._unknown_since.setdefault(run.run_id, now)
        return now - since >= _UNKNOWN_RUN_PATIENCE_S

    def _see_to(self, run: OwnedRun) -> None:
        """Run or settle a run that no thread had; what fails is found again a little later."""
        try:
            if run.status == RunStatus.QUEUED:
                self._execute(run.run_id)
            else:
                self._settle_orphan(run)
        except Exception:
            logging.getLogger(__name__).exception("run %s was found and failed", run.run_id)
        finally:
            with self._lock:
                self._found.discard(run.run_id)

    def _settle_orphan(self, run: OwnedRun) -> None:
        """A leased or running row of ours that no thread knows: give it up in order.

        An answer was lost on its way, or a thread died. Its container is made sure to be dead
        before the row says that others may run it.
        """
        for container in self._sandbox.list_ours(self.offer.session_id):
            # Of this lease or an older one: a newer lease's container has its own thread.
            if container.handle.run_id == run.run_id and container.handle.fence <= run.fence:
                self._sandbox.remove(container.handle)
        emit("worker.orphan", "A run of ours was not under way here and was given up.",
             run_id=run.run_id, status=run.status)  # fmt: skip
        self.complete(
            Completion(
                run_id=run.run_id,
                scheduled_for=run.scheduled_for,
                job_id=run.job_id,
                fence=run.fence,
                outcome=outcome(OutcomeCode.LEASE_EXPIRED, "the worker lost track of this attempt"),
            )
        )

    # --- health -------------------------------------------------------------------------------

    def _check_health(self) -> dict[str, int]:
        answers = self._sandbox.ping()
        if answers != self._engine_answers:
            emit("worker.engine", "The container engine answers again." if answers
                 else "The container engine does not answer.", answers=answers)  # fmt: skip
        self._engine_answers = answers
        return {}

    def _sweep(self) -> dict[str, int]:
        """Remove this session's containers that no run of this process works with any more.

        A removal that failed, or a creation whose answer was lost, leaves one behind, and the
        warden touches none of a living session.
        """
        try:
            # Listed first: whatever is listed had its run registered before it was made.
            listed = [each.handle for each in self._sandbox.list_ours(self.offer.session_id)]
            in_use = {(local.run_id, local.fence) for local in self._known()}
            left = [handle for handle in listed if (handle.run_id, handle.fence) not in in_use]
            for handle in left:
                self._sandbox.remove(handle)
        except SandboxError:  # the next round comes; the engine's silence is told elsewhere
            return {}
        return {"removed": len(left)}

    def _not_accepting_reason(self) -> str:
        """Why this worker can't vouch for containers now; empty when it can."""
        if self._draining.is_set():
            return "draining"
        if not self._engine_answers:
            return "the container engine does not answer"
        if not self._deadline_is_written:
            return "the deadline file can't be written"
        if not warden_is_alive(self._deadlines_dir):
            return "the node's warden is not running"
        return ""


class _OfRun(Protocol):
    @property
    def run_id(self) -> UUID: ...


def _ordered(items: Sequence[_OfRun], answers: Mapping[UUID, Answer]) -> list[Answer]:
    return [answers[item.run_id] for item in items]


def _go(session_id: UUID, node: str, requests: Sequence[GoRequest]) -> list[GoReply]:
    replies = leases.go(session_id, node, requests)
    if any(reply.answer in _GIVES_UP_ITS_SLOT for reply in replies.values()):
        wake_dispatcher()
    return _ordered(requests, replies)


def _complete(session_id: UUID, node: str, ends: Sequence[Completion]) -> list[CompleteAnswer]:
    answers = leases.complete(session_id, node, ends)
    wake_dispatcher()  # once for all of them: their slots are free
    return _ordered(ends, answers)


def _record_starts(session_id: UUID, starts: Sequence[Start]) -> list[None]:
    leases.record_starts(session_id, starts)
    return [None] * len(starts)


def _hand_back(session_id: UUID, runs: Sequence[Leased]) -> list[bool]:
    handed_back = leases.hand_back(session_id, runs)
    wake_dispatcher()
    return [run.run_id in handed_back for run in runs]
