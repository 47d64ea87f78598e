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
import socket
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from bench.api_load import Ask, Load, LoadProcess
from bench.api_world import World, world
from bench.wire import CountingProxy, Traffic, counting_proxy

CLIENTS = 20
LIMIT = 3.0  # times the bare view
PROBES = 20

APPLICATIONS = {
    "product": "scheduler_project.wsgi:application",
    "bare": "bench.bare.wsgi:application",
}
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
    """A request to the product and the bare one that it is compared with, by application."""

    name: str
    asks: dict[str, Ask]

    def at(self, ports: dict[str, int]) -> Question:
        """The same, sent to where the applications listen."""
        asks = {of: replace(ask, port=ports[of]) for of, ask in self.asks.items() if of in ports}
        return replace(self, asks=asks)


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
        Question("POST /v1/jobs, Idempotency-Key", {"product": new, "bare": insert}),
        Question("POST /v1/jobs", {"product": replace(new, idempotent=False), "bare": insert}),
        Question("GET /v1/runs, 50 rows", {"product": runs, "bare": select}),
    ]


def traffic_of(
    asked: Sequence[Question], of: str, here: World, clients: LoadProcess
) -> dict[str, Traffic]:
    """By question: the statements and round trips of one request (the middle of several, warm)."""
    port = here.postgres.server.port
    with (
        counting_proxy(port) as proxy,
        here.serving(
            APPLICATIONS[of],
            processes=1,
            threads=1,
            database_url=here.postgres.url.replace(f":{port}/", f":{proxy.port}/")
            + "?sslmode=disable&gssencmode=disable",
        ) as api_port,
    ):
        return {
            question.name: _usual_traffic(question.at({of: api_port}).asks[of], proxy, clients)
            for question in asked
        }


def _usual_traffic(ask: Ask, proxy: CountingProxy, clients: LoadProcess) -> Traffic:
    clients.drive(ask, 1, 0.1)
    seen = []
    for _ in range(PROBES):
        proxy.take()
        send_one(ask)
        seen.append(proxy.take())
    return sorted(seen, key=lambda traffic: traffic.round_trips)[PROBES // 2]


def send_one(ask: Ask) -> None:
    """One request on a connection of its own."""
    head, body = ask.head_and_body(ask.paths[0], ask.keys[0])
    key = f"Idempotency-Key: {uuid.uuid4()}\r\n".encode() if ask.idempotent else b""
    with socket.create_connection(("127.0.0.1", ask.port), 10) as connection:
        connection.sendall(head + b"Connection: close\r\n" + key + body)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    if not answer.startswith(b"HTTP/1.1 %d " % ask.status):
        raise RuntimeError(f"answered {answer[:2_000]!r}")


def percentiles(load: Load) -> Percentiles:
    cuts = quantiles(load.latencies_ms, n=100, method="inclusive")
    return Percentiles(cuts[49], cuts[94], cuts[98], len(load.latencies_ms) / load.seconds)


def paired_rounds(
    question: Question, clients: LoadProcess, *, rounds: int, seconds: float
) -> list[tuple[Percentiles, Percentiles]]:
    """(product, bare) of each round.

    A round is product, bare, bare, product (the next one the other way round), so that other work
    on the machine that comes and goes favours neither.
    """
    pairs = []
    for number in range(rounds):
        loads: dict[str, Load] = {}
        first, second = list(APPLICATIONS)[:: 1 if number % 2 == 0 else -1]
        for name in (first, second, second, first):
            load = clients.drive(question.asks[name], CLIENTS, seconds)
            loads[name] = loads[name] + load if name in loads else load
        product, bare = percentiles(loads["product"]), percentiles(loads["bare"])
        report("round", question=question.name, number=number, product_p95_ms=product.p95,
               bare_p95_ms=bare.p95, times_p50=product.p50 / bare.p50,
               times_p95=product.p95 / bare.p95)  # fmt: skip
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
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--no-fsync", action="store_true", help="a database that trusts the power")
    options = parser.parse_args()
    rounds, seconds = (3, 0.5) if options.quick else (options.rounds, options.seconds)
    table = []
    with LoadProcess() as clients, world(is_durable=not options.no_fsync) as here:
        asked = questions(here)
        traffic = {of: traffic_of(asked, of, here, clients) for of in APPLICATIONS}
        with ExitStack() as servers:
            ports = {
                of: servers.enter_context(here.serving(application))
                for of, application in APPLICATIONS.items()
            }
            for question in asked:
                pairs = paired_rounds(question.at(ports), clients, rounds=rounds, seconds=seconds)
                table += rows_of(question, pairs, {of: traffic[of][question.name] for of in ports})
    print_table(table)


def rows_of(
    question: Question,
    pairs: Sequence[tuple[Percentiles, Percentiles]],
    traffic: dict[str, Traffic],
) -> list[dict[str, Any]]:
    """The product's row of the table and the bare view's, both also said as JSON."""
    rows = []
    for of, found in zip(APPLICATIONS, map(middle, zip(*pairs, strict=True)), strict=True):
        is_product = of == "product"
        row = {
            "question": question.name,
            "of": of,
            **{f"{name}_ms": getattr(found, name) for name in ("p50", "p95", "p99")},
            "per_s": found.per_s,
            "statements": len(traffic[of].statements),
            "round_trips": traffic[of].round_trips,
            "times_p95": median(p.p95 / b.p95 for p, b in pairs) if is_product else 1.0,
        }
        report("result", **row, limit_times_p95=LIMIT, rounds=len(pairs),
               texts=[text[:70] for text in traffic[of].statements])  # fmt: skip
        rows.append(row)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print("\n| request | of | p50 ms | p95 ms | p99 ms | requests/s | statements | round trips |"
          " p95 ÷ bare |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for row in rows:
        print("| {question} | {of} | {p50_ms:.1f} | {p95_ms:.1f} | {p99_ms:.1f} | {per_s:.0f} |"
              " {statements} | {round_trips} | {times_p95:.2f} |".format(**row))  # fmt: skip


if __name__ == "__main__":
    main()
