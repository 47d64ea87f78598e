"""Daily partitions of the run tables: made ahead of time, because there is no default partition.

A default partition would catch what has no home, but it blocks DETACH CONCURRENTLY and every
CREATE of the day it holds rows for; so days are made ahead and start-up checks watch them.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

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
        if not _missing(cursor, wanted):
            return 0
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('run partitions'))")
        missing = _missing(cursor, wanted)  # again: whoever had the lock has made some
        for name in missing:
            cursor.execute(create_partition_sql(*wanted[name]))
    return len(missing)


def _missing(cursor: CursorWrapper, names: Iterable[str]) -> list[str]:
    cursor.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL",
        [list(names)],
    )
    return [name for (name,) in cursor.fetchall()]


def database_today(connection: BaseDatabaseWrapper) -> date:
    """Return the current day in UTC by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now() AT TIME ZONE 'UTC'")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now.date()


def partition_days(connection: BaseDatabaseWrapper, table: str) -> list[date]:
    """Return the days (UTC) that have a partition of `table`, detached ones included, in order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s ORDER BY relname",
            [f"^{table}_[0-9]{{8}}$"],
        )
        return [date.fromisoformat(name.removeprefix(f"{table}_")) for (name,) in cursor.fetchall()]


def oldest_instant(connection: BaseDatabaseWrapper, today: date, keep_days: int) -> datetime:
    """Return where rows may begin: the first instant from which every day up to today has a home.

    Days that retention may drop at any moment (older than `keep_days`) don't count.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relispartition"
            " AND relname ~ '^runs_[0-9]{8}$'"
        )
        names = {name for (name,) in cursor.fetchall()}
    day = today
    while day > today - timedelta(days=keep_days):
        before = day - timedelta(days=1)
        if partition_name("runs", before) not in names:
            break
        day = before
    return datetime.combine(day, time(), UTC)


def partition_is_final(connection: BaseDatabaseWrapper, day: date) -> bool:
    """Return whether every run of the day is final: only then may the day be dropped."""
    name = partition_name("runs", day)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT NOT EXISTS (SELECT FROM {name} WHERE finished_at IS NULL)"  # noqa: S608 – ours
        )
        (final,) = cursor.fetchone()
    return bool(final)


def drop_partition(connection: BaseDatabaseWrapper, table: str, day: date) -> None:
    """Detach the day's partition without making anybody wait, then drop it; harmless when gone.

    A detach that was interrupted is pending, and every further one would fail: it is finished
    first. Call outside a transaction.
    """
    name = partition_name(table, day)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT i.inhdetachpending FROM pg_inherits i WHERE i.inhrelid = to_regclass(%s)",
            [name],
        )
        row = cursor.fetchone()
        if row is not None:
            how = "FINALIZE" if row[0] else "CONCURRENTLY"
            cursor.execute(f"ALTER TABLE {table} DETACH PARTITION {name} {how}")
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
