"""What does a run that hasn't started wait for? One reason at a time, the nearest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from runs.domain.state import RunStatus


class WaitReason(StrEnum):
    """Stable codes: the API shows them and customers match them."""

    TIME = "time"  # it isn't due yet
    RETRY_BACKOFF = "retry_backoff"  # its last attempt failed, and the pause isn't over
    EARLIER_RUN = "earlier_run"  # an earlier run of the job is active
    TENANT_CONCURRENCY = "tenant_concurrency"  # the tenant has as many active runs as it may
    SLOT = "slot"  # no worker has a free slot for it
    WORKER = "worker"  # a worker has it and is about to start it


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """The reason, until when (where that is known), and which run stands in the way."""

    reason: WaitReason
    until: datetime | None = None
    run_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """What the answer depends on.

    `was_tried`: an attempt ended, not by a fault of ours. `blocker`: who holds the job's guard.
    """

    status: RunStatus
    ready_at: datetime
    was_tried: bool
    is_placed: bool
    blocker: UUID | None = None
    tenant_is_full: bool = False


def waiting_for(run: WaitingRun, now: datetime) -> WaitingFor | None:
    """What the run waits for at `now` (the database's); None when it runs or has ended."""
    if run.status is RunStatus.BLOCKED:
        return WaitingFor(WaitReason.EARLIER_RUN, run_id=run.blocker)
    if run.status not in (RunStatus.QUEUED, RunStatus.LEASED):
        return None
    if run.ready_at > now:
        reason = WaitReason.RETRY_BACKOFF if run.was_tried else WaitReason.TIME
        return WaitingFor(reason, until=run.ready_at)
    if run.is_placed:
        return WaitingFor(WaitReason.WORKER)
    if run.tenant_is_full:
        return WaitingFor(WaitReason.TENANT_CONCURRENCY)
    return WaitingFor(WaitReason.SLOT)
