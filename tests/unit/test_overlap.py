"""May it go, and whose place does it take? Cases of a job that replaces its runs."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from runs.domain.overlap import (
    GoDecision,
    Overlap,
    OverlapVerdict,
    Rival,
    decide_overlap,
    decide_replace,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def rival(minute: int, *, caught_up: bool = False, running: bool = False) -> Rival:
    return Rival(UUID(int=minute), NOON + timedelta(minutes=minute), caught_up, running)


GO = OverlapVerdict(GoDecision.GO, takes_guard=True)
BLOCK = OverlapVerdict(GoDecision.BLOCK)

CASES = {
    "nobody is in the way": (rival(2), None, [], GO),
    "the guard was passed to it": (rival(2), rival(2), [], GO),
    "an older one runs: it is stopped, and waited for": (
        rival(2), rival(1, running=True), [],
        OverlapVerdict(GoDecision.BLOCK, replaces=(UUID(int=1),)),
    ),
    "an older one is in a backoff: it is over at once": (
        rival(2), rival(1), [],
        OverlapVerdict(GoDecision.GO, takes_guard=True, replaces=(UUID(int=1),)),
    ),
    "the third arrival takes the place of the second": (
        rival(3), rival(1, running=True), [rival(2)],
        OverlapVerdict(GoDecision.BLOCK, replaces=(UUID(int=1), UUID(int=2))),
    ),
    "it comes after a newer one that runs": (
        rival(1), rival(2, running=True), [],
        OverlapVerdict(GoDecision.SKIP, "replaced", replaced_by=UUID(int=2)),
    ),
    "it comes after a newer one that waits": (
        rival(2), rival(1, running=True), [rival(3)],
        OverlapVerdict(GoDecision.SKIP, "replaced", replaced_by=UUID(int=3)),
    ),
    "one that is caught up waits its turn": (
        rival(2, caught_up=True), rival(1, running=True), [], BLOCK,
    ),
    "one that is caught up goes when nobody holds the guard": (
        rival(2, caught_up=True), None, [], GO,
    ),
    "live work replaces what is caught up, however late that was due": (
        rival(2), rival(9, caught_up=True, running=True), [],
        OverlapVerdict(GoDecision.BLOCK, replaces=(UUID(int=9),)),
    ),
    "those caught up that wait keep their place": (
        rival(2), rival(1, running=True), [rival(0, caught_up=True)],
        OverlapVerdict(GoDecision.BLOCK, replaces=(UUID(int=1),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_newest_run_takes_the_place_of_all_before_it(case: str) -> None:
    run, holder, blocked, verdict = CASES[case]

    assert decide_replace(run, holder, blocked) == verdict


@pytest.mark.parametrize(
    ("overlap", "holder", "blocked", "waits", "decision", "reason"),
    [
        (Overlap.ALLOW, 1, 0, False, GoDecision.GO, ""),
        (Overlap.SKIP, None, 0, False, GoDecision.GO, ""),
        (Overlap.SKIP, 2, 0, False, GoDecision.GO, ""),
        (Overlap.SKIP, 1, 0, False, GoDecision.SKIP, "overlap"),
        (Overlap.SKIP, 1, 0, True, GoDecision.BLOCK, ""),
        (Overlap.QUEUE, 1, 9, False, GoDecision.BLOCK, ""),
        (Overlap.QUEUE, 1, 10, False, GoDecision.SKIP, "queue_full"),
        (Overlap.QUEUE, 1, 10, True, GoDecision.BLOCK, ""),
    ],
)
def test_the_other_policies(
    overlap: Overlap, holder: int | None, blocked: int, waits: bool, decision: str, reason: str
) -> None:
    verdict = decide_overlap(
        UUID(int=2),
        overlap,
        None if holder is None else UUID(int=holder),
        blocked=blocked,
        queue_limit=10,
        waits_its_turn=waits,
    )

    assert (verdict.decision, verdict.skip_reason) == (decision, reason)
