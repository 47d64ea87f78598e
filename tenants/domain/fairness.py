"""Who gets the next free slot? The tenant with the smallest share of slots for its weight."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

Work = TypeVar("Work")


@dataclass(frozen=True)
class TenantLine(Generic[Work]):
    """A tenant's waiting work in its own order, with the slots it occupies and may occupy."""

    tenant_id: UUID
    weight: int
    occupied: int
    most: int
    waiting: Sequence[Work]


def fair_order(
    lines: Sequence[TenantLine[Work]], *, earlier: Callable[[Work], float] = lambda work: 0.0
) -> Iterator[Work]:
    """Yield waiting work in fair order: each next one goes to the smallest occupied ÷ weight.

    Every piece yielded is counted as occupying a slot of its tenant. A tenant at its limit gets
    nothing more. Ties are broken by the tenant's id, so that the order is stable; work-conserving:
    while anybody below its limit has work, something is yielded. With `earlier` the work with the
    smallest answer goes first, and shares decide between equal answers only; each line must be in
    that order.
    """
    heap = [
        (earlier(line.waiting[0]), line.occupied / line.weight, line.tenant_id.int, index)
        for index, line in enumerate(lines)
        if line.waiting and line.occupied < line.most
    ]
    heapq.heapify(heap)
    taken = [0] * len(lines)
    while heap:
        _, _, tie, index = heap[0]
        line = lines[index]
        yield line.waiting[taken[index]]
        taken[index] += 1
        occupied = line.occupied + taken[index]
        if taken[index] < len(line.waiting) and occupied < line.most:
            urgency = earlier(line.waiting[taken[index]])
            heapq.heapreplace(heap, (urgency, occupied / line.weight, tie, index))
        else:
            heapq.heappop(heap)
