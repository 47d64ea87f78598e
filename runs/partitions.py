"""Daily partitions of the run tables: made ahead of time, because there is no default partition.

A default partition would catch what has no home, but it blocks DETACH CONCURRENTLY and every
CREATE of the day it holds rows for; so days are made ahead and start-up checks watch them.
"""

from datetime import date, datetime, timedelta

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

TABLES = ("runs", "run_attempts", "run_outputs")

# Settings of a partitioned table are not inherited by its partitions. Runs are updated four or
# five times in their short life: room on the page keeps these updates HOT.
_STORAGE = {
    "runs": "fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05",
    "run_attempts": "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05",
    "run_outputs": "autovacuum_vacuum_scale_factor = 0.05",
}


def partition_name(table: str, day: date) -> str:
    """Return the name of the partition of `table` that holds `day` (UTC)."""
    return f"{table}_{day:%Y%m%d}"


def create_partition_sql(table: str, day: date) -> str:
    """Return the statement that makes the partition of one day (UTC); harmless when it exists."""
    following = day + timedelta(days=1)
    return (
        f"CREATE TABLE IF NOT EXISTS {partition_name(table, day)} PARTITION OF {table} "
        f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{following} 00:00:00+00') "
        f"WITH ({_STORAGE[table]})"
    )


def create_partitions(
    connection: BaseDatabaseWrapper, *, today: date, days_back: int, days_ahead: int
) -> int:
    """Make every missing partition from `days_back` before to `days_ahead` after `today`.

    Returns how many tables were made. Safe to call from several processes at once: an advisory
    lock makes them take turns, as IF NOT EXISTS alone may still collide in the catalogue.
    """
    days = [today + timedelta(days=n) for n in range(-days_back, days_ahead + 1)]
    wanted = {partition_name(table, day): (table, day) for day in days for table in TABLES}
    # transaction.atomic: outside one the advisory lock would end with its own statement.
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname = ANY(%s)", [list(wanted)])
        for (name,) in cursor.fetchall():
            del wanted[name]
        if wanted:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('run partitions'))")
        for table, day in wanted.values():
            cursor.execute(create_partition_sql(table, day))
    return len(wanted)


def database_today(connection: BaseDatabaseWrapper) -> date:
    """Return the current day in UTC by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now() AT TIME ZONE 'UTC'")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now.date()
