"""After a SIGKILL, how long until all work is on time again?

    python -m bench.recovery [--quick] [--rounds N] [--per-second N]

Eight new jobs a second, each due three seconds after it was made, on two schedulers and two
workers whose containers last three seconds and do nothing else. One after another are killed: a
scheduler, which stays away; Redis, which comes back after ten seconds; a worker, which stays away
with all that it runs. A run is late that starts a second later than they did before; a killed
worker's runs start again. Prints a JSON line for each fault and one with its median: seconds from
the kill until the last late or repeated start, and the worst lag. `--quick` has a lease of 6 s
instead of 30.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from uuid import UUID

import psycopg

from bench.database_cost import WATCHED
from bench.fleet import (
    Fleet,
    Sizes,
    add_jobs,
    clear,
    fleet_on,
    make_tenants,
    wait_for,
    wait_until_completed,
)
from bench.no_op_log import read_starts
from bench.plan import as_admin
from bench.report import line
from bench.servers import DURABLE, Servers, own_servers, use

QUESTION = "recovery"
LATE_S = 1.0
_MADE_AHEAD_S = 3
_LASTS_S = 3
_REDIS_AWAY_S = 10.0
_QUIET_BEFORE_S = 8.0
# Arithmetic of the same form as the default one, with a fifth of its times.
_SHORT_LEASE = {"LEASE_S": "6", "HEARTBEAT_S": "2", "WORKER_MARGIN_S": "2", "WARDEN_MARGIN_S": "1"}
_LEASE_S, _SHORT_LEASE_S = 30, 6


@dataclass(frozen=True)
class Recovery:
    """What a fault has done to the runs that were due around it. Seconds after the kill.

    `on_time_after_s` is 0 when nothing was late and nothing ran again; `first_start_s` is when the
    next container of all started.
    """

    first_start_s: float
    on_time_after_s: float
    worst_lag_s: float
    usual_lag_s: float
    late: int
    ran_again: int
    lost: int


def recovery_of(
    starts: Iterable[tuple[str, float]],
    due: Mapping[str, float],
    *,
    since: float,
    killed_at: float,
    until: float,
) -> Recovery:
    """Judge the runs that were due between `since` and `until` by the starts of their containers.

    Those due before the kill that started before it say what lag is usual.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for run, at in starts:
        if run in due and since <= due[run] < until:
            times[run].append(at)
    usual = [min(each) - due[run] for run, each in times.items() if max(each) < killed_at]
    if not usual:
        raise RuntimeError("nothing has run before the kill")
    usual_lag_s = median(usual)
    first = {run: min(each) for run, each in times.items()}
    lags = {run: at - due[run] for run, at in first.items() if at >= killed_at}
    late = [run for run, lag in lags.items() if lag > usual_lag_s + LATE_S]
    again = [at for each in times.values() for at in sorted(each)[1:] if at >= killed_at]
    after = [first[run] for run in late] + again
    return Recovery(
        first_start_s=min([*(first[run] for run in lags), *again], default=until) - killed_at,
        on_time_after_s=max(after, default=killed_at) - killed_at,
        worst_lag_s=max(lags.values(), default=0.0),
        usual_lag_s=usual_lag_s,
        late=len(late),
        ran_again=len(again),
        lost=sum(run not in times for run, at in due.items() if since <= at < until),
    )


@contextmanager
def a_stream_of_jobs(servers: Servers, tenants: list[UUID], per_s: int) -> Iterator[None]:
    """New jobs each second, for as long as the block lasts."""
    over = threading.Event()

    def stream() -> None:
        with as_admin(servers) as connection:
            at = int(time.time()) + 1
            while not over.wait(max(0.0, at - time.time())):
                add_jobs(connection, tenants, per_s, at + _MADE_AHEAD_S)
                at += 1

    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def one_round(
    servers: Servers, tenants: list[UUID], per_s: int, settings: dict[str, str], lease_s: float
) -> dict[str, Recovery]:
    """Kill one after another; what each has done, by its name."""
    faults: list[tuple[str, Callable[[Fleet], None], float]] = [
        ("scheduler", _kill_a_scheduler, 14.0),
        ("redis", lambda fleet: _kill_redis(servers), _REDIS_AWAY_S + 8.0),
        ("worker", lambda fleet: fleet.workers[0].kill(), lease_s + 14.0),
    ]
    spans: list[tuple[str, float, float, float]] = []
    sizes = Sizes(runs=0, workers=2, slots=max(8, 4 * per_s), prepared=max(8, 4 * per_s))
    with (
        as_admin(servers) as connection,
        fleet_on(servers, sizes, schedulers=2, NO_OP_S=str(_LASTS_S), **settings) as fleet,
    ):
        for scheduler in fleet.schedulers:
            scheduler.start()
        with a_stream_of_jobs(servers, tenants, per_s):
            wait_for(lambda: _runs_are_on_time(fleet, connection), 60, "runs start on time")
            for name, fault, watched_s in faults:
                since = time.time()
                _wait_until(since + _QUIET_BEFORE_S)
                killed_at = time.time()
                fault(fleet)
                _wait_until(killed_at + watched_s)
                spans.append((name, since, killed_at, time.time() - 2 * LATE_S))
        wait_until_completed(connection)
        due = _due(connection)
    starts = read_starts(fleet.starts)
    return {
        name: recovery_of(starts, due, since=since, killed_at=killed_at, until=until)
        for name, since, killed_at, until in spans
    }


def _wait_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.time()))


def _due(connection: psycopg.Connection) -> dict[str, float]:
    query = "SELECT run_id::text, extract(epoch FROM due_at)::float8 FROM runs"
    return dict(connection.execute(query).fetchall())


def _runs_are_on_time(fleet: Fleet, connection: psycopg.Connection) -> bool:
    """Whether the newest starts were prompt: the beginning, with its cold caches, is over."""
    newest, due = read_starts(fleet.starts)[-20:], _due(connection)
    return len(newest) == 20 and all(at - due.get(run, 0.0) < LATE_S for run, at in newest)


def _kill_a_scheduler(fleet: Fleet) -> None:
    fleet.schedulers[0].kill()


def _kill_redis(servers: Servers) -> None:
    """Dead for a while, then started again by its supervisor, with what its disk has of it."""
    servers.redis.kill()
    threading.Timer(_REDIS_AWAY_S, servers.redis.start).start()


def measure(servers: Servers, rounds: int, per_s: int, *, is_quick: bool) -> None:
    """All rounds and the medians of each fault."""
    settings, lease_s = (_SHORT_LEASE, _SHORT_LEASE_S) if is_quick else ({}, _LEASE_S)
    tenants = make_tenants()
    found: dict[str, list[Recovery]] = {}
    for number in range(rounds):
        with as_admin(servers) as connection:
            clear(connection)
        for name, recovery in one_round(servers, tenants, per_s, settings, lease_s).items():
            found.setdefault(name, []).append(recovery)
            line(f"{QUESTION}: round {number + 1}", of=name, **asdict(recovery))
    for name, recoveries in found.items():
        medians = {
            field: median(asdict(each)[field] for each in recoveries)
            for field in asdict(recoveries[0])
        }
        line(QUESTION, of=name, rounds=rounds, lease_s=lease_s, **medians)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, a lease of 6 s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--per-second", type=int, default=8)
    asked = parser.parse_args()
    with own_servers(DURABLE | WATCHED) as servers:
        use(servers)
        rounds = asked.rounds or (1 if asked.quick else 3)
        measure(servers, rounds, asked.per_second, is_quick=asked.quick)


if __name__ == "__main__":
    main()
