"""How long each worker process may let containers run, told to the node's warden through files.

Owns the rule that a deadline is in seconds of `CLOCK_BOOTTIME`, which neither steps nor stops
while a machine sleeps, and that a file is replaced whole or not at all. The directory is on
tmpfs: after a reboot neither the files nor the containers are there.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

WARDEN_FILE = "warden.json"

# The warden sweeps each second and a hung engine holds it up for two: five is not a hiccup.
WARDEN_SILENT_AFTER_S = 5.0


def boottime_s() -> float:
    """Seconds since boot, sleep included: the clock of every deadline on this node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class SessionDeadline:
    """Until when (CLOCK_BOOTTIME, seconds) a session's containers may run.

    The worker itself acts at `worker_deadline`; past `warden_deadline` the warden does.
    `pid_started` (clock ticks since boot) and `pid_namespace` tell the process from a later
    one with its number and from another namespace's.
    """

    session_id: UUID
    pid: int
    worker_deadline: float
    warden_deadline: float
    pid_started: int | None = None
    pid_namespace: str | None = None


def write_deadline(
    directory: Path,
    session_id: UUID,
    pid: int,
    *,
    worker_deadline: float,
    warden_deadline: float,
) -> SessionDeadline:
    """Replace the session's file. Write it before the session's first container exists."""
    raise NotImplementedError


def remove_deadline(directory: Path, session_id: UUID) -> None:
    """Forget the session: its containers, if any are left, are killed. Call at an orderly end."""
    raise NotImplementedError


def read_deadlines(directory: Path) -> dict[UUID, SessionDeadline | None]:
    """Each session with a file; None for a file that cannot be understood."""
    raise NotImplementedError


def write_warden_alive(directory: Path, node: str, engine_answers: bool) -> None:
    """Stamp the warden's own file with the present CLOCK_BOOTTIME."""
    raise NotImplementedError


def warden_is_alive(directory: Path, now: float | None = None) -> bool:
    """Whether the node's warden made a round lately; without one a worker takes no new lease."""
    raise NotImplementedError


_ = (json, os, asdict)
