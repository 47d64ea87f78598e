"""Concurrent clients in a process of their own: each waits for its answer, then asks again.

Owns the rule that the clients are cheap: they share the machine with what they measure, so they
send prepared bytes and read no more of an answer than its status and its length.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

# Not measured: connections are made, and the queue in front of the server fills.
WARM_UP_S = 0.3


@dataclass(frozen=True)
class Ask:
    """One kind of request; client number n sends to `paths[n]` with `keys[n]`, from the start
    again when there are more clients. `idempotent` adds a fresh Idempotency-Key to each."""

    port: int
    method: str
    paths: Sequence[str]
    status: int
    keys: Sequence[str] = ("",)
    body: Any = None
    idempotent: bool = False

    def head_and_body(self, path: str, key: str) -> tuple[bytes, bytes]:
        """The request in two parts, between which an Idempotency-Key may stand."""
        body = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [f"{self.method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"Authorization: Bearer {key}"] if key else []
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "".join(f"{line}\r\n" for line in lines).encode(), b"\r\n" + body


@dataclass(frozen=True)
class Load:
    """What came of it: each request's time in milliseconds, over how many seconds."""

    latencies_ms: list[float]
    seconds: float

    def __add__(self, other: Load) -> Load:
        return Load(self.latencies_ms + other.latencies_ms, self.seconds + other.seconds)


class _Client(asyncio.Protocol):
    def __init__(self, ask: Ask, path: str, key: str, until: float) -> None:
        self._ask, self._until = ask, until
        self._head, self._body = ask.head_and_body(path, key)
        self._received = b""
        self._expected = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # (began, milliseconds) of each answered request.
        self.taken: list[tuple[float, float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        key = f"Idempotency-Key: {uuid.uuid4()}\r\n".encode() if self._ask.idempotent else b""
        self._began = time.perf_counter()
        self._transport.write(self._head + key + self._body)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._expected = end + 4 + _content_length(self._received[:end])
        if len(self._received) >= self._expected:
            self._answered()

    def _answered(self) -> None:
        now = time.perf_counter()
        status = int(self._received[9:12])
        if status != self._ask.status:
            self._end(RuntimeError(f"answered {status}: {self._received[:2_000]!r}"))
            return
        self.taken.append((self._began, (now - self._began) * 1_000))
        self._received, self._expected = b"", 0
        if now < self._until:
            self._send()
        else:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server closed the connection"))

    def _end(self, error: Exception | None) -> None:
        self._transport.close()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise RuntimeError(f"an answer without a length: {head!r}")


async def _run(ask: Ask, clients: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    measured_from = time.perf_counter() + WARM_UP_S
    until = measured_from + seconds
    targets = [pair for pair, _ in zip(cycle(zip(ask.paths, ask.keys)), range(clients))]  # noqa: B905
    running = []
    for path, key in targets:
        _, client = await loop.create_connection(
            lambda path=path, key=key: _Client(ask, path, key, until),  # type: ignore[misc]
            "127.0.0.1",
            ask.port,
        )
        running.append(client)
    await asyncio.gather(*(client.done for client in running))
    taken = [ms for client in running for began, ms in client.taken if began >= measured_from]
    return Load(taken, time.perf_counter() - measured_from)


class LoadProcess:
    """The clients' process; a context manager."""

    def __enter__(self) -> LoadProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.api_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def drive(self, ask: Ask, clients: int, seconds: float) -> Load:
        """Let `clients` ask for `seconds`; raises on any unexpected answer."""
        request = {"ask": asdict(ask), "clients": clients, "seconds": seconds}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the clients gave up on {ask.method} {ask.paths[0]}")
        return Load(**json.loads(answer))


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        load = asyncio.run(_run(Ask(**request["ask"]), request["clients"], request["seconds"]))
        print(json.dumps(asdict(load)), flush=True)


if __name__ == "__main__":
    main()
