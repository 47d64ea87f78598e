"""Which state of a run may follow which: the table that constraints, docs and tests come from."""

from enum import StrEnum


class RunStatus(StrEnum):
    """States of a run (architecture §5)."""

    QUEUED = "queued"  # waits for its time, a slot, its tenant's concurrency or a backoff
    LEASED = "leased"  # a worker prepares its container
    RUNNING = "running"  # the worker has its go
    BLOCKED = "blocked"  # an earlier run of the job is active
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # dead letter
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # never ran; skip_reason says why


class Trigger(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    BACKFILL = "backfill"
    MANUAL = "manual"
    REPLAY = "replay"


TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.LEASED, RunStatus.CANCELLED, RunStatus.SKIPPED}),
    RunStatus.LEASED: frozenset(
        {
            RunStatus.RUNNING,
            RunStatus.QUEUED,  # handed back, reaped before its go, or its engine failed
            RunStatus.BLOCKED,
            RunStatus.SKIPPED,
            RunStatus.FAILED,  # its container can never be made
            RunStatus.CANCELLED,
        }
    ),
    RunStatus.RUNNING: frozenset(
        {
            RunStatus.SUCCEEDED,
            RunStatus.FAILED,
            RunStatus.CANCELLED,
            RunStatus.QUEUED,  # a retry, or its lease was lost
        }
    ),
    RunStatus.BLOCKED: frozenset({RunStatus.QUEUED, RunStatus.CANCELLED, RunStatus.SKIPPED}),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
    RunStatus.SKIPPED: frozenset(),
}

FINAL: frozenset[RunStatus] = frozenset(
    status for status, following in TRANSITIONS.items() if not following
)
# Under a lease: a worker session owns the run.
HELD: frozenset[RunStatus] = frozenset({RunStatus.LEASED, RunStatus.RUNNING})


def is_final(status: RunStatus) -> bool:
    """Return whether nothing may follow `status`."""
    return status in FINAL


def may_follow(before: RunStatus, after: RunStatus) -> bool:
    """Return whether a run in `before` may next be in `after`."""
    return after in TRANSITIONS[before]
