"""Group commit: many requests become one call, and each is answered, whatever happens."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg.errors
import pytest
from django.db.utils import DataError, InterfaceError, OperationalError

from tests.support.polling import poll
from workers.batching import Batcher, UnknownOutcome

_WITHIN_S = 5
MakeBatcher = Callable[..., Batcher[str, str]]


class Database:
    """Answers a batch with its items in capitals; fails as the test says, and counts."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.failures: dict[str, Exception] = {}
        self.is_open = threading.Event()
        self.is_open.set()

    def execute(self, items: Sequence[str]) -> list[str]:
        self.is_open.wait(_WITHIN_S)
        self.batches.append(list(items))
        for item in items:
            if item in self.failures:
                raise self.failures[item]
        return [item.upper() for item in items]

    def ask_together(self, batcher: Batcher[str, str], *items: str) -> list[Any]:
        """One batch of these items; returns their answers, an exception for one that failed."""
        self.is_open.clear()
        batcher.submit("first")  # the thread is busy with this one while the others gather
        futures = [batcher.submit(item) for item in items]
        self.is_open.set()
        return [future.exception(_WITHIN_S) or future.result() for future in futures]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def batcher(database: Database) -> Iterator[Batcher[str, str]]:
    with ExitStack() as stack:
        batcher = Batcher("test", database.execute, gather_s=0.05)
        batcher.start()
        stack.callback(batcher.stop, _WITHIN_S)
        yield batcher


def refused_by_server(error: psycopg.Error) -> OperationalError:
    """The error as Django raises it: with the driver's own behind it."""
    wrapped = OperationalError(str(error))
    wrapped.__cause__ = error
    return wrapped


def test_requests_that_come_together_are_one_call(
    database: Database, batcher: Batcher[str, str]
) -> None:
    assert database.ask_together(batcher, "a", "b", "c") == ["A", "B", "C"]
    assert len(database.batches) <= 2


def test_a_request_alone_is_answered_alone(batcher: Batcher[str, str]) -> None:
    assert batcher.ask("a") == "A"


@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")])
def test_a_database_that_does_not_answer_leaves_every_outcome_unknown(
    database: Database, batcher: Batcher[str, str], error: Exception
) -> None:
    database.failures["b"] = error

    answers = database.ask_together(batcher, "a", "b", "c")

    assert [type(answer) for answer in answers] == [UnknownOutcome] * 3


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (DataError("NUL"), DataError),
        (KeyError("a field that is not there"), KeyError),
        (refused_by_server(psycopg.errors.LockNotAvailable("a row is held")), UnknownOutcome),
        (refused_by_server(psycopg.errors.DeadlockDetected("a circle")), UnknownOutcome),
        (refused_by_server(psycopg.errors.QueryCanceled("too long")), UnknownOutcome),
    ],
)
def test_one_request_that_is_refused_harms_no_other(
    database: Database, batcher: Batcher[str, str], error: Exception, seen: type[Exception]
) -> None:
    database.failures["b"] = error

    first, bad, last = database.ask_together(batcher, "a", "b", "c")

    assert (first, last) == ("A", "C")
    assert isinstance(bad, seen)


def test_a_batch_full_of_held_rows_does_not_wait_for_each_of_them(
    database: Database, batcher: Batcher[str, str]
) -> None:
    names = [f"held-{n}" for n in range(20)]
    error = refused_by_server(psycopg.errors.LockNotAvailable("a row is held"))
    database.failures = dict.fromkeys(names, error)

    answers = database.ask_together(batcher, *names)

    assert [type(answer) for answer in answers] == [UnknownOutcome] * 20
    assert len(database.batches) <= 5


def test_a_server_that_is_going_away_has_not_refused(
    database: Database, batcher: Batcher[str, str]
) -> None:
    database.failures["b"] = refused_by_server(psycopg.errors.AdminShutdown("restart"))

    answers = database.ask_together(batcher, "a", "b")

    assert [type(answer) for answer in answers] == [UnknownOutcome] * 2


def test_the_thread_outlives_every_failure(
    database: Database, batcher: Batcher[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("a connection that can't even be closed")

    monkeypatch.setattr("workers.batching.connections.close_all", broken)
    database.failures["a"] = OperationalError("gone")
    with pytest.raises(UnknownOutcome):
        batcher.ask("a")

    assert batcher.ask("b") == "B"
    monkeypatch.undo()


def test_too_few_answers_are_a_fault_that_every_asker_learns_of() -> None:
    batcher: Batcher[str, str] = Batcher("short", lambda items: [])
    batcher.start()

    with pytest.raises(ValueError, match="shorter"):
        batcher.ask("a")

    batcher.stop(_WITHIN_S)


def test_what_was_asked_before_the_end_is_still_answered(database: Database) -> None:
    batcher: Batcher[str, str] = Batcher("ending", database.execute)
    futures = [batcher.submit(name) for name in "abc"]
    batcher.start()

    batcher.stop(_WITHIN_S)

    assert [future.result(0) for future in futures] == ["A", "B", "C"]


def test_while_the_database_is_slow_requests_are_gathered_for_longer() -> None:
    slow = Database()
    batcher: Batcher[str, str] = Batcher("test", slow.execute, gather_s=0.0)
    batcher.start()
    try:
        assert batcher.gather_s == 0.0
        slow.is_open.clear()
        first = batcher.submit("first")
        threading.Timer(0.2, slow.is_open.set).start()
        first.result(_WITHIN_S)

        # Half of what the batch took, up to the bound.
        poll(lambda: batcher.gather_s == pytest.approx(0.03), what="a longer gathering")
        batcher.ask("a fast one")
        poll(lambda: batcher.gather_s < 0.03, what="a shorter gathering")
    finally:
        batcher.stop(_WITHIN_S)
