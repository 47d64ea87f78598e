"""Ends reads that hang: their connection is cut, and they fail as if the server had gone away.

Time-outs of the server are no help when the server itself stands still (frozen, its kernel still
answering): a thread that waits for it would wait for ever, and soon all of them would.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper


class ReadWatch:
    """`over` a read, one per thread at a time; `check_once` often, by a thread of its own."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._reads: dict[int, tuple[BaseDatabaseWrapper, float]] = {}

    @contextmanager
    def over(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """Watch what the calling thread does on `connection` meanwhile."""
        thread = threading.get_ident()
        with self._lock:
            self._reads[thread] = connection, time.monotonic() + self._limit_s
        try:
            yield
        finally:
            with self._lock:
                self._reads.pop(thread, None)

    def check_once(self) -> dict[str, int]:
        """Cut the connections of reads that have taken too long; returns how many."""
        now = time.monotonic()
        with self._lock:  # so that a read can't end, and its socket's number pass on, meanwhile
            late = [connection for connection, until in self._reads.values() if now >= until]
            for connection in late:
                _cut(connection)
        return {"cut": len(late)}


def _cut(connection: BaseDatabaseWrapper) -> None:
    inner = connection.connection
    if inner is None:  # it is being opened, which has a time-out of its own
        return
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(inner.pgconn.socket)) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)
