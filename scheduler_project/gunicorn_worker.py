"""Gunicorn's threads for the API; its rule: a thread is for whoever has said what they want.

Gunicorn gives a thread to each connection and lets it wait for the request without a limit, so
sixteen clients that say nothing more, with or without a key, would be all that the API serves.
Here the poller waits, until a request is there with its body, and not for ever. What the poller
can't tell (the end of a body in chunks that looks ended) a thread waits for, not for ever either.
"""

import json
import re
import socket
import time
from functools import partial
from selectors import EVENT_READ
from typing import Any, Final, NamedTuple
from uuid import uuid4

from gunicorn import util  # type: ignore[import-untyped]
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

# How long a client may take for a request, and a thread wait for what the poller could not see.
# Longer than the longest statement (10 s): an answer is never cut off from its connection.
REQUEST_S: Final = 15.0
# More than this is nothing to wait for: the parser or the application refuses it by its head.
_LONGEST_REQUEST: Final = 524_288
_LONGEST_HEAD: Final = 65_536
_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
# The client waits for a word of ours before it sends its body.
_ASKS: Final = re.compile(rb"\r\nexpect:", re.IGNORECASE)
# Linux wakes a poller only for more bytes than these (socket(7)).
_WAKE_AT: Final = socket.SO_RCVLOWAT


def write_problem(sock: socket.socket, status: int, reason: str, message: str) -> None:
    """Say that a request was refused before the application saw it, as the API says such things.

    Takes the place of gunicorn's own page of HTML, which would be the one answer that a customer's
    client can't read. A transfer coding that nobody knows is the client's fault, no 501.
    """
    from scheduler_project.lib.problems import CONTENT_TYPE, Problem  # Django is loaded by now

    code = {414: "uri_too_long", 431: "headers_too_large"}.get(status, "bad_request")
    problem = Problem("internal_error" if status == 500 else code)
    body = json.dumps(problem.as_json(str(uuid4()))).encode()
    head = (
        f"HTTP/1.1 {problem.status_code} {problem.type.title}\r\nConnection: close\r\n"
        f"Content-Type: {CONTENT_TYPE}\r\nCache-Control: no-store\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(sock, head.encode("latin-1") + body)


util.write_error = write_problem


class _Wait(NamedTuple):
    """Bytes that wake the poller, and the instant (monotonic, seconds) at which it is over."""

    wanted: int
    until: float


class PatientWorker(ThreadWorker):  # type: ignore[misc]
    """Threads that are taken once a request is there."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Connections that have a thread, with the instant until which they may send.
        self._served: dict[Any, float] = {}
        self._waits: dict[Any, _Wait] = {}

    def enqueue_req(self, conn: Any) -> None:
        """Give the connection a thread, or let the poller wait for the rest of its request."""
        if conn.parser is not None and conn.parser.unreader.buf.getvalue():
            super().enqueue_req(conn)  # read ahead with the request before it
            return
        conn.sock.setblocking(False)
        here = _peek(conn.sock)
        wait = self._waits.get(conn)
        wanted = bytes_wanted(here)
        # Woken without what was wanted: no more will come, and a thread ends what was begun.
        if len(here) >= wanted or (wait is not None and len(here) < wait.wanted):
            self._waits.pop(conn, None)
            conn.sock.setsockopt(socket.SOL_SOCKET, _WAKE_AT, 1)
            conn.data_ready = True
            super().enqueue_req(conn)
            return
        # Without it the poller would wake up for the same bytes again and again.
        conn.sock.setsockopt(socket.SOL_SOCKET, _WAKE_AT, wanted)
        conn.timeout = wait.until if wait else time.monotonic() + REQUEST_S
        self._waits[conn] = _Wait(wanted, conn.timeout)
        self.pending_conns.append(conn)
        ready = partial(self.on_pending_socket_readable, conn)
        self.poller.register(conn.sock, EVENT_READ, ready)

    def handle(self, conn: Any) -> Any:
        """In a thread: what gunicorn does, known to the one that looks at the clock."""
        self._served[conn] = time.monotonic() + REQUEST_S
        try:
            return super().handle(conn)
        finally:
            self._served.pop(conn, None)

    def murder_pending(self) -> None:
        """Each second: end what waits for too long, in the poller and in threads."""
        now = time.monotonic()
        for conn in [conn for conn in self.pending_conns if conn.timeout <= now]:
            self.pending_conns.remove(conn)
            self._waits.pop(conn, None)
            self.poller.unregister(conn.sock)
            self.nr_conns -= 1
            conn.close()
        for conn, until in list(self._served.items()):
            if until <= now:
                _end_of_input(conn.sock)


def bytes_wanted(here: bytes) -> int:
    """How many bytes there must be to look again, or for a thread; at most those that are `here`:
    a thread can have them."""
    head, end, body = here.partition(_END)
    if not end:
        return 0 if len(here) >= _LONGEST_HEAD else len(here) + 1
    head += b"\r\n"
    if _ASKS.search(head):
        return 0
    if _CHUNKED.search(head):
        # An end may also stand within a chunk: then a thread waits for the rest.
        ended = _END in body or len(here) >= _LONGEST_REQUEST
        return 0 if ended else len(here) + 1
    length = int(match[1]) if (match := _LENGTH.search(head)) else 0
    whole = len(head) + len(b"\r\n") + length
    return whole if whole <= _LONGEST_REQUEST else 0


def _peek(sock: socket.socket) -> bytes:
    """The bytes that are there, left where they are."""
    try:
        return sock.recv(_LONGEST_REQUEST, socket.MSG_PEEK)
    except OSError:  # none yet, or the connection is broken: reading says so
        return b""


def _end_of_input(sock: socket.socket) -> None:
    """A thread that reads from it finds the end, as if the client had gone; it can answer still."""
    try:
        sock.shutdown(socket.SHUT_RD)
    except OSError:
        return  # gone by itself
