"""What can be wrong with the record? Its rule: one stable code for each promise broken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Kind(StrEnum):
    """Stable codes: alerts and tests match them."""

    # Occurrences against the job's versions.
    MISSING = "missing"
    DOUBLED = "doubled"
    UNPROMISED = "unpromised"
    NOT_WITHDRAWN = "not_withdrawn"
    WRONG_SPAN = "wrong_span"
    CURSOR_ASTRAY = "cursor_astray"
    NO_VERSION = "no_version"
    UNKNOWN_JOB = "unknown_job"
    # Time.
    TOO_EARLY = "too_early"
    # Never two at once.
    ATTEMPTS_OVERLAP = "attempts_overlap"
    OVERLAP_BROKEN = "overlap_broken"
    UNEXPLAINED_SKIP = "unexplained_skip"
    # What a run's row and its attempts say of one another.
    WRONG_END = "wrong_end"
    WRONG_COUNTERS = "wrong_counters"
    ATTEMPT_NUMBERS = "attempt_numbers"
    BROKEN_ROW = "broken_row"
    # Fences and guards.
    FENCE_REUSED = "fence_reused"
    FENCE_ORDER = "fence_order"
    GUARD = "guard"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that the record shows broken: which, of what, and the facts in a sentence."""

    kind: Kind
    facts: str
    job_id: UUID | None = None
    run_id: UUID | None = None

    def __str__(self) -> str:
        about = [f"job {self.job_id}"] if self.job_id else []
        about += [f"run {self.run_id}"] if self.run_id else []
        return f"{self.kind}: {', '.join([*about, self.facts])}"
