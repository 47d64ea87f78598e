"""The reaper: takes runs from sessions whose lease has ended, so that others run them.

Un-started runs are taken as soon as their session falls silent, because a new fence refuses a late
lease or go; running ones only after the lease, when their containers are surely dead.
"""

import json
from typing import Any

from django.conf import settings
from django.db import transaction

from runs import store, transport
from runs.domain.state import FINAL, RunStatus
from runs.notifications import note_run_ends
from runs.run_metrics import count_reaped
from runs.store import RunEventRow
from scheduler_project.lib.events import emit


def reap_once() -> dict[str, int]:
    """Take back what dead, silent and draining sessions hold.

    Returns counts: `requeued` un-started runs, `reaped` running runs, `sessions` closed.
    """
    unstarted = requeue_unstarted()
    reaped, sessions = reap_dead_sessions()
    return {"requeued": unstarted, "reaped": reaped, "sessions": sessions}


def requeue_unstarted() -> int:
    """Put back what leaving sessions have not started; returns how many runs."""
    with transaction.atomic():
        rows = store.fetch("requeue_unstarted", silent_s=settings.SILENT_S)
        store.record_events([_event(row, "taken_back", row.attempt, row.fence) for row in rows])
    return len(rows)


def reap_dead_sessions() -> tuple[int, int]:
    """Take the running runs of sessions whose lease ended; returns (runs, sessions closed)."""
    with transaction.atomic():
        dead = [
            row.session_id
            for row in store.fetch(
                "dead_sessions", reap_after_s=settings.REAP_AFTER_S, lease_s=settings.LEASE_S
            )
        ] + [
            row.session_id for row in store.fetch("lost_owners", reap_after_s=settings.REAP_AFTER_S)
        ]
        if not dead:
            return 0, 0
        jobs = store.fetch("jobs_of_sessions", session_ids=dead)
        store.lock_guards(row.job_id for row in jobs)
        rows = store.fetch(
            "reap_running", session_ids=dead, max_lease_losses=settings.MAX_LEASE_LOSSES
        )
        note_run_ends(row for row in rows if _is_over(row))
        store.release_guards((row.job_id, row.run_id) for row in rows if _is_over(row))
        store.record_events(
            [_event(row, "lease_lost", row.lost_attempt, row.lost_fence) for row in rows]
        )
        closed = store.fetch("end_sessions", session_ids=dead)
    count_reaped(rows)
    for row in rows:
        emit("reaper.lease_lost", "A run lost its lease and was taken from a dead worker.",
             run_id=row.run_id, session=row.lost_session, now=row.status)  # fmt: skip
    transport.forget_queues([row.queue for row in closed])
    return len(rows), len(closed)


def release_stale_guards() -> dict[str, int]:
    """Pass on guards whose holder is final or gone: a second net, it should find nothing."""
    with transaction.atomic():
        locked = [row.job_id for row in store.fetch("lock_stale_guards")]
        stale = store.fetch("stale_guards", job_ids=locked) if locked else []
        store.release_guards((row.job_id, row.holder_run_id) for row in stale)
    if stale:
        emit("guards.stale", "Guards of finished runs were released late.", count=len(stale))
    return {"guards": len(stale)}


def _is_over(row: Any) -> bool:
    return RunStatus(row.status) in FINAL


def _event(row: Any, kind: str, attempt: int, fence: int) -> RunEventRow:
    return RunEventRow(
        run_id=row.run_id,
        scheduled_for=row.scheduled_for,
        kind=kind,
        attempt=attempt,
        fence=fence,
        session=row.lost_session,
        detail=json.dumps({}),
    )
