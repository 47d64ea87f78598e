"""A kill for memory is told as such, although the engine's word of it may come after the exit."""

from collections.abc import Iterator
from typing import cast
from uuid import UUID

import pytest

from workers.sandbox import engine_sandbox
from workers.sandbox.base import ContainerExit, ContainerHandle
from workers.sandbox.engine_sandbox import EngineSandbox

HANDLE = ContainerHandle("id", "name", UUID(int=1), 1, 1, UUID(int=2))
KILLED = ContainerExit(exit_code=137, signal=9)
FOR_MEMORY = ContainerExit(exit_code=137, signal=9, oom_killed=True)


class Engine:
    """Looks at a container that give these exits in turn, the last one for ever."""

    def __init__(self, *exits: ContainerExit) -> None:
        self.looks = 0
        self._exits: Iterator[ContainerExit] = iter(exits)
        self._last = exits[-1]

    def _exit_of(self, handle: ContainerHandle) -> ContainerExit:
        self.looks += 1
        return next(self._exits, self._last)

    def settled(self, found: ContainerExit) -> ContainerExit:
        return EngineSandbox._with_memory_flag(cast(EngineSandbox, self), HANDLE, found)


@pytest.fixture(autouse=True)
def _time_runs_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sandbox, "LOOK_UP_S", 0.01)
    monkeypatch.setattr(engine_sandbox, "MEMORY_FLAG_S", 0.2)


def test_a_flag_that_comes_after_the_exit_is_waited_for() -> None:
    engine = Engine(KILLED, KILLED, FOR_MEMORY)

    assert engine.settled(KILLED) == FOR_MEMORY
    assert engine.looks == 3


def test_a_kill_without_the_flag_stays_a_kill() -> None:
    assert Engine(KILLED).settled(KILLED) == KILLED


@pytest.mark.parametrize(
    "found",
    [FOR_MEMORY, ContainerExit(exit_code=0), ContainerExit(exit_code=143, signal=15)],
)
def test_whatever_else_is_believed_at_once(found: ContainerExit) -> None:
    engine = Engine(found)

    assert engine.settled(found) == found
    assert engine.looks == 0


def test_a_container_removed_meanwhile_keeps_the_exit_that_was_seen() -> None:
    assert Engine(ContainerExit(exit_code=None)).settled(KILLED) == KILLED
