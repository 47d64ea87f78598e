"""Looks from time to time at what every process has: its clock, and its pool of connections."""

import time
from collections.abc import Callable, Mapping

from django.db import connection
from psycopg_pool import ConnectionPool

from scheduler_project.lib.duty import Duty
from scheduler_project.lib.metrics import set_gauge

INTERVAL_S = 5.0


def metrics_duty(*looks: Callable[[], Mapping[str, int]]) -> Duty:
    """Return the duty that keeps this process's gauges fresh, and takes `looks` in each round."""

    def look_once() -> dict[str, int]:
        for look in (measure_clock, measure_pool, *looks):
            look()
        if _pool() is not None:
            connection.close()  # back into the pool, where requests may need it meanwhile
        return {}

    return Duty("metrics", look_once, interval_s=INTERVAL_S)


def measure_clock() -> dict[str, int]:
    """Show how far this process's clock is from the database's, asked half-way."""
    with connection.cursor() as cursor:
        before = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        after = time.time()
        (database,) = cursor.fetchone()
    set_gauge("clock_skew_seconds", (before + after) / 2 - database)
    return {}


def measure_pool() -> dict[str, int]:
    """Show the state of the connection pool, where there is one (DATABASE_POOL_SIZE)."""
    pool = _pool()
    if pool is not None:
        stats = pool.get_stats()
        set_gauge("database_pool_size", stats.get("pool_size", 0))
        set_gauge("database_pool_available", stats.get("pool_available", 0))
        set_gauge("database_pool_waiting", stats.get("requests_waiting", 0))
    return {}


def _pool() -> "ConnectionPool | None":
    return getattr(connection, "pool", None)
