"""Gauges of the whole fleet: shown by one scheduler, so that a sum over all of them is right.

That one is whoever holds shard 0: leases already see to it that there is one and hardly ever two,
and that a dead one is replaced within a term. It is asked at each look, not when the values were
read: a scheduler that has lost the shard, or slept, shows nothing.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runs import store
from runs.domain.waiting import WaitReason
from runs.shards import ShardLeases
from scheduler_project.lib.metrics import REGISTRY, TABLE, show_gauge
from scheduler_project.lib.process_metrics import INTERVAL_S

LEADING_SHARD: Final = 0
# A look reads every run that is not over, in a burst hundreds of thousands: the next one comes when
# this one's cost is a fiftieth of the time between them.
_PAUSE_PER_COST: Final = 50
# Older values are not shown: better none than one of a database that went away a minute ago.
_FRESH_S: Final = 4 * INTERVAL_S

# By name of the metric: the values of its labels, and the number.
Values = dict[str, list[tuple[tuple[str, ...], float]]]


@dataclass(frozen=True)
class _Look:
    values: Values
    at: float
    cost_s: float

    @property
    def pause_s(self) -> float:
        return self.cost_s * _PAUSE_PER_COST


class FleetMetrics(Collector):
    """What one scheduler process shows of the fleet; `look_once` is a part of its metrics duty."""

    def __init__(self, shards: ShardLeases) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._last: _Look | None = None

    def show(self) -> None:
        """Begin to show them, and this scheduler's own shards."""
        REGISTRY.register(self)
        show_gauge("shards_owned", lambda: len(self._shards.held()))

    def look_once(self) -> dict[str, int]:
        """Read the fleet's values, if this scheduler is the one that shows them."""
        began, last = _boottime_s(), self._last
        if not self._leads():
            look = None
        elif last is not None and began - last.at < last.pause_s:
            return {}
        else:
            values = read_fleet()
            look = _Look(values, began, cost_s=_boottime_s() - began)
        with self._lock:
            self._last = look
        return {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the values: for prometheus_client, at each look at the metrics."""
        with self._lock:
            last = self._last
        if last is None or not self._leads():
            return
        if _boottime_s() - last.at > _FRESH_S + last.pause_s:
            return
        for name, samples in last.values.items():
            yield _family(name, samples)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Yield nothing: so that registering doesn't collect."""
        return []

    def _leads(self) -> bool:
        return LEADING_SHARD in self._shards.held()


def read_fleet() -> Values:
    """Ask the database for the values of all the fleet's gauges."""
    (waiting,) = store.fetch("fleet_waiting")
    behind = store.fetch("planner_lag", look_ahead_s=settings.LOOK_AHEAD_S)
    (untold,) = store.fetch("notifier_lag")
    sessions = store.fetch("database_sessions", instance=settings.INSTANCE)
    return {
        "runs_waiting": [((reason.value,), getattr(waiting, reason)) for reason in WaitReason],
        "planner_lag_seconds": [((), behind[0].lag_s if behind else 0.0)],
        "dispatcher_lag_seconds": [((), waiting.oldest_wait_s)],
        "notifier_lag_seconds": [((), untold.lag_s)],
        "database_connections": [((row.role, row.state), row.sessions) for row in sessions],
        "database_connections_max": [((), row.most) for row in sessions[:1]],
    }


def _family(name: str, samples: list[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    metric = TABLE[name]
    family = GaugeMetricFamily(name, metric.meaning, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
