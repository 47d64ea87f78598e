"""Moves the clock of one database: every decision is made by `now()` there, so it is the clock.

Functions of the same names stand in a schema that is searched before PostgreSQL's own. Sessions
that begin after `install` see the moved clock, and see it move at once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import psycopg

Connect = Callable[[], AbstractContextManager[psycopg.Connection]]

_CLOCKS = ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")


class DatabaseClock:
    """The clock of the database that `connect` (autocommit) leads to."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def install(self) -> None:
        """Put the functions before PostgreSQL's own for every session that begins from now on."""
        with self._connect() as connection:
            (name,) = connection.execute("SELECT current_database()").fetchone() or ("",)
            connection.execute("CREATE SCHEMA moved_clock")
            connection.execute("CREATE TABLE moved_clock.moved AS SELECT interval '0' AS by")
            for clock in _CLOCKS:
                connection.execute(
                    f"CREATE FUNCTION moved_clock.{clock}() RETURNS timestamptz LANGUAGE sql"
                    f" STABLE AS 'SELECT pg_catalog.{clock}() + by FROM moved_clock.moved'"
                )
            # public stays first, so that new tables still go there; pg_catalog must be named, or
            # it is searched before all others.
            connection.execute(
                f'ALTER DATABASE "{name}" SET search_path = public, moved_clock, pg_catalog'
            )

    def now(self) -> datetime:
        """What the clock shows."""
        with self._connect() as connection:
            row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        moment: datetime = row[0]
        return moment

    def advance(self, by: timedelta) -> None:
        """Move the clock on."""
        with self._connect() as connection:
            connection.execute("UPDATE moved_clock.moved SET by = by + %s", [by])

    def set(self, moment: datetime) -> None:
        """Let the clock show `moment` now, and go on from there."""
        self.advance(moment - self.now())

    def reset(self) -> None:
        """Let it show the machine's time again."""
        with self._connect() as connection:
            connection.execute("UPDATE moved_clock.moved SET by = interval '0'")
