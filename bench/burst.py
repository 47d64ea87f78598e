"""What does a run cost the database, from its plan to its completion?

    python -m bench.burst [--quick] [--runs N] [--rounds N]

20,000 runs of 200 tenants fall due in one second and go the whole way: one scheduler, two workers
whose containers do nothing, every commit flushed to disk. The figures are PostgreSQL's own, from
the scheduler's start until all processes have ended: transactions and statements of planner and
dispatcher (their rounds while they wait for the instant, and when nothing is left, count as well),
and the bytes of WAL that everybody has written. Prints a JSON line for each round, one with the
medians beside the limits, and which statements the WAL comes from.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from statistics import median
from typing import Any
from uuid import UUID

import psycopg

from bench.database_cost import WATCHED, Cost, cost_of
from bench.duty_accounts import account, make_accounts
from bench.fleet import (
    Sizes,
    add_jobs,
    clear,
    fleet_on,
    make_tenants,
    wait_for_drain,
    wait_until_completed,
)
from bench.no_op_log import judge
from bench.plan import as_admin
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use

QUESTION = "burst"
TENANTS = 200
LIMITS = {
    "transactions_per_run": 0.02,
    "statements_per_run": 0.1,
    "wal_bytes_per_run": 4_096,
}
MOST_WAL_SHOWN = 8
_ALIKE = 0.8
# Everything is planned and placed by then, as in production.
_AHEAD_S, _RUNS_AHEAD_PER_S = 30, 2_000

# A health check is a transaction of its own: Django makes one at the beginning of each round.
_ACCOUNTS = r"""
SELECT r.rolname,
       coalesce(sum(calls) FILTER (WHERE query ~* '^\s*(commit|rollback)|^SELECT \$1$'), 0)::bigint,
       coalesce(sum(calls) FILTER (WHERE query !~* '^\s*(begin|commit|rollback)'), 0)::bigint
  FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid
 WHERE r.rolname LIKE 'duty-%'
 GROUP BY r.rolname
"""
_WAL = """
SELECT query, sum(calls)::bigint, sum(wal_bytes)::bigint FROM pg_stat_statements
 GROUP BY query ORDER BY sum(wal_bytes) DESC LIMIT %s
"""


@dataclass(frozen=True)
class BurstCost:
    """What one burst has cost: two duties, all of the scheduler's duties, and everybody."""

    transactions: int
    statements: int
    all_duties_transactions: int
    all_duties_statements: int
    everybody: Cost
    lost: int
    drained_s: float

    def per_run(self, runs: int) -> dict[str, float]:
        """The figures that have limits come first."""
        return {
            "transactions_per_run": self.transactions / runs,
            "statements_per_run": self.statements / runs,
            "wal_bytes_per_run": self.everybody.wal_bytes / runs,
            "all_duties_transactions_per_run": self.all_duties_transactions / runs,
            "all_duties_statements_per_run": self.all_duties_statements / runs,
            "everybody_transactions_per_run": self.everybody.transactions / runs,
            "everybody_statements_per_run": self.everybody.statements / runs,
        }


def one_burst(servers: Servers, sizes: Sizes, tenants: list[UUID]) -> BurstCost:
    """A burst and its cost; what it has cost in detail stays in pg_stat_statements."""
    with as_admin(servers) as connection:
        clear(connection)
        # A page that is changed for the first time after a checkpoint goes into the WAL as a whole.
        connection.execute("CHECKPOINT")
        due = float(int(time.time()) + _AHEAD_S + sizes.runs // _RUNS_AHEAD_PER_S)
        add_jobs(connection, tenants, sizes.runs, due)
        connection.execute("VACUUM (ANALYZE) jobs, schedule_cursors")
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        connection.execute("SELECT pg_stat_statements_reset()")
        with (
            cost_of(connection) as cost,
            fleet_on(servers, sizes, scheduler_app="bench.duty_accounts") as fleet,
        ):
            for scheduler in fleet.schedulers:
                scheduler.start()
            wait_for_drain(fleet.starts, sizes.runs, due)
            wait_until_completed(connection)
        names = [str(run_id) for (run_id,) in connection.execute("SELECT run_id FROM runs")]
        drain = judge(fleet.starts, names, due)
        accounts = {
            name: (int(transactions), int(statements))
            for name, transactions, statements in connection.execute(_ACCOUNTS)
        }
    ours = [accounts[account(duty)] for duty in ("planner", "dispatcher")]
    return BurstCost(
        transactions=sum(each[0] for each in ours),
        statements=sum(each[1] for each in ours),
        all_duties_transactions=sum(each[0] for each in accounts.values()),
        all_duties_statements=sum(each[1] for each in accounts.values()),
        everybody=cost,
        lost=sizes.runs - drain.runs + drain.lost,
        drained_s=drain.drained_s,
    )


def wal_by_statement(connection: psycopg.Connection, runs: int) -> list[dict[str, Any]]:
    """The statements that have written most, those of runs/sql by their names."""
    from runs.store import STATEMENTS

    return [
        {
            "statement": name_of(query, STATEMENTS),
            "calls": int(calls),
            "wal_bytes_per_run": int(wal_bytes) / runs,
        }
        for query, calls, wal_bytes in connection.execute(_WAL, [MOST_WAL_SHOWN])
    ]


def name_of(query: str, statements: Mapping[str, str]) -> str:
    """The name of a query as pg_stat_statements shows it: without comments, values as $1.

    It is the statement that is most alike; a query like none keeps its beginning.
    """
    words = _words(query)
    likeness = {
        name: SequenceMatcher(None, words, _words(body), autojunk=False).ratio()
        for name, body in statements.items()
    }
    best = max(likeness, key=lambda name: likeness[name])
    return best if likeness[best] >= _ALIKE else " ".join(query.split())[:60]


def _words(statement: str) -> list[str]:
    lines = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
    text = re.sub(r"%\(\w+\)s|'[^']*'|\$\d+|\b\d+\b", "?", "\n".join(lines))
    return re.findall(r"\w+|\?", text)


def measure(servers: Servers, sizes: Sizes, rounds: int) -> None:
    """All rounds and their medians."""
    with as_admin(servers) as connection:
        make_accounts(connection)
    tenants = make_tenants(TENANTS)
    costs: list[dict[str, float]] = []
    lost = 0
    for number in range(rounds):
        cost = one_burst(servers, sizes, tenants)
        costs.append(cost.per_run(sizes.runs))
        lost += cost.lost
        line(f"{QUESTION}: round {number + 1}", runs=sizes.runs, lost=cost.lost,
             drained_s=cost.drained_s, **costs[-1])  # fmt: skip
    with as_admin(servers) as connection:
        for each in wal_by_statement(connection, sizes.runs):
            line(f"{QUESTION}: WAL", **each)
    medians = {name: median(cost[name] for cost in costs) for name in costs[0]}
    line(QUESTION, runs=sizes.runs, rounds=rounds, lost=lost, **medians,
         limits=LIMITS)  # fmt: skip


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 runs, one round")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--prepared", type=int, default=96)
    asked = parser.parse_args()
    runs = asked.runs or (5_000 if asked.quick else 20_000)
    sizes = Sizes(runs, asked.workers, asked.slots, asked.prepared)
    with own_servers(DURABLE | WATCHED) as servers:
        use(servers)
        measure(servers, sizes, asked.rounds or (1 if asked.quick else 3))


if __name__ == "__main__":
    main()
