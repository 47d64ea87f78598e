"""Were two runs of a job under way at once, and may they have been? Its rule: as the guard says.

The guard keeps runs apart that both had their go under a policy other than *allow*; a run that
began while everything was allowed stands in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from runs.domain.accounting import EDIT_SLACK
from runs.domain.history import Attempt, engine_times_overlap
from runs.domain.timeline import Timeline
from runs.domain.violation import Kind, Violation


@dataclass(frozen=True, slots=True)
class Move:
    """An attempt's go, or (`attempt` None) a skip because of an earlier run, at `at`.

    `run_ended_at`: when the attempt's run was over; None while it is not.
    """

    job_id: UUID
    run_id: UUID
    at: datetime
    attempt: Attempt | None
    run_ended_at: datetime | None


class Exclusion:
    """Follows one job's goes and skips in order of time, and remembers only what is under way."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        # With whether the guard held others back meanwhile.
        self._under_way: list[tuple[Move, bool]] = []
        # A guard passed to a run that waits is held before its go, where runs wait for one another.
        self._may_hold_unseen = any(
            each.overlap in ("queue", "replace") for each in timeline.versions
        )

    def move(self, move: Move) -> Iterator[Violation]:
        """Judge one move."""
        self._under_way = [
            (each, guarded)
            for each, guarded in self._under_way
            if each.run_ended_at is None or each.run_ended_at >= move.at
        ]
        if move.attempt is None:
            if not self._under_way and not self._may_hold_unseen:
                facts = "skipped because of an earlier run, and none was under way"
                yield Violation(Kind.UNEXPLAINED_SKIP, facts, move.job_id, move.run_id)
            return
        guarded = self.excludes(move.at)
        for other, other_guarded in self._under_way:
            both = guarded and other_guarded and other.run_id != move.run_id
            if both and _at_once(other, move):
                facts = f"it went while attempt {_number(other)} of {other.run_id} was under way"
                yield Violation(Kind.OVERLAP_BROKEN, facts, move.job_id, move.run_id)
        self._under_way.append((move, guarded))

    def excludes(self, at: datetime) -> bool:
        """Whether every policy that may have been in force keeps runs apart."""
        versions = self._timeline.around(at, EDIT_SLACK)
        return bool(versions) and all(each.overlap != "allow" for each in versions)


def _at_once(earlier: Move, later: Move) -> bool:
    assert earlier.attempt is not None
    assert later.attempt is not None
    ended_at = earlier.attempt.ended_at
    if ended_at is None or ended_at > later.at:
        return True
    same_node = earlier.attempt.node == later.attempt.node
    return same_node and engine_times_overlap(earlier.attempt, later.attempt)


def _number(move: Move) -> int:
    return 0 if move.attempt is None else move.attempt.attempt
