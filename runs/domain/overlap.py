"""May this run go now, or does another run of its job stand in its way?"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class Overlap(StrEnum):
    """What to do while an earlier run of the same job is active."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"
    REPLACE = "replace"


class GoDecision(StrEnum):
    """What follows from the decision."""

    GO = "go"
    BLOCK = "block"
    SKIP = "skip"


@dataclass(frozen=True)
class Rival:
    """A run of a job that replaces its runs, as it stands or as it asks for its go.

    `is_caught_up`: a caught-up, backfilled or replayed one. `is_running`: it had its go, so that
    a container of it may be alive.
    """

    run_id: UUID
    due_at: datetime
    is_caught_up: bool = False
    is_running: bool = False

    def age(self) -> tuple[bool, datetime, UUID]:
        """What orders them, the newest last; what is caught up is older than all live work."""
        return (not self.is_caught_up, self.due_at, self.run_id)


@dataclass(frozen=True)
class OverlapVerdict:
    """The decision, why, and whether the run takes its job's guard with it.

    `replaces`: the runs whose place it takes; one that is running is to be stopped, the others are
    over at once. `replaced_by`: the newer run because of which it is skipped.
    """

    decision: GoDecision
    skip_reason: str = ""
    takes_guard: bool = False
    replaces: tuple[UUID, ...] = ()
    replaced_by: UUID | None = None


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
    a run that kept its guard through a backoff. `waits_its_turn`: a caught-up, backfilled or
    replayed run; somebody asked for each of them, so they follow one another instead of being
    skipped. For `replace` see `decide_replace`.
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


def decide_replace(
    run: Rival, holder: Rival | None, blocked: Sequence[Rival] = ()
) -> OverlapVerdict:
    """Decide for a job of which the newest run counts: it takes the place of all before it.

    `holder` has the guard (None: nobody, or one that is over), `blocked` wait behind it. What runs
    is stopped, and the newer waits until its container is dead; what has no container (a backoff,
    one that is being prepared, one that waits) is over at once. A run that comes late, after a
    newer one, is skipped. Those caught up follow one another, and replace nobody.
    """
    if holder is not None and holder.run_id == run.run_id:
        return OverlapVerdict(GoDecision.GO, takes_guard=True)
    if run.is_caught_up:
        if holder is None:
            return OverlapVerdict(GoDecision.GO, takes_guard=True)
        return OverlapVerdict(GoDecision.BLOCK)
    waiting = [each for each in blocked if not each.is_caught_up]
    others = waiting if holder is None else [holder, *waiting]
    newest = max(others, key=Rival.age, default=run)
    if newest.age() > run.age():
        return OverlapVerdict(GoDecision.SKIP, skip_reason="replaced", replaced_by=newest.run_id)
    replaces = tuple(each.run_id for each in others)
    if holder is not None and holder.is_running:
        return OverlapVerdict(GoDecision.BLOCK, replaces=replaces)
    return OverlapVerdict(GoDecision.GO, takes_guard=True, replaces=replaces)
