"""The dispatcher: gives queued runs to worker sessions in fair order, then sends their messages.

One at a time over all schedulers, by an advisory lock in one short transaction; the messages go
out after the commit. Losing every one of them costs latency only: each worker also looks at its
rows each second.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from runs import store, transport
from runs.domain.placement import OpenSession, TenantShare, WaitingRun, place, room_for
from runs.domain.state import RunStatus
from runs.run_metrics import count_final
from scheduler_project.lib.metrics import count


def dispatch_once() -> dict[str, int]:
    """Place one batch and send its messages.

    Returns counts: `placed` runs, `sent` messages; both 0 also when another scheduler dispatches.
    """
    with transaction.atomic():
        (locked,) = store.fetch("try_dispatcher_lock")
        if not locked[0]:
            return {"placed": 0, "sent": 0}
        sessions = store.fetch("open_sessions", silent_s=settings.SILENT_S)
        placed = _place([OpenSession(**session._asdict()) for session in sessions])
    count("runs_placed_total", len(placed))
    queues = {session.session_id: session.queue for session in sessions}
    sent = transport.send(
        [
            transport.Message(
                run_id=row.run_id,
                attempt=row.attempt,
                queue=queues[row.session_id],
                eta_epoch_s=row.ready_epoch - settings.PREPARE_LEAD_S
                if row.ready_in_s > settings.PREPARE_LEAD_S
                else None,
            )
            for row in placed
        ]
    )
    return {"placed": len(placed), "sent": sent}


def expire_once() -> dict[str, int]:
    """Skip the runs that wait past their deadline; returns how many were `expired`.

    Those never begin, whether or not a worker ever has a slot for them.
    """
    late = store.fetch("overdue_runs", limit=settings.DISPATCH_BATCH)
    if not late:
        return {"expired": 0}
    with transaction.atomic():
        store.lock_guards(row.job_id for row in late)
        expired = store.fetch("expire_runs", **store.columns(late, "run_id", "scheduled_for"))
        store.release_guards((row.job_id, row.run_id) for row in expired)
    count_final(RunStatus.SKIPPED, len(expired))
    return {"expired": len(expired)}


def is_behind(counts: Mapping[str, int]) -> bool:
    """Return whether the batch was full, so that more runs are likely to wait."""
    return counts.get("placed", 0) >= settings.DISPATCH_BATCH


def _place(sessions: list[OpenSession]) -> list[Any]:
    room = room_for(sessions)
    if room == 0:
        return []
    kinds = sorted({(session.region, tier) for session in sessions for tier in session.tiers})
    waiting = store.fetch(
        "waiting_runs",
        place_lead_s=settings.PLACE_LEAD_S,
        limit=min(room, settings.DISPATCH_BATCH),
        regions=[region for region, _ in kinds],
        tiers=[tier for _, tier in kinds],
    )
    if not waiting:
        return []
    placements = place(
        [_waiting_run(row) for row in waiting],
        _shares(waiting, {row.tenant_id: row for row in store.fetch("held_by_tenant")}),
        sessions,
        most=settings.DISPATCH_BATCH,
    )
    if not placements:
        return []
    return store.fetch(
        "place_runs",
        **store.columns(placements, "run_id", "scheduled_for"),
        sessions=[placement.session_id for placement in placements],
    )


def _waiting_run(row: Any) -> WaitingRun:
    return WaitingRun(**{name: getattr(row, name) for name in WaitingRun.__dataclass_fields__})


def _shares(waiting: list[Any], held: dict[UUID, Any]) -> dict[UUID, TenantShare]:
    shares = {}
    for row in waiting:
        has = held.get(row.tenant_id)
        shares[row.tenant_id] = TenantShare(
            row.weight,
            row.max_concurrent_runs,
            has.occupied if has else 0,
            has.ahead if has else 0,
        )
    return shares
