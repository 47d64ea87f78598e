"""Which waiting run goes to which worker session?

Due work first, in fair order, into free slots and a small buffer; then runs ahead of their time,
in order of their time, into what sessions can hold prepared. Runs of one instant, the top of the
hour, are in fair order too.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tenants.domain.fairness import TenantLine, fair_order

# Placed beyond the slots, so that a slot that frees finds its next run already there.
_BUFFER_SHARE = 0.1
# Of its slots a tenant's retries may hold so much: a program that always fails, and is tried again
# and again, must not crowd out the tenant's own work that would succeed.
_RETRY_SHARE = 0.25
# The lane of retries among a tenant's own work.
_RETRY_RANK = 1


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


class WaitingRun(NamedTuple):
    """A queued, unplaced run. `rank` orders a tenant's own work: live, retries, catch-up.

    A tuple, because a burst has many. `scheduled_for` is only handed on: any form of it will do.
    `ready_s`: when it may go, in seconds of the epoch. `eta_s`: when its worker should look at it,
    None for at once.
    """

    run_id: UUID
    scheduled_for: str
    tenant_id: UUID
    ready_s: float
    eta_s: float | None
    region: str
    tier: str
    is_due: bool
    rank: int
    attempt: int


@dataclass(frozen=True)
class TenantShare:
    """A tenant's weight, its limit of slots, the slots it occupies, and its runs placed ahead.

    `retries`: how many of the occupied and the placed ones are tries after a failure.
    """

    weight: int
    most: int
    occupied: int
    ahead: int = 0
    retries: int = 0


class Placement(NamedTuple):
    """A run given to a session."""

    run: WaitingRun
    session_id: UUID


class _Room:
    """What is free on each session, of slots or of prepared places; the emptiest takes next."""

    def __init__(self, free: Iterable[tuple[OpenSession, int]]) -> None:
        # One heap for each kind of run. A session of several kinds stands in several heaps, so an
        # entry may tell an old number: it is put right when it comes to the top.
        self._free: dict[UUID, int] = {}
        self._heaps: dict[tuple[str, str], list[tuple[int, int, UUID]]] = {}
        for session, left in free:
            self._free[session.session_id] = max(0, left)
            for tier in session.tiers:
                self._heaps.setdefault((session.region, tier), []).append(_entry(session, left))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self.left = sum(self._free.values())

    def kinds(self) -> list[tuple[str, str]]:
        """The (region, tier) pairs that have room."""
        return sorted(
            kind
            for kind, heap in self._heaps.items()
            if any(self._free[session_id] for _, _, session_id in heap)
        )

    def take(self, region: str, tier: str) -> UUID | None:
        heap = self._heaps.get((region, tier))
        while heap:
            told, tie, session_id = heap[0]
            free = self._free[session_id]
            if free == 0:
                heapq.heappop(heap)
            elif free != -told:
                heapq.heapreplace(heap, (-free, tie, session_id))
            else:
                heapq.heapreplace(heap, (-(free - 1), tie, session_id))
                self._free[session_id] = free - 1
                self.left -= 1
                return session_id
        return None


def _entry(session: OpenSession, left: int) -> tuple[int, int, UUID]:
    return (-max(0, left), -session.session_id.int, session.session_id)


class Room(NamedTuple):
    """How many runs the sessions can be given at most, and of which kinds (region, tier)."""

    left: int
    kinds: Sequence[tuple[str, str]]


def room_for(sessions: Sequence[OpenSession]) -> Room:
    """Return what there is room for: nothing else need be looked at."""
    slots, prepared = _slots(sessions), _prepared(sessions)
    return Room(slots.left + prepared.left, sorted({*slots.kinds(), *prepared.kinds()}))


def place(
    waiting: Iterable[WaitingRun],
    shares: Mapping[UUID, TenantShare],
    sessions: Sequence[OpenSession],
    *,
    most: int,
) -> list[Placement]:
    """Return at most `most` placements for the waiting runs of tenants with known shares."""
    waiting = _within_retry_share(waiting, shares, sum(session.slots for session in sessions))
    due: list[WaitingRun] = []
    early: list[WaitingRun] = []
    for run in waiting:
        (due if run.is_due else early).append(run)
    placements = _place_due(due, shares, _slots(sessions), most)
    given: dict[UUID, int] = {}
    for run, _ in placements:
        given[run.tenant_id] = given.get(run.tenant_id, 0) + 1
    return placements + _place_early(
        early, shares, given, _prepared(sessions), most - len(placements)
    )


def retry_limit(most: int, slots: int) -> int:
    """Return how many retries of a tenant may hold a slot at once, one at least.

    Its slots are `most`, its limit, or all `slots` that there are when those are fewer.
    """
    return max(1, int(min(most, slots) * _RETRY_SHARE))


def _within_retry_share(
    waiting: Iterable[WaitingRun], shares: Mapping[UUID, TenantShare], slots: int
) -> list[WaitingRun]:
    """All but the retries beyond their tenant's part of slots; of those the earliest stay."""
    runs = list(waiting)
    left: dict[UUID, int] = {}
    beyond: set[UUID] = set()
    retries = (run for run in runs if run.rank == _RETRY_RANK)
    for run in sorted(retries, key=lambda run: (run.ready_s, run.run_id.int)):
        share = shares[run.tenant_id]
        free = left.get(run.tenant_id, retry_limit(share.most, slots) - share.retries)
        left[run.tenant_id] = free - 1
        if free <= 0:
            beyond.add(run.run_id)
    return [run for run in runs if run.run_id not in beyond] if beyond else runs


def _slots(sessions: Sequence[OpenSession]) -> _Room:
    return _Room(
        (s, s.slots + max(1, int(s.slots * _BUFFER_SHARE)) - s.slots_used) for s in sessions
    )


def _prepared(sessions: Sequence[OpenSession]) -> _Room:
    return _Room((s, s.prepared_limit - s.ahead) for s in sessions)


def _place_due(
    due: list[WaitingRun], shares: Mapping[UUID, TenantShare], room: _Room, most: int
) -> list[Placement]:
    due.sort(key=lambda run: (run.rank, run.ready_s, run.run_id.int))
    lines = [
        TenantLine(tenant_id, share.weight, share.occupied, share.most, runs)
        for tenant_id, runs in _by_tenant(due).items()
        for share in (shares[tenant_id],)
    ]
    return _fill(room, fair_order(lines), most)


def _place_early(
    early: list[WaitingRun],
    shares: Mapping[UUID, TenantShare],
    given: Mapping[UUID, int],
    room: _Room,
    most: int,
) -> list[Placement]:
    """Place runs ahead of their time, as long as their tenant may still have a slot.

    All that fall due in one second have their go in it: placed beyond the tenant's limit, they
    would run beyond it.
    """
    early.sort(key=lambda run: (run.ready_s, run.run_id.int))
    lines = [
        TenantLine(
            tenant_id,
            share.weight,
            share.occupied + share.ahead + given.get(tenant_id, 0),
            share.most,
            runs,
        )
        for tenant_id, runs in _by_tenant(early).items()
        for share in (shares[tenant_id],)
    ]
    return _fill(room, fair_order(lines, earlier=lambda run: run.ready_s), most)


def _by_tenant(runs: Iterable[WaitingRun]) -> dict[UUID, list[WaitingRun]]:
    by_tenant: dict[UUID, list[WaitingRun]] = {}
    for run in runs:
        by_tenant.setdefault(run.tenant_id, []).append(run)
    return by_tenant


def _fill(room: _Room, runs: Iterable[WaitingRun], most: int) -> list[Placement]:
    """Place runs in their order while there is room: a flood beyond it costs nothing."""
    placements: list[Placement] = []
    if room.left == 0 or most <= 0:
        return placements
    for run in runs:
        session_id = room.take(run.region, run.tier)
        if session_id is not None:
            placements.append(Placement(run, session_id))
            if room.left == 0 or len(placements) == most:
                break
    return placements
