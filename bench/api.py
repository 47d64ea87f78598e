"""What does the contract cost? POST /v1/jobs and a page of runs beside a bare Django view.

The bare view does one insert, or one select of the same 50 rows by the same index, and nothing
else: no key, no rate, no checks (bench/bare). Both are served by the command of
`make up` on one PostgreSQL, and asked in turns by the same 20 clients, which wait for each answer
before they ask again. Prints a JSON line for each round and each result, and a table.

    python -m bench.api [--quick] [--rounds N] [--seconds S] [--no-fsync]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from bench.api_load import Ask, Load, drive
from bench.api_world import World, world
from bench.wire import CountingProxy, Traffic

CLIENTS = 20
LIMIT = 3.0  # times the bare view
PROBES = 20

PRODUCT, BARE = "scheduler_project.wsgi:application", "bench.bare.wsgi:application"
NEW_JOB = {
    "name": "report",
    "labels": {"team": "billing"},
    "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
    "task": {"image": "registry.example/acme/report:3", "args": ["--daily"], "timeout_s": 900},
    "retry": {"max_attempts": 3, "backoff": "exponential"},
    "overlap": "skip",
}


@dataclass(frozen=True)
class Question:
    """A request to the product and the bare one that it is compared with."""

    name: str
    product: Ask
    bare: Ask


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds, and answers a second."""

    p50: float
    p95: float
    p99: float
    per_s: float


def questions(of: World) -> list[Question]:
    """All that is asked; the ports are filled in when the servers are there."""
    bare = f"/bare/{of.bare_tenant}"
    keys = list(of.keys.values())
    new = Ask(0, "POST", ["/v1/jobs"] * len(keys), 201, keys, NEW_JOB, idempotent=True)
    insert = Ask(0, "POST", [f"{bare}/jobs"], 201, body=NEW_JOB)
    with of.postgres.connect() as connection:
        ids = dict(connection.execute("SELECT name, tenant_id::text FROM tenants").fetchall())
    runs = Ask(0, "GET", ["/v1/runs?limit=50"] * len(keys), 200, keys)
    select = Ask(0, "GET", [f"/bare/{ids[name]}/runs" for name in of.keys], 200, [""] * len(keys))
    return [
        Question("POST /v1/jobs, Idempotency-Key", new, insert),
        Question("POST /v1/jobs", replace(new, idempotent=False), insert),
        Question("GET /v1/runs, 50 rows", runs, select),
    ]


def traffic_of(ask: Ask, application: str, of: World) -> Traffic:
    """Statements of one request, and round trips: the most common of several, warm."""
    proxy = CountingProxy(of.postgres.server.port)
    url = of.postgres.url.replace(f":{of.postgres.server.port}/", f":{proxy.port}/")
    url += "?sslmode=disable&gssencmode=disable"
    with of.serving(application, processes=1, threads=1, database_url=url) as port:
        here = replace(ask, port=port)
        drive(here, 1, 0.1)
        seen = []
        for _ in range(PROBES):
            proxy.take()
            send_one(here)
            seen.append(proxy.take())
    proxy.close()
    counts = [traffic.round_trips for traffic in seen]
    return seen[counts.index(sorted(counts)[len(counts) // 2])]


def send_one(ask: Ask) -> None:
    import http.client
    import uuid

    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=10)
    headers = {"Content-Type": "application/json"} if ask.body else {}
    headers |= {"Authorization": f"Bearer {ask.keys[0]}"} if ask.keys[0] else {}
    headers |= {"Idempotency-Key": str(uuid.uuid4())} if ask.idempotent else {}
    connection.request(
        ask.method, ask.paths[0], json.dumps(ask.body) if ask.body else None, headers
    )
    answer = connection.getresponse()
    answer.read()
    assert answer.status == ask.status, answer.status
    connection.close()


def percentiles(load: Load) -> Percentiles:
    cuts = quantiles(load.latencies_ms, n=100, method="inclusive")
    return Percentiles(cuts[49], cuts[94], cuts[98], load.per_s)


def paired_rounds(
    question: Question, *, rounds: int, seconds: float
) -> list[tuple[Percentiles, Percentiles]]:
    """(product, bare) of each round; who goes first alternates, so that a drift favours neither."""
    pairs = []
    for number in range(rounds):
        asks = [question.product, question.bare]
        order = asks if number % 2 == 0 else asks[::-1]
        loads = {id(ask): percentiles(drive(ask, CLIENTS, seconds)) for ask in order}
        product, bare = (loads[id(ask)] for ask in asks)
        report("round", question=question.name, number=number, product_p95_ms=product.p95,
               bare_p95_ms=bare.p95, ratio_p95=product.p95 / bare.p95)  # fmt: skip
        pairs.append((product, bare))
    return pairs


def middle(all_of: Sequence[Percentiles]) -> Percentiles:
    return Percentiles(*(median(getattr(p, name) for p in all_of) for name in vars(all_of[0])))


def report(kind: str, **facts: Any) -> None:
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in facts.items()}
    print(json.dumps({"bench": "api", "kind": kind} | rounded), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds, under a minute")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--no-fsync", action="store_true", help="a database that trusts the power")
    options = parser.parse_args()
    rounds, seconds = (3, 1.0) if options.quick else (options.rounds, options.seconds)
    table = []
    with world(is_durable=not options.no_fsync) as here, ExitStack() as servers:
        asked = questions(here)
        traffic = {}
        for question in asked:
            for name, ask, application in (
                ("product", question.product, PRODUCT),
                ("bare", question.bare, BARE),
            ):
                found = traffic_of(ask, application, here)
                traffic[question.name, name] = found
                report("statements", question=question.name, of=name,
                       statements=len(found.statements), round_trips=found.round_trips,
                       texts=[text[:70] for text in found.statements])  # fmt: skip
        product_port = servers.enter_context(here.serving(PRODUCT))
        bare_port = servers.enter_context(here.serving(BARE))
        for question in asked:
            question = replace(
                question,
                product=replace(question.product, port=product_port),
                bare=replace(question.bare, port=bare_port),
            )
            pairs = paired_rounds(question, rounds=rounds, seconds=seconds)
            ratio = median(product.p95 / bare.p95 for product, bare in pairs)
            for name, found in (
                ("product", middle([product for product, _ in pairs])),
                ("bare", middle([bare for _, bare in pairs])),
            ):
                said = traffic[question.name, name]
                row = {
                    "question": question.name,
                    "of": name,
                    "p50_ms": found.p50,
                    "p95_ms": found.p95,
                    "p99_ms": found.p99,
                    "per_s": found.per_s,
                    "statements": len(said.statements),
                    "round_trips": said.round_trips,
                    "times_bare_p95": ratio if name == "product" else 1.0,
                }
                report("result", limit_times=LIMIT, rounds=rounds, **row)
                table.append(row)
    print_table(table)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print("\n| request | of | p50 ms | p95 ms | p99 ms | requests/s | statements | round trips |"
          " p95 ÷ bare |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for row in rows:
        print("| {question} | {of} | {p50_ms:.1f} | {p95_ms:.1f} | {p99_ms:.1f} | {per_s:.0f} |"
              " {statements} | {round_trips} | {times_bare_p95:.2f} |".format(**row))  # fmt: skip


if __name__ == "__main__":
    main()
