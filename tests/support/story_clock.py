"""A clock for stories over days: what the database calls now, inside one test's transaction.

Every decision is made by the database's `now()` and its relatives. Functions of those names in a
schema that is searched first make them show whatever the story needs; the test's rollback removes
it all again. (tests/support/database_clock.py does the same for whole databases.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta

from django.db import connection

from runs.partitions import create_partitions

_CLOCKS = ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")


class StoryClock:
    """The clock of this connection's transaction; it stands still until it is moved."""

    def __init__(self, begin: datetime) -> None:
        self.now = begin

    def set(self, moment: datetime) -> None:
        """Let it show `moment`."""
        self.now = moment
        with connection.cursor() as cursor:
            cursor.execute("UPDATE story_clock.shown SET at = %s", [moment])

    def advance(self, by: timedelta) -> None:
        """Move it on."""
        self.set(self.now + by)


@contextmanager
def story_clock(begin: datetime, *, days: int) -> Iterator[StoryClock]:
    """A clock that shows `begin`, in a database with partitions for the `days` from then on."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA story_clock")
        cursor.execute("CREATE TABLE story_clock.shown AS SELECT %s::timestamptz AS at", [begin])
        for clock in _CLOCKS:
            cursor.execute(
                f"CREATE FUNCTION story_clock.{clock}() RETURNS timestamptz LANGUAGE sql"
                " STABLE AS 'SELECT at FROM story_clock.shown'"
            )
        create_partitions(connection, today=_day(begin), days_back=2, days_ahead=days + 2)
        cursor.execute("SET LOCAL search_path = public, story_clock, pg_catalog")
        try:
            yield StoryClock(begin)
        finally:
            cursor.execute("SET LOCAL search_path = public")


def _day(moment: datetime) -> date:
    return moment.date()
