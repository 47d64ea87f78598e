"""A read that hangs is cut off; one that is done in time is left alone."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_project.lib.read_watch import ReadWatch


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end of a connection, and the server's, which says nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def connection_on(end: socket.socket) -> Any:
    """A connection as Django has it, around a socket."""
    return SimpleNamespace(connection=SimpleNamespace(pgconn=SimpleNamespace(socket=end.fileno())))


def test_a_read_beyond_its_time_sees_the_end_of_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    watch = ReadWatch(limit_s=0)
    ours, _ = ends
    with watch.over(connection_on(ours)):
        assert watch.check_once() == {"cut": 1}
        assert ours.recv(1) == b"", "who waits is woken by the end"
    assert ours.fileno() >= 0, "closing it is its owner's affair"


def test_a_read_within_its_time_and_one_that_has_ended_are_left_alone(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    patient, hasty = ReadWatch(limit_s=60), ReadWatch(limit_s=0)
    ours, theirs = ends
    with patient.over(connection_on(ours)):
        assert patient.check_once() == {"cut": 0}
    with hasty.over(connection_on(ours)):
        pass
    assert hasty.check_once() == {"cut": 0}
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"


def test_a_connection_that_is_not_open_yet_or_closed_already_harms_nobody(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    watch = ReadWatch(limit_s=0)
    with watch.over(SimpleNamespace(connection=None)):  # type: ignore[arg-type]
        assert watch.check_once() == {"cut": 1}
    ours, _ = ends
    gone = connection_on(ours)
    ours.close()
    with watch.over(gone):
        assert watch.check_once() == {"cut": 1}
