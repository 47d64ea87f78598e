"""Which waiting run goes to which worker session?

Due work first, in fair order, into free slots and a small buffer; then runs ahead of their time,
in order of `ready_at`, into what sessions can hold prepared.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    """A tenant's weight, its limit of slots, the slots it occupies, and its runs placed ahead."""

    weight: int
    most: int
    occupied: int
    ahead: int = 0


@dataclass(frozen=True)
class Placement:
    """A run given to a session."""

    run_id: UUID
    scheduled_for: datetime
    session_id: UUID
    tenant_id: UUID


class _Room:
    """What is free on each session, of slots or of prepared places; the emptiest takes next."""

    def __init__(self, free: Sequence[tuple[OpenSession, int]]) -> None:
        self._free = {session.session_id: max(0, left) for session, left in free}
        self._sessions = [session for session, _ in free]
        self.left = sum(self._free.values())

    def take(self, run: WaitingRun) -> UUID | None:
        fitting = [
            s.session_id
            for s in self._sessions
            if s.region == run.region and run.tier in s.tiers and self._free[s.session_id] > 0
        ]
        if not fitting:
            return None
        emptiest = max(fitting, key=lambda session_id: (self._free[session_id], session_id.int))
        self._free[emptiest] -= 1
        self.left -= 1
        return emptiest


def room_for(sessions: Sequence[OpenSession]) -> int:
    """Return how many runs the sessions can be given at most: more need not be looked at."""
    return _slots(sessions).left + _prepared(sessions).left


def place(
    waiting: Sequence[WaitingRun],
    shares: dict[UUID, TenantShare],
    sessions: Sequence[OpenSession],
    *,
    most: int,
) -> list[Placement]:
    """Return at most `most` placements for the waiting runs of tenants with known shares."""
    due = fair_order(_lines([run for run in waiting if run.is_due], shares))
    placements = _fill(_slots(sessions), due, most)
    early = _within_limits([run for run in waiting if not run.is_due], shares, placements)
    return placements + _fill(_prepared(sessions), early, most - len(placements))


def _slots(sessions: Sequence[OpenSession]) -> _Room:
    free = [s.slots + max(1, int(s.slots * _BUFFER_SHARE)) - s.slots_used for s in sessions]
    return _Room(list(zip(sessions, free, strict=True)))


def _prepared(sessions: Sequence[OpenSession]) -> _Room:
    return _Room([(s, s.prepared_limit - s.ahead) for s in sessions])


def _fill(room: _Room, runs: Iterable[WaitingRun], most: int) -> list[Placement]:
    """Place runs in their order while there is room: a flood beyond it costs nothing."""
    placements: list[Placement] = []
    for run in runs:
        if room.left == 0 or len(placements) >= most:
            break
        session_id = room.take(run)
        if session_id is not None:
            placements.append(Placement(run.run_id, run.scheduled_for, session_id, run.tenant_id))
    return placements


def _within_limits(
    ahead: Iterable[WaitingRun], shares: dict[UUID, TenantShare], due: Iterable[Placement]
) -> Iterator[WaitingRun]:
    """Runs ahead of their time, by that time, as long as their tenant may still have a slot.

    All that fall due in one second have their go in it: placed beyond the tenant's limit, they
    would run beyond it.
    """
    held = {tenant_id: share.occupied + share.ahead for tenant_id, share in shares.items()}
    for placement in due:
        held[placement.tenant_id] += 1
    for run in sorted(ahead, key=lambda run: (run.ready_at, run.run_id.int)):
        if held[run.tenant_id] < shares[run.tenant_id].most:
            held[run.tenant_id] += 1
            yield run


def _lines(
    due: Sequence[WaitingRun], shares: dict[UUID, TenantShare]
) -> list[TenantLine[WaitingRun]]:
    by_tenant: dict[UUID, list[WaitingRun]] = {}
    for run in sorted(due, key=lambda run: (run.rank, run.ready_at, run.run_id.int)):
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
