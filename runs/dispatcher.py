"""The dispatcher: gives queued runs to worker sessions in fair order, then sends their messages.

One at a time over all schedulers, by an advisory lock in one short transaction; the messages go
out after the commit. Losing every one of them costs latency only: each worker also looks at its
rows each second.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction

from runs import store, transport
from runs.domain.placement import (
    OpenSession,
    Placement,
    Room,
    TenantShare,
    WaitingRun,
    place,
    room_for,
)
from runs.domain.state import RunStatus
from runs.notifications import note_run_ends
from runs.run_metrics import count_final
from scheduler_project.lib.metrics import count

# Waiting runs that are read for a batch, for each place in it and at least: enough to choose from
# in fair order, and no more, because reading them is a good part of what a placement costs.
_READ_PER_PLACE = 2
_LEAST_READ = 400


def dispatch_once() -> dict[str, int]:
    """Place one batch and send its messages.

    Returns counts: `placed` runs, `sent` messages; both 0 also when another scheduler dispatches.
    """
    with transaction.atomic():
        (locked,) = store.fetch("try_dispatcher_lock")
        if not locked[0]:
            return {"placed": 0, "sent": 0}
        holdings = _holdings()
        sessions = _open_sessions(holdings)
        placed = _place(sessions, holdings)
    count("runs_placed_total", len(placed))
    queues = {session.session_id: session.queue for session in sessions}
    sent = transport.send(
        [
            transport.Message(run.run_id, run.attempt, queues[session_id], run.eta_s)
            for run, session_id in placed
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
        note_run_ends(expired)
        store.release_guards((row.job_id, row.run_id) for row in expired)
    count_final(RunStatus.SKIPPED, len(expired))
    return {"expired": len(expired)}


def is_behind(counts: Mapping[str, int]) -> bool:
    """Return whether the batch was full, so that more runs are likely to wait."""
    return counts.get("placed", 0) >= settings.DISPATCH_BATCH


class _Held(NamedTuple):
    """What a session or a tenant holds: runs in slots by now, and runs ahead of their time.

    `retries`: how many of all these are tries after a failure.
    """

    occupied: int
    ahead: int
    retries: int


_NOTHING = _Held(0, 0, 0)


def _holdings() -> dict[UUID, _Held]:
    """What is held, by the id of each session and of each tenant."""
    return {
        row.session_id or row.tenant_id: _Held(row.occupied, row.ahead, row.retries)
        for row in store.fetch("held_runs")
    }


def _open_sessions(holdings: Mapping[UUID, _Held]) -> list[OpenSession]:
    return [
        OpenSession(
            **row._asdict(),
            slots_used=holdings.get(row.session_id, _NOTHING).occupied,
            ahead=holdings.get(row.session_id, _NOTHING).ahead,
        )
        for row in store.fetch("open_sessions", silent_s=settings.SILENT_S)
    ]


def _place(sessions: list[OpenSession], holdings: Mapping[UUID, _Held]) -> list[Placement]:
    room = room_for(sessions)
    if room.left == 0:
        return []
    places = min(room.left, settings.DISPATCH_BATCH)
    rows = _waiting(room, places, holdings)
    placements = place(
        [WaitingRun._make(row[: len(WaitingRun._fields)]) for row in rows],
        {row.tenant_id: _share(row, holdings) for row in rows},
        sessions,
        most=places,
    )
    if not placements:
        return []
    placed = store.fetch_of_runs(
        "place_runs",
        [run for run, _ in placements],
        sessions=store.uuids(session_id for _, session_id in placements),
    )
    # One that is missing was cancelled, deleted or taken meanwhile, or is locked: not ours now.
    ours = {row.run_id for row in placed}
    return [placement for placement in placements if placement.run.run_id in ours]


def _waiting(room: Room, places: int, holdings: Mapping[UUID, _Held]) -> list[Any]:
    """Rows to choose `places` runs from; each has the fields of a waiting run, and its tenant's."""
    parameters = {
        "place_lead_s": settings.PLACE_LEAD_S,
        "prepare_lead_s": settings.PREPARE_LEAD_S,
        "places": places,
        "reading": max(_LEAST_READ, _READ_PER_PLACE * places),
        "kinds": [f"{region} {tier}" for region, tier in room.kinds],
        "tenant_ids": store.uuids(holdings),
        "occupied": store.integers(held.occupied for held in holdings.values()),
    }
    days = store.fetch("waiting_days", place_lead_s=settings.PLACE_LEAD_S)
    return [row for (day,) in days for row in store.fetch_of_day("waiting_runs", day, **parameters)]


def _share(row: Any, holdings: Mapping[UUID, _Held]) -> TenantShare:
    held = holdings.get(row.tenant_id, _NOTHING)
    return TenantShare(row.weight, row.max_concurrent_runs, *held)
