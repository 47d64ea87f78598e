"""What a change of a job does to its runs, declared here and carried out by `runs`.

Imports go one way (runs → jobs), yet an edit must withdraw planned runs in its own transaction.
So `jobs` names the effects, and `runs` registers the one implementation at start-up.
"""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from jobs.domain.timing import CatchUp


class RunEffects(Protocol):
    """Effects on runs; each is called inside the transaction that holds the job's cursor lock.

    Lock order: cursor → job guard → run. The caller has locked the cursor.
    """

    def settle(self, job_id: UUID, *, now: datetime, catch_up: CatchUp) -> None:
        """Account for every occurrence up to `now`, by what the job's row says.

        Called before a change of the row: what came due until then belongs to the job as it was.
        An active job's late occurrences become runs, rows or counts as the planner would decide;
        those that a pause held back are counted, save what `catch_up` lets run (a pause that is
        over by itself goes by its own word).
        """

    def set_deadline(self, job_id: UUID, deadline: timedelta | None) -> int:
        """Give the job's runs that wait another deadline (None: none); returns how many."""

    def withdraw_planned(self, job_id: UUID, *, now: datetime) -> int:
        """Delete the planned occurrences later than `now` (architecture §3).

        Deleted, not marked: editing and editing back must not meet the unique key. Returns the
        number of runs deleted.
        """

    def stop_waiting(self, job_id: UUID, *, status: str, reason: str) -> int:
        """Finish the runs of a paused or deleted job that are past due and still wait.

        `status` is "skipped" (with `reason` as its skip_reason) or "cancelled". Running runs go
        on. Returns the number of runs finished.
        """

    def request_cancel_running(self, job_id: UUID) -> int:
        """Ask the workers to stop the running runs of a job; returns how many were asked."""

    def hold_guards(self, job_ids: list[UUID]) -> None:
        """Lock the guards of several jobs, before runs of any of them are touched."""

    def planned_ahead(self, job_ids: list[UUID], *, now: datetime) -> dict[UUID, list[datetime]]:
        """Return for each job the occurrences that `withdraw_planned` would delete, in order."""

    def latest_occurrences(
        self, job_ids: list[UUID], *, since: datetime, until: datetime
    ) -> dict[UUID, datetime]:
        """Return for each job its latest occurrence with a row in [since, until], if any."""

    def next_planned(self, job_ids: list[UUID]) -> dict[UUID, datetime]:
        """Return for each job its earliest planned occurrence still ahead of its time.

        The cursor has already moved past planned occurrences: a customer's `next_run_at` is the
        earlier of this and the cursor's.
        """


_registered: RunEffects | None = None


def register(effects: RunEffects) -> None:
    """Install the implementation; called once by runs.apps at start-up."""
    global _registered
    _registered = effects


def run_effects() -> RunEffects:
    """Return the registered implementation."""
    if _registered is None:
        raise RuntimeError("runs.apps has not registered its effects: is `runs` installed?")
    return _registered
