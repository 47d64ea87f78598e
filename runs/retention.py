"""The days of history: partitions are made ahead of time, and dropped when they are old enough.

A day is dropped as a whole (no row is ever deleted from it), and never while a run of it is not
final. Dropping frees nothing to run again: `planned_through` of every cursor lies beyond it.
"""

from datetime import date, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from runs import store
from runs.partitions import (
    TABLES,
    create_partitions,
    database_today,
    drop_partition,
    partition_days,
    partition_is_final,
)
from scheduler_project.lib.events import emit


def create_partitions_once() -> dict[str, int]:
    """Make the partitions of the days ahead; returns how many tables were made."""
    made = create_partitions(
        connection,
        today=database_today(connection),
        days_back=1,
        days_ahead=settings.PARTITION_DAYS_AHEAD,
    )
    return {"partitions": made}


def drop_old_partitions_once() -> dict[str, int]:
    """Drop the days older than the retention; returns counts of what went and what had to stay.

    Must run outside a transaction: a partition is detached concurrently, so that no reader or
    writer of the other days waits for it.
    """
    (row,) = store.fetch("try_retention_lock")
    if not row[0]:
        return {"dropped": 0}
    try:
        dropped, kept = _drop_days(database_today(connection))
        purged = _purge_rows()
    finally:
        store.fetch("release_retention_lock")
    return {"dropped": dropped, "kept": kept, **purged}


def _drop_days(today: date) -> tuple[int, int]:
    oldest = today - timedelta(days=settings.RETENTION_DAYS)
    dropped = kept = 0
    for day in partition_days(connection, "runs"):
        if day >= oldest:
            continue
        if not partition_is_final(connection, day):
            kept += 1
            emit("retention.kept", "An old day was kept: a run of it is not final.", day=day)
            continue
        # Runs last: while a day's runs are there, so is all that belongs to them or it was decided.
        for table in reversed(TABLES):
            drop_partition(connection, table, day)
        dropped += 1
        emit("retention.dropped", "A day of history was dropped.", day=day)
    return dropped, kept


def _purge_rows() -> dict[str, int]:
    """Delete what is old in the tables that have no partitions."""
    parameters: dict[str, Any] = {"days": settings.RETENTION_DAYS}
    return {
        "events": store.execute("purge_run_events", **parameters),
        "sessions": store.execute("purge_sessions", **parameters),
    }
