"""What the processes count and show: one table of names, labels and meanings, and how to count.

Its rule: a fact is counted once, by the process that committed it and after the commit. No label
names a tenant: there would be as many series as customers (their numbers are in GET /v1/usage).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from django.conf import settings
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    """What may be done with a value: rates of counters, quantiles of histograms."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table. `known`: values of the one label, shown as 0 from the start on.

    `across`: how the gauges of one server's processes become one number (prometheus_client's
    words); counters and histograms are summed.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    across: Literal["livesum", "livemax", "livemostrecent"] = "livesum"


# From a run that started on its second to one that an outage made late.
LAG_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3_600)
FINAL_STATUSES: Final = ("succeeded", "failed", "cancelled", "skipped")

METRICS: Final = (
    Metric(
        "runs_planned_total",
        Kind.COUNTER,
        "Runs made: occurrences (those that are skipped at once, too), backfills, and runs by hand",
    ),
    Metric(
        "runs_placed_total",
        Kind.COUNTER,
        "Times that a run was given to a worker; again after it was handed or taken back",
    ),
    Metric(
        "runs_started_total",
        Kind.COUNTER,
        "Containers that the engine started: one for each attempt that got so far",
    ),
    Metric(
        "runs_completed_total",
        Kind.COUNTER,
        "Runs that became final, by their status",
        ("status",),
        known=FINAL_STATUSES,
    ),
    Metric(
        "run_failures_total",
        Kind.COUNTER,
        "Attempts that ended neither in success nor by a cancel, our own troubles included",
    ),
    Metric(
        "run_retries_total",
        Kind.COUNTER,
        "Attempts after which the run was queued for another one",
    ),
    Metric("dead_letters_total", Kind.COUNTER, "Runs that failed for good"),
    Metric(
        "lease_expiries_total",
        Kind.COUNTER,
        "Attempts that ended because their lease had run out",
    ),
    Metric(
        "notification_attempts_total",
        Kind.COUNTER,
        "Attempts to deliver a webhook or an e-mail, by how they went",
        ("status",),
        known=("delivered", "failed"),
    ),
    Metric(
        "notifications_given_up_total",
        Kind.COUNTER,
        "Messages that could not be delivered within their time",
    ),
    Metric("webhooks_switched_off_total", Kind.COUNTER, "Webhooks switched off by themselves"),
    Metric(
        "dispatch_lag_seconds",
        Kind.HISTOGRAM,
        "From due to the first start of a run, without backfills; never below 0",
        ("region", "tier"),
    ),
    Metric(
        "runs_waiting",
        Kind.GAUGE,
        "Runs that have not started, by what they wait for (as waiting_for in the API)",
        ("reason",),
    ),
    Metric(
        "planner_lag_seconds",
        Kind.GAUGE,
        "How long the oldest occurrence has been within the look-ahead without being planned",
    ),
    Metric(
        "dispatcher_lag_seconds",
        Kind.GAUGE,
        "How long the oldest ready run waits for a worker that its tenant's limit lets run",
    ),
    Metric(
        "notifier_lag_seconds",
        Kind.GAUGE,
        "How long the oldest message that nobody has tried to deliver has waited",
    ),
    Metric("shards_owned", Kind.GAUGE, "Shards that this scheduler plans"),
    Metric(
        "slots_free", Kind.GAUGE, "Runs that this worker could start now; 0 while it takes none"
    ),
    Metric("slots_used", Kind.GAUGE, "Runs that hold a slot of this worker"),
    Metric(
        "clock_skew_seconds",
        Kind.GAUGE,
        "This process's clock minus the database's; only shown, nothing is decided by it",
        across="livemostrecent",
    ),
    Metric("database_pool_size", Kind.GAUGE, "Connections in this process's pool"),
    Metric("database_pool_available", Kind.GAUGE, "Connections of the pool that nobody uses"),
    Metric("database_pool_waiting", Kind.GAUGE, "Requests that wait for a connection of the pool"),
    Metric(
        "database_connections",
        Kind.GAUGE,
        "This installation's sessions in the database, by kind of process and what they do",
        ("role", "state"),
    ),
    Metric("database_connections_max", Kind.GAUGE, "Sessions that the database allows in all"),
    Metric(
        "replica_lag_seconds",
        Kind.GAUGE,
        "How old at most what the replica shows is; beyond REPLICA_MAX_LAG_S lists ask the primary",
        across="livemax",
    ),
)
TABLE: Final = {metric.name: metric for metric in METRICS}

REGISTRY: Final = CollectorRegistry()


def count(name: str, amount: float = 1, **labels: str) -> None:
    """Add to a counter of the table. Call it when the fact is committed."""
    if amount:
        counter = _COUNTERS[name]
        (counter.labels(**labels) if labels else counter).inc(amount)


def observe(name: str, value: float, **labels: str) -> None:
    """Add a value to a histogram of the table."""
    histogram = _HISTOGRAMS[name]
    (histogram.labels(**labels) if labels else histogram).observe(value)


def set_gauge(name: str, value: float) -> None:
    """Show a value of this process from now on. Gauges that no process sets aren't shown."""
    _gauge(name).set(value)


def show_gauge(name: str, read: Callable[[], float]) -> None:
    """Show what `read` returns at each look; only in processes that stand alone (no API)."""
    _gauge(name).set_function(read)


def exposition() -> bytes:
    """Return what this process shows, in an API that of all processes of the server together."""
    if not settings.PROMETHEUS_MULTIPROC_DIR:
        return generate_latest(REGISTRY)
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    return generate_latest(together)


def _counter(metric: Metric) -> Counter:
    counter = Counter(metric.name, metric.meaning, metric.labels, registry=REGISTRY)
    for value in metric.known:
        counter.labels(value)
    return counter


def _gauge(name: str) -> Gauge:
    # Made when first used: a gauge of 0 in a process that has no such thing would be a lie.
    if name not in _GAUGES:
        metric = TABLE[name]
        _GAUGES[name] = Gauge(
            name,
            metric.meaning,
            metric.labels,
            registry=REGISTRY,
            multiprocess_mode=metric.across,
        )
    return _GAUGES[name]


disable_created_metrics()  # type: ignore[no-untyped-call]
_COUNTERS: Final = {m.name: _counter(m) for m in METRICS if m.kind is Kind.COUNTER}
_HISTOGRAMS: Final = {
    m.name: Histogram(m.name, m.meaning, m.labels, registry=REGISTRY, buckets=LAG_BUCKETS_S)
    for m in METRICS
    if m.kind is Kind.HISTOGRAM
}
_GAUGES: Final[dict[str, Gauge]] = {}
