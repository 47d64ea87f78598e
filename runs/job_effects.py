"""What a change of a job does to its runs: `jobs.run_effects`, carried out (architecture §3)."""

from datetime import datetime
from uuid import UUID

from runs import store


class StoredRunEffects:
    """The effects on the rows; each is called inside the transaction that locked the cursor."""

    def withdraw_planned(self, job_id: UUID) -> int:
        """Delete the planned occurrences that are still ahead of their time."""
        # The guard before the runs (lock order): a go holds the guard while it waits for its run.
        store.lock_guards([job_id])
        return store.execute("withdraw_planned", job_id=job_id)

    def stop_waiting(self, job_id: UUID, *, status: str, reason: str) -> int:
        """Finish the runs that wait past their time; a guard one of them holds is passed on."""
        store.lock_guards([job_id])
        rows = store.fetch("stop_waiting", job_id=job_id, status=status, reason=reason)
        store.release_guards((job_id, row.run_id) for row in rows)
        return len(rows)

    def request_cancel_running(self, job_id: UUID) -> int:
        """Ask the workers to stop the running runs of a job."""
        return store.execute("request_cancel_running", job_id=job_id)

    def next_planned(self, job_ids: list[UUID]) -> dict[UUID, datetime]:
        """Return for each job its earliest planned occurrence still ahead of its time."""
        rows = store.fetch("next_planned", job_ids=job_ids)
        return {row.job_id: row.scheduled_for for row in rows}
