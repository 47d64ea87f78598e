"""What a change of a job does to its runs: `jobs.run_effects`, carried out (architecture §3)."""

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction

from jobs.domain.timing import CatchUp
from runs import planner, store
from runs.domain.state import RunStatus
from runs.notifications import note_run_ends
from runs.run_metrics import count_final


class StoredRunEffects:
    """The effects on the rows; each is called inside the transaction that locked the cursor."""

    def settle(self, job_id: UUID, *, now: datetime, catch_up: CatchUp) -> None:
        """Account for every occurrence up to `now`, by what the job's row says."""
        planner.settle(job_id, now, catch_up)

    def set_deadline(self, job_id: UUID, deadline: timedelta | None) -> int:
        """Give the job's runs that wait another deadline; returns how many."""
        store.lock_guards([job_id])
        deadline_s = None if deadline is None else deadline.total_seconds()
        return store.execute("set_deadline", job_id=job_id, deadline_s=deadline_s)

    def withdraw_planned(self, job_id: UUID, *, now: datetime) -> int:
        """Delete the planned occurrences later than `now`."""
        # The guard before the runs (lock order): a go holds the guard while it waits for its run.
        store.lock_guards([job_id])
        return store.execute("withdraw_planned", job_id=job_id, now=now)

    def stop_waiting(self, job_id: UUID, *, status: str, reason: str) -> int:
        """Finish the runs that wait past their time; a guard one of them holds is passed on."""
        store.lock_guards([job_id])
        rows = store.fetch("stop_waiting", job_id=job_id, status=status, reason=reason)
        note_run_ends(rows)
        store.release_guards((job_id, row.run_id) for row in rows)
        transaction.on_commit(partial(count_final, RunStatus(status), len(rows)))
        return len(rows)

    def request_cancel_running(self, job_id: UUID) -> int:
        """Ask the workers to stop the running runs of a job."""
        return store.execute("request_cancel_running", job_id=job_id)

    def hold_guards(self, job_ids: list[UUID]) -> None:
        """Lock the guards of several jobs, before runs of any of them are touched."""
        store.lock_guards(job_ids)

    def planned_ahead(self, job_ids: list[UUID], *, now: datetime) -> dict[UUID, list[datetime]]:
        """Return for each job the occurrences that `withdraw_planned` would delete, in order."""
        rows = store.fetch("planned_ahead", job_ids=job_ids, now=now)
        return {row.job_id: row.instants for row in rows}

    def latest_occurrences(
        self, job_ids: list[UUID], *, since: datetime, until: datetime
    ) -> dict[UUID, datetime]:
        """Return for each job its latest occurrence with a row in [since, until], if any."""
        rows = store.fetch("latest_occurrences", job_ids=job_ids, since=since, until=until)
        return {row.job_id: row.scheduled_for for row in rows}

    def next_planned(self, job_ids: list[UUID]) -> dict[UUID, datetime]:
        """Return for each job its earliest planned occurrence still ahead of its time."""
        rows = store.fetch("next_planned", job_ids=job_ids)
        return {row.job_id: row.scheduled_for for row in rows}
