"""Group commit inside one process: many threads' requests become one statement.

The first request opens a batch, those that come within a few milliseconds join it; the caller
waits for its own answer. A batch whose outcome is unknown fails every request in it with
`UnknownOutcome`, because some or all may have been written.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from django.db import close_old_connections, connections
from django.db.utils import InterfaceError, OperationalError

from scheduler_project.lib.events import emit

Item = TypeVar("Item")
Answer = TypeVar("Answer")


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
        self._most = most
        self._requests: queue.SimpleQueue[tuple[Item, Future[Answer]] | None] = queue.SimpleQueue()
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

    def _loop(self) -> None:
        while (request := self._requests.get()) is not None:
            batch = [request, *self._gather()]
            self._answer([entry for entry in batch if entry is not None])
            if None in batch:
                break
        connections.close_all()

    def _gather(self) -> list[tuple[Item, "Future[Answer]"] | None]:
        gathered: list[tuple[Item, Future[Answer]] | None] = []
        until = time.monotonic() + self._gather_s
        while len(gathered) < self._most - 1:
            try:
                entry = self._requests.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            gathered.append(entry)
            if entry is None:
                break
        return gathered

    def _answer(self, batch: list[tuple[Item, "Future[Answer]"]]) -> None:
        try:
            close_old_connections()
            answers = self._execute([item for item, _ in batch])
        except (InterfaceError, OperationalError) as error:
            connections.close_all()
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
            return
        except Exception as error:  # a fault of ours: the callers must not wait for ever
            logging.getLogger(__name__).exception("batch %s failed", self._name)
            connections.close_all()
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)
