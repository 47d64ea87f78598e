"""Why did it start when it did? Splits the time from due to started into its stages.

Most of the way is gone before the run is due, on purpose. So each stage counts only from the due
time on: the stages add up to the whole lag, and what was done ahead of time counts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

STAGES: Final = ("placed", "leased", "prepared", "go", "started")


@dataclass(frozen=True, slots=True)
class Milestones:
    """When the first attempt passed each stage; None for a stage not passed (yet, or unrecorded).

    `started_at` is by the engine's clock, the others by the database's.
    """

    placed_at: datetime | None
    leased_at: datetime | None
    prepared_at: datetime | None
    go_at: datetime | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Lag:
    """The dispatch lag (seconds): `total_s` = started − due, and how long each stage took of it."""

    total_s: float
    stages_s: dict[str, float]


def decompose_lag(due_at: datetime, passed: Milestones) -> Lag | None:
    """The lag of a run due at `due_at`; None until it has started.

    A stage without its instant takes no time: it goes into the next one. Only the last stage may
    be negative, when the engine's clock is behind the database's by more than the stage took.
    """
    if passed.started_at is None:
        return None
    reached = due_at
    stages_s: dict[str, float] = {}
    for stage in STAGES[:-1]:
        instant: datetime | None = getattr(passed, f"{stage}_at")
        until = reached if instant is None else max(instant, reached)
        stages_s[stage] = (until - reached).total_seconds()
        reached = until
    stages_s[STAGES[-1]] = (passed.started_at - reached).total_seconds()
    return Lag((passed.started_at - due_at).total_seconds(), stages_s)
