"""What a stretch of work has cost the database, by its own statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import psycopg

# The settings that the statistics need.
WATCHED = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "10000",
    "pg_stat_statements.track_utility": "on",
}
_LOOK = """
SELECT (SELECT xact_commit + xact_rollback FROM pg_stat_database
         WHERE datname = current_database()) AS transactions,
       (SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
         WHERE query !~* '^\\s*(begin|commit|rollback)') AS statements,
       pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal_bytes
"""


@dataclass
class Cost:
    """Transactions (failed ones too), statements besides BEGIN and COMMIT, bytes of WAL."""

    transactions: int = 0
    statements: int = 0
    wal_bytes: int = 0

    def per_run(self, runs: int) -> dict[str, float]:
        """The same for one of `runs` runs."""
        return {
            "transactions_per_run": self.transactions / runs,
            "statements_per_run": self.statements / runs,
            "wal_bytes_per_run": self.wal_bytes / runs,
        }


@contextmanager
def cost_of(connection: psycopg.Connection) -> Iterator[Cost]:
    """Count between entry and exit everything that this database does, whoever asks for it.

    Statistics of a process arrive when it has been idle for a moment or has gone: let the
    processes that are measured end before.
    """
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    before = _look(connection)
    cost = Cost()
    yield cost
    after = _look(connection)
    cost.transactions = after[0] - before[0]
    cost.statements = after[1] - before[1]
    cost.wal_bytes = after[2] - before[2]


def median_cost(costs: list[Cost]) -> Cost:
    """Each figure's median."""
    return Cost(
        int(median(cost.transactions for cost in costs)),
        int(median(cost.statements for cost in costs)),
        int(median(cost.wal_bytes for cost in costs)),
    )


def _look(connection: psycopg.Connection) -> tuple[int, int, int]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(_LOOK).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])
