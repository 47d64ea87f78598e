"""May this run go now, or does an earlier run of its job stand in its way?"""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Overlap(StrEnum):
    """What to do while an earlier run of the same job is active."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class GoDecision(StrEnum):
    """What follows from the decision."""

    GO = "go"
    BLOCK = "block"
    SKIP = "skip"


@dataclass(frozen=True)
class OverlapVerdict:
    """The decision, why, and whether the run takes its job's guard with it."""

    decision: GoDecision
    skip_reason: str = ""
    takes_guard: bool = False


def decide_overlap(
    run_id: UUID,
    overlap: Overlap,
    holder: UUID | None,
    *,
    blocked: int,
    queue_limit: int,
    waits_its_turn: bool = False,
) -> OverlapVerdict:
    """Decide from the guard's holder and the number of runs already blocked.

    A holder that is the run itself goes: the guard was passed to it, or it is the next attempt of
    a run that kept its guard through a backoff. `waits_its_turn`: a caught-up or backfilled run;
    somebody asked for each of them, so they follow one another instead of being skipped.
    """
    if overlap is Overlap.ALLOW:
        return OverlapVerdict(GoDecision.GO)
    if holder is None or holder == run_id:
        return OverlapVerdict(GoDecision.GO, takes_guard=True)
    if waits_its_turn:
        return OverlapVerdict(GoDecision.BLOCK)
    if overlap is Overlap.SKIP:
        return OverlapVerdict(GoDecision.SKIP, skip_reason="overlap")
    if blocked >= queue_limit:
        return OverlapVerdict(GoDecision.SKIP, skip_reason="queue_full")
    return OverlapVerdict(GoDecision.BLOCK)
