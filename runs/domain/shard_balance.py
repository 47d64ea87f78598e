"""Which shards should a scheduler process hold, given who else is there?

Each process decides for itself from the same rows; what two of them both want is settled by the
rows' guards, and what they then hold differs by at most one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True)
class ShardChange:
    """What a process should do with its shards now."""

    resign: list[int] = field(default_factory=list)
    take: list[int] = field(default_factory=list)


def balance(me: UUID, owners: Mapping[int, UUID | None], live: Sequence[UUID]) -> ShardChange:
    """Decide from the present owners (None: free, or its lease has ended) and the live processes.

    A process holds ⌊shards ÷ processes⌋, and the first few in order of id one more. It gives up
    its highest surplus shards, and takes the lowest free ones. Shards of a process that is live
    are never taken: it resigns them by itself.
    """
    ranked = sorted({*live, me})
    base, extra = divmod(len(owners), len(ranked))
    target = base + (1 if ranked.index(me) < extra else 0)
    mine = sorted(shard for shard, owner in owners.items() if owner == me)
    free = sorted(shard for shard, owner in owners.items() if owner is None or owner not in ranked)
    return ShardChange(resign=mine[target:], take=free[: max(0, target - len(mine))])
