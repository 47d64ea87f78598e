"""Which waiting run goes to which worker session?

Due work first, in fair order, into free slots and a small buffer; then runs ahead of their time,
in order of `ready_at`, into what sessions can hold prepared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenants.domain.fairness import TenantLine, fair_order

# Placed beyond the slots, so that a slot that frees finds its next run already there.
_BUFFER_SHARE = 0.1


@dataclass(frozen=True)
class OpenSession:
    """A session that may be given runs, and what it holds already."""

    session_id: UUID
    queue: str
    region: str
    tiers: Sequence[str]
    slots: int
    prepared_limit: int
    slots_used: int
    ahead: int


@dataclass(frozen=True)
class WaitingRun:
    """A queued, unplaced run. `rank` orders a tenant's own work: live, retries, catch-up."""

    run_id: UUID
    scheduled_for: datetime
    tenant_id: UUID
    ready_at: datetime
    region: str
    tier: str
    is_due: bool
    rank: int


@dataclass(frozen=True)
class TenantShare:
    """A tenant's weight, its limit of slots, and the slots it occupies now."""

    weight: int
    most: int
    occupied: int


@dataclass(frozen=True)
class Placement:
    """A run given to a session."""

    run_id: UUID
    scheduled_for: datetime
    session_id: UUID


class _Room:
    """What is still free on each session; the emptiest takes next."""

    def __init__(self, sessions: Iterable[OpenSession]) -> None:
        self._sessions = list(sessions)
        self._slots = {
            s.session_id: s.slots + max(1, int(s.slots * _BUFFER_SHARE)) - s.slots_used
            for s in self._sessions
        }
        self._prepared = {s.session_id: s.prepared_limit - s.ahead for s in self._sessions}

    def take_slot(self, run: WaitingRun) -> UUID | None:
        return self._take(run, self._slots)

    def take_prepared(self, run: WaitingRun) -> UUID | None:
        return self._take(run, self._prepared)

    def _take(self, run: WaitingRun, free: dict[UUID, int]) -> UUID | None:
        fitting = [
            s.session_id
            for s in self._sessions
            if s.region == run.region and run.tier in s.tiers and free[s.session_id] > 0
        ]
        if not fitting:
            return None
        emptiest = max(fitting, key=lambda session_id: (free[session_id], session_id.int))
        free[emptiest] -= 1
        return emptiest


def place(
    waiting: Sequence[WaitingRun],
    shares: dict[UUID, TenantShare],
    sessions: Sequence[OpenSession],
    *,
    most: int,
) -> list[Placement]:
    """Return at most `most` placements for the waiting runs of tenants with known shares."""
    room = _Room(sessions)
    placements: list[Placement] = []
    due = [run for run in waiting if run.is_due]
    ahead = sorted(
        (run for run in waiting if not run.is_due), key=lambda run: (run.ready_at, run.run_id)
    )
    ordered = [(run, room.take_slot) for run in fair_order(_lines(due, shares))]
    ordered += [(run, room.take_prepared) for run in ahead]
    for run, take in ordered:
        if len(placements) == most:
            break
        session_id = take(run)
        if session_id is not None:
            placements.append(Placement(run.run_id, run.scheduled_for, session_id))
    return placements


def _lines(
    due: Sequence[WaitingRun], shares: dict[UUID, TenantShare]
) -> list[TenantLine[WaitingRun]]:
    by_tenant: dict[UUID, list[WaitingRun]] = {}
    for run in sorted(due, key=lambda run: (run.rank, run.ready_at, run.run_id)):
        by_tenant.setdefault(run.tenant_id, []).append(run)
    return [
        TenantLine(
            tenant_id,
            shares[tenant_id].weight,
            shares[tenant_id].occupied,
            shares[tenant_id].most,
            waiting,
        )
        for tenant_id, waiting in by_tenant.items()
    ]
