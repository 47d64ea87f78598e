"""Shard leases: which slice of the jobs this scheduler process plans, for a term.

A shard lease saves work, it keeps no promise: SKIP LOCKED and the unique key stay right when two
processes believe they own one. The owner is a process (a random id), never a host's name, and the
term is in every renewal's guard; a renewal that fails gives the shard up.
"""

import os
import threading
import time
from uuid import UUID, uuid4

from django.conf import settings

from runs import store
from runs.domain.shard_balance import balance
from scheduler_project.lib.events import emit


class ShardLeases:
    """The shards that one scheduler process holds; `tick` is a duty, `held` is for the planner."""

    def __init__(self, owner: UUID | None = None) -> None:
        self.owner = owner or uuid4()
        self._lock = threading.Lock()
        self._terms: dict[int, int] = {}
        self._until = 0.0

    def held(self) -> list[int]:
        """Return the shards whose lease this process may still believe in.

        Timed from before the renewal was sent; CLOCK_BOOTTIME, as a suspended host must not wake
        up with leases that others have taken.
        """
        with self._lock:
            return sorted(self._terms) if _boottime_s() < self._until else []

    def tick(self) -> dict[str, int]:
        """Renew, then give up or take shards by the balance; returns counts of what changed."""
        sent_at = _boottime_s()
        term_s = settings.SHARD_TERM_S
        store.execute(
            "announce_scheduler",
            owner=self.owner, node=settings.NODE, pid=os.getpid(), term_s=term_s,
        )  # fmt: skip
        lost = self._renew(term_s)
        owners = self._owners()
        live = [row.owner for row in store.fetch("live_schedulers")]
        change = balance(self.owner, owners, live)
        self._resign(change.resign)
        taken = self._take(change.take, term_s)
        with self._lock:
            self._until = sent_at + term_s
        if lost or change.resign or taken:
            emit("shards.changed", "This scheduler's shards have changed.", held=len(self._terms),
                 lost=lost, resigned=len(change.resign), taken=taken)  # fmt: skip
        return {"lost": lost, "resigned": len(change.resign), "taken": taken}

    def resign_all(self) -> None:
        """Give everything up at once, at a graceful stop: the others take over without waiting."""
        with self._lock:
            shards = list(self._terms)
        self._resign(shards)
        store.execute("forget_scheduler", owner=self.owner)

    def _owners(self) -> dict[int, UUID | None]:
        rows = store.fetch("shard_owners", shards=settings.SHARDS)
        if len(rows) < settings.SHARDS:
            store.execute("ensure_shards", shards=settings.SHARDS)
            rows = store.fetch("shard_owners", shards=settings.SHARDS)
        return {row.shard: row.owner for row in rows}

    def _renew(self, term_s: float) -> int:
        with self._lock:
            terms = dict(self._terms)
        kept = store.fetch(
            "renew_shards",
            owner=self.owner, shards=list(terms), terms=list(terms.values()), term_s=term_s,
        )  # fmt: skip
        with self._lock:
            self._terms = {row.shard: row.term for row in kept}
        return len(terms) - len(kept)

    def _take(self, shards: list[int], term_s: float) -> int:
        if not shards:
            return 0
        rows = store.fetch("take_shards", owner=self.owner, shards=shards, term_s=term_s)
        with self._lock:
            self._terms |= {row.shard: row.term for row in rows}
        return len(rows)

    def _resign(self, shards: list[int]) -> None:
        if not shards:
            return
        with self._lock:  # first, so that the planner stops before others begin
            terms = [self._terms.pop(shard) for shard in shards]
        store.execute("resign_shards", owner=self.owner, shards=shards, terms=terms)


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
