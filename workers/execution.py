"""One run on this worker, from its lease to its end, as one linear story.

1. Lease it: a new fence. 2. When it is due already, get a slot first. 3. Prepare the container.
4. Wait for its instant. 5. Get a slot. 6. Ask for the go. 7. Start. 8. Wait for the end, the time
limit, a cancel or the loss of the lease. 9. Report. Whatever happens, the container is removed.
"""

import logging
import time
from dataclasses import dataclass
from uuid import UUID

from runs.domain.outcome import Outcome, OutcomeCode, StopReason, outcome
from runs.leases import CompleteAnswer, Completion, GoAnswer, GoRequest, Leased, Refused
from scheduler_project.lib.events import emit
from workers.deadlines import boottime_s
from workers.environment import container_environment
from workers.freezer import StartedContainer
from workers.keeper import Keeper, LocalRun
from workers.sandbox.base import (
    UNPRIVILEGED_USER,
    BadCommand,
    ContainerExit,
    ContainerHandle,
    ContainerSpec,
    EngineUnreachable,
    Sandbox,
    SandboxError,
)

# A run whose time has come waits this long for a slot before it goes back to the fair queue,
# where another worker may have one. Due on arrival: it came into the buffer for the next slot.
_SLOT_PATIENCE_DUE_S = 5.0
_SLOT_PATIENCE_PREPARED_S = 1.0
# Clocks differ by less; when the database's was set back, runs must not hold slots for as long.
_EARLY_PATIENCE_S = 2.0
# TERM first; the whole end stays within two seconds of the time limit.
_TIMEOUT_GRACE_S = 1.0
_CANCEL_GRACE_S = 5.0
_KILL_RETRY_S = 1.0
_FROZEN_LOOK_S = 0.1


class GivenUp(Exception):
    """This process ends before its container is known to be dead: nothing is said of the run.

    The warden ends the container and the reaper takes the run, once the lease has run out.
    """


class HandBack(Exception):
    """The run must go back to the fair queue; the message says why."""


@dataclass(frozen=True)
class Limits:
    """What a container may use where its job does not say."""

    cpu: float = 1.0
    memory_mb: int = 256
    output_tail_bytes: int = 16_384


def execute_run(keeper: Keeper, sandbox: Sandbox, run_id: UUID, limits: Limits) -> str:
    """Run one run to its end and return in a word what became of it, for logs and Flower."""
    local = keeper.adopt(run_id)
    if local is None:
        return "known already"
    try:
        lease = keeper.lease(run_id)
        if isinstance(lease, Refused):
            return f"refused: {lease.why}"
        local.holds(lease.fence)
        return _Story(keeper, sandbox, local, lease, limits).tell()
    finally:
        keeper.forget(run_id)


class _Story:
    def __init__(
        self, keeper: Keeper, sandbox: Sandbox, local: LocalRun, lease: Leased, limits: Limits
    ) -> None:
        self._keeper = keeper
        self._sandbox = sandbox
        self._local = local
        self._lease = lease
        self._limits = limits
        self._ready_at = time.monotonic() + lease.ready_in_s
        self._has_slot = False

    def tell(self) -> str:
        """The whole story; whatever happens in it, the slot is free again at its end."""
        try:
            return self._steps()
        except GivenUp:
            return "given up"
        finally:
            self._free_slot()

    def _steps(self) -> str:
        """The steps in order; a HandBack from any of them before the go gives the run back."""
        handle: ContainerHandle | None = None
        try:
            if self._lease.ready_in_s <= 0:
                self._get_slot(_SLOT_PATIENCE_DUE_S)
            handle = self._sandbox.prepare(self._readable_spec())
            prepared_at = time.monotonic()
            self._wait_until_ready()
            self._get_slot(_SLOT_PATIENCE_PREPARED_S)
            answer = self._ask_for_go(prepared_at)
            if answer is GoAnswer.TASK_CHANGED:
                raise HandBack("the job's task was edited")
            if answer is not GoAnswer.GO:
                return answer.value
            return self._run(handle)
        except HandBack as reason:
            # Removed first: once the row is free, another worker may make the same container.
            self._remove(handle)
            handle = None
            self._keeper.hand_back(self._lease)
            return f"handed back: {reason}"
        except SandboxError as error:
            self._remove(handle)
            handle = None
            return self._report(ContainerExit(exit_code=None), error.verdict)
        except GivenUp:
            raise
        except Exception as error:
            # A fault of ours. Said at once and counted: a run that only loses its thread is found
            # again for ever.
            logging.getLogger(__name__).exception("run %s: the worker failed", self._lease.run_id)
            self._remove_for_sure(handle)
            handle = None
            return self._report(ContainerExit(exit_code=None), _our_fault(error))
        finally:
            self._remove(handle)

    def _get_slot(self, patience_s: float) -> None:
        if self._has_slot:
            return
        until = time.monotonic() + patience_s
        while not self._keeper.slots.acquire(timeout=0.1):
            self._leave_if_asked()
            if time.monotonic() >= until:
                raise HandBack("no free slot")
        self._has_slot = True

    def _free_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._keeper.slots.release()

    def _readable_spec(self) -> ContainerSpec:
        try:
            return self._spec()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The API has checked it; somebody changed the row. Another worker reads it no better.
            raise BadCommand(f"the job's task can't be read: {error!r}") from error

    def _spec(self) -> ContainerSpec:
        lease, task = self._lease, self._lease.task
        resources = task.get("resources") or {}
        return ContainerSpec(
            run_id=lease.run_id,
            attempt=lease.attempt,
            fence=lease.fence,
            session_id=self._keeper.offer.session_id,
            tenant_id=lease.tenant_id,
            job_id=lease.job_id,
            image=task["image"],
            args=task.get("args"),
            env=container_environment(
                run_id=lease.run_id,
                job_id=lease.job_id,
                attempt=lease.attempt,
                scheduled_for=lease.nominal,
                fence=lease.fence,
                job_env=task.get("env") or {},
            ),
            cpu=float(resources.get("cpu") or self._limits.cpu),
            memory_mb=int(resources.get("memory_mb") or self._limits.memory_mb),
            timeout_s=int(task["timeout_s"]),
            tier=lease.tier,
            user="" if lease.allow_root else UNPRIVILEGED_USER,
        )

    def _wait_until_ready(self) -> None:
        self._local.leave.wait(max(0.0, self._ready_at - time.monotonic()))
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if self._local.leave.is_set():
            raise HandBack("the worker is leaving or the lease is lost")

    def _ask_for_go(self, prepared_at: float) -> GoAnswer:
        while True:
            lease = self._lease
            reply = self._keeper.go(
                GoRequest(
                    run_id=lease.run_id,
                    scheduled_for=lease.scheduled_for,
                    job_id=lease.job_id,
                    fence=lease.fence,
                    prepared_ago_s=time.monotonic() - prepared_at,
                    task_version=lease.task_version,
                ),
                self._local,
            )
            if reply.answer is not GoAnswer.NOT_YET:
                return reply.answer
            # Our clock runs ahead of the database's, which decides.
            if reply.wait_s > _EARLY_PATIENCE_S:
                raise HandBack("it is too early by the database's clock")
            self._local.leave.wait(reply.wait_s)
            self._leave_if_asked()

    def _run(self, handle: ContainerHandle) -> str:
        """After the go: start, wait, stop if need be, report."""
        began = boottime_s()
        try:
            if not self._keeper.lease_is_current():
                # Frozen since the go: the thread that enforces the deadline may wake after us.
                self._local.stop_for(StopReason.LEASE_LOST)
            if self._local.stop.is_set():  # the lease ran out between the go and here
                return self._report(*self._end_by_force(handle, self._stop_reason()))
            self._keeper.started(self._lease, self._sandbox.start(handle))
            ended = self._wait(self._local.began(handle), began)
        except EngineUnreachable as error:
            # It may run or start later all the same: only its removal settles that.
            self._remove_for_sure(handle)
            return self._report(ContainerExit(exit_code=None), error.verdict)
        if ended is not None:
            self._free_slot()  # the next may begin while the database is told of this one's end
            return self._report(ended, ended.outcome(self._killed_for(ended, began)))
        return self._report(*self._end_by_force(handle, self._stop_reason()))

    def _wait(self, container: StartedContainer, began: float) -> ContainerExit | None:
        """How it ended; None when it must be stopped. Time spent frozen is not the customer's."""
        limit_s = float(self._lease.task["timeout_s"])
        while True:
            left_s = limit_s + container.frozen_s() - (boottime_s() - began)
            if container.is_frozen:  # its time stands still: look again now and then
                left_s = max(left_s, _FROZEN_LOOK_S)
            ended = self._sandbox.wait(container.handle, self._local.stop, max(0.0, left_s))
            if ended is not None or self._local.stop.is_set() or left_s <= 0:
                return ended

    def _killed_for(self, ended: ContainerExit, began: float) -> StopReason | None:
        """Why somebody else of ours ended it since it `began`, if somebody did.

        Past the lease the warden kills, while this process may be frozen: a signal seen after
        waking up is ours then, never the customer's 137, even if the lease has been renewed first.
        One that ended by itself has its result.
        """
        if ended.signal is not None and not self._keeper.lease_has_held_since(began):
            return StopReason.LEASE_LOST
        return None

    def _stop_reason(self) -> StopReason:
        if self._local.stop.is_set() and self._local.stop_reason is not None:
            return self._local.stop_reason
        return StopReason.TIMEOUT

    def _end_by_force(
        self, handle: ContainerHandle, reason: StopReason
    ) -> tuple[ContainerExit, Outcome]:
        """Stop the container and return once it is dead; the engine may keep us waiting."""
        while True:
            try:
                ended = self._stop(handle, reason)
                return ended, ended.outcome(reason)
            except EngineUnreachable:
                # Not confirmed dead: nothing may be written that lets another attempt begin.
                self._pause_unless_given_up()
                if self._local.stop_reason is StopReason.LEASE_LOST:
                    reason = StopReason.LEASE_LOST  # no time for a grace any more

    def _pause_unless_given_up(self) -> None:
        if self._keeper.given_up.wait(_KILL_RETRY_S):
            raise GivenUp

    def _stop(self, handle: ContainerHandle, reason: StopReason) -> ContainerExit:
        if reason is StopReason.LEASE_LOST:
            return self._sandbox.kill(handle)
        grace_s = _TIMEOUT_GRACE_S if reason is StopReason.TIMEOUT else _CANCEL_GRACE_S
        return self._sandbox.stop(handle, grace_s)

    def _report(self, ended: ContainerExit, verdict: Outcome) -> str:
        tail = self._limits.output_tail_bytes
        answer = self._keeper.complete(
            Completion(
                run_id=self._lease.run_id,
                scheduled_for=self._lease.scheduled_for,
                job_id=self._lease.job_id,
                fence=self._lease.fence,
                outcome=verdict,
                exit_code=ended.exit_code,
                started_at=ended.started_at,
                finished_at=ended.finished_at,
                output=ended.output[-tail:] if tail else b"",
                output_truncated=ended.output_truncated or len(ended.output) > tail,
                image_digest=ended.image_id or "",
            )
        )
        return verdict.code.value if answer is CompleteAnswer.OK else answer.value

    def _remove_for_sure(self, handle: ContainerHandle | None) -> None:
        while handle is not None:
            try:
                self._sandbox.remove(handle)
                return
            except EngineUnreachable:
                self._pause_unless_given_up()

    def _remove(self, handle: ContainerHandle | None) -> None:
        if handle is None:
            return
        try:
            self._sandbox.remove(handle)
        except SandboxError as error:
            # The warden removes what we could not: its session ends, or its file says so.
            emit("worker.not_removed", "A container could not be removed now.",
                 name=handle.name, error=str(error))  # fmt: skip


def _our_fault(error: Exception) -> Outcome:
    return outcome(OutcomeCode.ENGINE_UNREACHABLE, f"the worker failed: {type(error).__name__}")
