"""Which fault when? Its rule: the same seed and length give the same plan, inside the fault model.

Faults come in lanes. Within a lane one is over, and what it leaves has settled, before the next
begins; lanes don't know of one another. All that may fail on a node shares one lane, because the
product promises itself only while one of {worker, warden, engine} fails at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class Kind(StrEnum):
    """What is done to the system; the names are those of the report."""

    WORKER_KILLED = "worker killed"
    WORKER_FROZEN = "worker frozen"
    WORKER_ASLEEP = "worker asleep"
    WARDEN_KILLED = "warden killed"
    WARDEN_FROZEN = "warden frozen"
    ENGINE_RESTARTED = "engine restarted"
    ENGINE_FROZEN = "engine frozen"
    NETWORK_CUT = "network cut"
    DATABASE_RESTARTED = "database restarted"
    DATABASE_KILLED = "database killed"
    BROKER_EMPTIED = "broker emptied"
    BROKER_RESTARTED = "broker restarted"
    MESSAGES_DELAYED = "messages delayed"
    MESSAGES_DOUBLED = "messages doubled"
    SCHEDULER_KILLED = "scheduler killed"
    SCHEDULER_FROZEN = "scheduler frozen"
    CLOCK_SKEWED = "clock skewed"
    API_KILLED = "API killed"


class FaultClass(StrEnum):
    """SINGLE is what the product promises to bear, DOUBLE is beyond it.

    NAPS is inside it, too: workers that sleep past their leases and wake up when what they had runs
    elsewhere. There nothing but the fence stands between a late result and the record.
    """

    SINGLE = "single"
    DOUBLE = "double"
    NAPS = "naps"


@dataclass(frozen=True)
class Lease:
    """What a plan has to know of the lease arithmetic (seconds)."""

    lease_s: float
    warden_margin_s: float

    @property
    def dead_after_s(self) -> float:
        """So long after a worker's death its containers are dead, with room for a slow machine."""
        return self.lease_s - self.warden_margin_s + 2


@dataclass(frozen=True, order=True)
class Fault:
    """One fault. `at_s` from the start; `settles_s` after its end nothing else may fail there.

    `target` chooses among equals (worker 1, worker 2 …), `luck` whatever else a kind leaves open.
    """

    at_s: float
    kind: Kind
    lasts_s: float
    settles_s: float
    target: int
    luck: int

    @property
    def over_s(self) -> float:
        """When the next fault of the lane may come."""
        return self.at_s + self.lasts_s + self.settles_s


@dataclass(frozen=True)
class _Way:
    """How one kind goes: for how long, how long it takes to settle from its beginning and end."""

    kind: Kind
    lasts_s: tuple[float, float]
    settles_s: float = 0.0
    # Counted from the beginning: containers of a dead worker live on until the warden ends them.
    settled_from_start_s: float = 0.0


@dataclass(frozen=True)
class _Lane:
    name: str
    gap_s: tuple[float, float]
    ways: Sequence[_Way]


# What can't be told from a plan's side: nothing is judged in the first moments, when all starts.
_FIRST_S: Final = 2.0

# Two faults of one node at the same moment: what is not promised.
_DOUBLES: Final = (
    (Kind.WORKER_FROZEN, Kind.WARDEN_FROZEN),
    (Kind.WORKER_KILLED, Kind.WARDEN_KILLED),
    (Kind.WORKER_KILLED, Kind.ENGINE_FROZEN),
    (Kind.WARDEN_FROZEN, Kind.ENGINE_RESTARTED),
    (Kind.WORKER_FROZEN, Kind.ENGINE_FROZEN),
)


def _lanes(lease: Lease) -> list[_Lane]:
    longer_than_lease = lease.lease_s + 3
    node = [
        # Back before the lease ends, or long after.
        _Way(Kind.WORKER_KILLED, (0.2, 4), settled_from_start_s=lease.dead_after_s),
        _Way(Kind.WORKER_FROZEN, (1, longer_than_lease), settles_s=2),
        _Way(Kind.WARDEN_KILLED, (0.2, 3), settles_s=3),
        _Way(Kind.WARDEN_FROZEN, (1, 6), settles_s=2),
        _Way(Kind.ENGINE_RESTARTED, (0.2, 2), settles_s=3),
        _Way(Kind.ENGINE_FROZEN, (1, 5), settles_s=3),
    ]
    return [
        _Lane("node", (0.2, 2), node),
        _Lane("network", (4, 9), [_Way(Kind.NETWORK_CUT, (1, longer_than_lease), settles_s=1)]),
        _Lane(
            "database",
            (12, 22),
            [
                _Way(Kind.DATABASE_RESTARTED, (0.2, 4)),
                _Way(Kind.DATABASE_KILLED, (0.2, 3)),
            ],
        ),
        _Lane(
            "broker",
            (1, 4),
            [
                _Way(Kind.BROKER_EMPTIED, (0, 0)),
                _Way(Kind.BROKER_RESTARTED, (0.2, 5)),
                _Way(Kind.MESSAGES_DELAYED, (1, 7)),
                _Way(Kind.MESSAGES_DOUBLED, (0, 0)),
            ],
        ),
        _Lane(
            "scheduler",
            (1, 4),
            [
                _Way(Kind.SCHEDULER_KILLED, (0.2, 4)),
                _Way(Kind.SCHEDULER_FROZEN, (1, 12)),
                _Way(Kind.CLOCK_SKEWED, (3, 10)),
            ],
        ),
        _Lane("api", (10, 20), [_Way(Kind.API_KILLED, (0.2, 2))]),
    ]


def _naps(lease: Lease) -> _Lane:
    """Long enough for the reaper; it wakes up when the next attempt runs on another worker."""
    nap_s = (lease.lease_s + 1, lease.lease_s + 3)
    return _Lane("node", (2, 3), [_Way(Kind.WORKER_ASLEEP, nap_s, settles_s=2)])


def plan_faults(
    seed: int, seconds: float, lease: Lease, fault_class: FaultClass = FaultClass.SINGLE
) -> dict[str, list[Fault]]:
    """Return the faults of each lane, in order of time; every one is over at `seconds`."""
    plans: dict[str, list[Fault]] = {}
    for lane in [_naps(lease)] if fault_class is FaultClass.NAPS else _lanes(lease):
        random = Random(f"{seed}/{lane.name}")
        if lane.name == "node" and fault_class is FaultClass.DOUBLE:
            plans |= _doubles(random, seconds, lane)
        else:
            plans[lane.name] = list(_walk(random, seconds, lane))
    return plans


def all_faults(plans: dict[str, list[Fault]]) -> list[Fault]:
    """The faults of all lanes in order of time."""
    return sorted(fault for lane in plans.values() for fault in lane)


def _walk(random: Random, seconds: float, lane: _Lane) -> Iterator[Fault]:
    at_s = _FIRST_S + random.uniform(0, lane.gap_s[1] / 2)
    for way in _rounds(random, lane.ways):
        fault = _fault(random, at_s, way)
        if fault.at_s + fault.lasts_s > seconds:
            return
        yield fault
        at_s = round(fault.over_s + random.uniform(*lane.gap_s), 2)


def _rounds(random: Random, ways: Sequence[_Way]) -> Iterator[_Way]:
    """All kinds in random order, again and again: none is left out for long."""
    while True:
        yield from random.sample(ways, len(ways))


def _fault(random: Random, at_s: float, way: _Way) -> Fault:
    lasts_s = round(random.uniform(*way.lasts_s), 2)
    settles_s = max(way.settles_s, way.settled_from_start_s - lasts_s)
    return Fault(
        round(at_s, 2), way.kind, lasts_s, settles_s, random.randrange(60), random.randrange(10**6)
    )


def _doubles(random: Random, seconds: float, lane: _Lane) -> dict[str, list[Fault]]:
    """Pairs: the second begins while the first goes on. Each of a pair is in a lane of its own."""
    ways = {way.kind: way for way in lane.ways}
    firsts: list[Fault] = []
    seconds_of_pairs: list[Fault] = []
    at_s = _FIRST_S
    while True:
        one, other = random.choice(_DOUBLES)
        first = _fault(random, at_s, ways[one])
        second = _fault(random, at_s + min(0.5, first.lasts_s / 2), ways[other])
        if max(each.at_s + each.lasts_s for each in (first, second)) > seconds:
            return {"node": firsts, "node, second": seconds_of_pairs}
        firsts.append(first)
        seconds_of_pairs.append(second)
        at_s = max(first.over_s, second.over_s) + random.uniform(*lane.gap_s)
