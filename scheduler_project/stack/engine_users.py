"""The register of who uses an engine that one of us started; machine-wide, under /run.

Owns the rule that a user counts only while its process lives, so that a killed test run does not
keep the engine for ever.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from scheduler_project.stack.identity import living_process, write_identity
from scheduler_project.stack.locks import exclusive


class EngineUsers:
    """Files below one directory: the engine's process, and one for each user."""

    def __init__(self) -> None:
        # Another account's engine is not ours to end, nor may we write where it keeps its own.
        base = Path("/run") if os.geteuid() == 0 else Path("/tmp")
        self.directory = base / f"scheduler-engine-{os.geteuid()}"
        self.users = self.directory / "users"
        self.engine = self.directory / "engine.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One at a time looks, starts, registers and stops."""
        self.users.mkdir(parents=True, exist_ok=True)
        with exclusive(self.directory / "lock", timeout_s=600):
            yield

    def add(self, user: str, pid: int | None = None) -> None:
        """Register `user`, which lives as long as the process `pid` (default: the caller)."""
        write_identity(self.users / user, pid or os.getpid())

    def remove(self, user: str) -> None:
        (self.users / user).unlink(missing_ok=True)

    def living(self) -> list[str]:
        """The registered users whose process lives; the files of the others are removed."""
        living = []
        for file in sorted(self.users.iterdir()):
            if living_process(file) is None:
                file.unlink(missing_ok=True)
            else:
                living.append(file.name)
        return living

    def record_engine(self, pid: int) -> None:
        """Remember that we started the engine with this process."""
        write_identity(self.engine, pid)

    def engine_process(self) -> psutil.Process | None:
        """The engine that we started, while it lives."""
        return living_process(self.engine)

    def forget_engine(self) -> None:
        self.engine.unlink(missing_ok=True)
