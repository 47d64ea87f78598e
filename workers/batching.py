"""Group commit inside one process: many threads' requests become one statement.

The first request opens a batch, those that come within a few milliseconds join it (longer while the
database is slow: what a batch costs hardly depends on its size); the caller waits for its own
answer. A batch whose outcome is unknown fails every request in it with
`UnknownOutcome`, because some or all may have been written; one that was refused is tried again
request by request, so that a single bad one harms nobody else.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from django.db import close_old_connections, connections
from django.db.utils import InterfaceError, OperationalError

from scheduler_project.lib.events import emit

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_Request: TypeAlias = tuple[Item, Future[Answer]]

# SQLSTATE classes that end a transaction and leave the connection: deadlock, lock not available.
_REFUSAL_CLASSES = {"40", "55"}
_STATEMENT_CANCELLED = "57014"
_MOST_REFUSED_ALONE = 3
# While batches take long, requests are gathered for this part of what the last one took, so that
# a busy database is asked for more at a time and not more often. Up to a bound.
_GATHER_PART = 0.5
_LONGEST_GATHER_S = 0.03


class UnknownOutcome(Exception):
    """The database did not answer: what was asked may or may not have been done. Ask again."""


class Batcher(Generic[Item, Answer]):
    """A thread with its own connection that executes requests in batches."""

    def __init__(
        self,
        name: str,
        execute: Callable[[Sequence[Item]], Sequence[Answer]],
        *,
        gather_s: float = 0.004,
        most: int = 200,
    ) -> None:
        """`execute` returns one answer per item, in order; it runs in its own transaction."""
        self._name = name
        self._execute = execute
        self._gather_s = gather_s
        self._took_s = 0.0
        self._most = most
        self._requests: queue.SimpleQueue[_Request[Item, Answer] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"batch-{name}", daemon=True)

    def start(self) -> None:
        """Begin to serve requests."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the requests that are there already."""
        self._requests.put(None)
        self._thread.join(timeout_s)

    def submit(self, item: Item) -> "Future[Answer]":
        """Ask; the future raises UnknownOutcome when the database did not answer."""
        future: Future[Answer] = Future()
        self._requests.put((item, future))
        return future

    def ask(self, item: Item) -> Answer:
        """Ask and wait for the answer. Raises UnknownOutcome."""
        return self.submit(item).result()

    @property
    def gather_s(self) -> float:
        """How long others may join the batch that opens next."""
        return max(self._gather_s, min(self._took_s * _GATHER_PART, _LONGEST_GATHER_S))

    def _loop(self) -> None:
        while (request := self._requests.get()) is not None:
            batch = [request, *self._gather()]
            self._answer([entry for entry in batch if entry is not None])
            if None in batch:
                break
        connections.close_all()

    def _gather(self) -> list[_Request[Item, Answer] | None]:
        gathered: list[_Request[Item, Answer] | None] = []
        until = time.monotonic() + self.gather_s
        while len(gathered) < self._most - 1:
            try:
                entry = self._requests.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            gathered.append(entry)
            if entry is None:
                break
        return gathered

    def _answer(self, batch: list[_Request[Item, Answer]]) -> None:
        """Execute the batch and answer every request in it, whatever happens."""
        try:
            self._execute_all(batch)
        except Exception as error:  # the callers must not wait for ever
            _drop_connections()
            if len(batch) > 1 and _is_refusal(error):
                self._answer_one_by_one(batch, error)
            elif isinstance(error, (InterfaceError, OperationalError)):
                self._fail_unknown(batch, error)
            else:  # a fault of ours, or a request that the database can't take
                logging.getLogger(__name__).error("batch %s failed", self._name, exc_info=error)
                for _, future in batch:
                    future.set_exception(error)

    def _execute_all(self, batch: list[_Request[Item, Answer]]) -> None:
        close_old_connections()
        began_at = time.monotonic()
        answers = self._execute([item for item, _ in batch])
        self._took_s = time.monotonic() - began_at
        # Paired before the first is set: a future can't be answered twice.
        for (_, future), answer in list(zip(batch, answers, strict=True)):
            future.set_result(answer)

    def _answer_one_by_one(self, batch: list[_Request[Item, Answer]], error: Exception) -> None:
        """One request of the batch was refused, and nothing was done: the others must not suffer.

        After a few that were refused alone, the rest is told to ask again: each may have waited
        for a lock as long as it may, and those behind have waited with it.
        """
        emit("batch.refused", "A batch was refused; its requests are tried one by one.",
             level=logging.WARNING, batch=self._name, size=len(batch),
             error=f"{type(error).__name__}: {str(error).strip()}")  # fmt: skip
        refused = 0
        for request in batch:
            if refused < _MOST_REFUSED_ALONE:
                self._answer([request])
                refused += request[1].exception() is not None
            else:
                request[1].set_exception(UnknownOutcome("others of its batch were refused"))

    def _fail_unknown(self, batch: list[_Request[Item, Answer]], error: Exception) -> None:
        emit(
            "batch.unknown_outcome",
            "The database did not answer a batch.",
            level=logging.WARNING,
            batch=self._name,
            size=len(batch),
            error=str(error).strip(),
        )
        unknown = UnknownOutcome(f"{type(error).__name__}: {error}")
        for _, future in batch:
            future.set_exception(unknown)


def _is_refusal(error: Exception) -> bool:
    """Whether the batch was surely not done, for a reason that may lie in one of its requests.

    An error that has nothing to do with the connection: our own, a value that the database can't
    store, or a lock that somebody holds.
    """
    if not isinstance(error, (InterfaceError, OperationalError)):
        return True
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    return sqlstate[:2] in _REFUSAL_CLASSES or sqlstate == _STATEMENT_CANCELLED


def _drop_connections() -> None:
    """Close this thread's connections: one that failed must not be used again."""
    with suppress(Exception):  # broken already: closing it may fail, and no thread may die of it
        connections.close_all()
