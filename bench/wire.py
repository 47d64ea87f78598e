"""Counts what a client says to PostgreSQL: a proxy that reads the protocol and changes nothing.

Owns the meaning of "round trip": one ReadyForQuery, the moment at which a client may go on. The
client must ask for no encryption (`sslmode=disable&gssencmode=disable`).
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_LENGTH = struct.Struct("!I")


@dataclass
class Traffic:
    """Statements in the order they were sent, and how often the client waited for an answer."""

    statements: list[str] = field(default_factory=list)
    round_trips: int = 0


class CountingProxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to PostgreSQL at `port`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.traffic = Traffic()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection; those that are open end with their clients."""
        self._listener.shutdown(socket.SHUT_RDWR)  # close() alone leaves accept() waiting
        self._listener.close()

    def take(self) -> Traffic:
        """The traffic since the last call."""
        taken, self.traffic = self.traffic, Traffic()
        return taken

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            prepared: dict[bytes, str] = {}

            def note_question(
                kind: bytes, payload: bytes, prepared: dict[bytes, str] = prepared
            ) -> None:
                self._note_question(kind, payload, prepared)

            # A client's first packet has no letter for its kind.
            _start(_pump, client, server, note_question, 0)
            _start(_pump, server, client, self._note_answer, 1)

    def _note_question(self, kind: bytes, payload: bytes, prepared: dict[bytes, str]) -> None:
        if kind == b"Q":
            self.traffic.statements.append(_text(payload))
        elif kind == b"P":  # parse: name, text
            name, _, text = payload.partition(b"\0")
            prepared[name] = _text(text)
        elif kind == b"B":  # bind: portal, name; one execution follows
            name = payload.split(b"\0", 2)[1]
            self.traffic.statements.append(prepared[name])

    def _note_answer(self, kind: bytes, payload: bytes) -> None:
        if kind == b"Z":
            self.traffic.round_trips += 1


@contextmanager
def counting_proxy(port: int) -> Iterator[CountingProxy]:
    """A proxy before the PostgreSQL at `port`, for as long as the block lasts."""
    proxy = CountingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()


def _start(pump: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=pump, args=arguments, daemon=True).start()


def _text(payload: bytes) -> str:
    return " ".join(payload.split(b"\0", 1)[0].decode("utf-8", "replace").split())


def _pump(
    source: socket.socket,
    target: socket.socket,
    note: Callable[[bytes, bytes], None],
    kind_bytes: int,
) -> None:
    """Pass bytes on, then read them: `kind_bytes` is 0 while the next packet has no kind."""
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    unread = b""
    try:
        while data := source.recv(65_536):
            target.sendall(data)
            unread += data
            while len(unread) >= kind_bytes + 4:
                size = kind_bytes + _LENGTH.unpack_from(unread, kind_bytes)[0]
                if len(unread) < size:
                    break
                note(unread[:kind_bytes], unread[kind_bytes + 4 : size])
                unread, kind_bytes = unread[size:], 1
    except OSError:
        return
    finally:
        target.close()
