"""How long each worker process may let containers run, told to the node's warden through files.

Owns the rule that a deadline is in seconds of `CLOCK_BOOTTIME`, which neither steps nor stops
while a machine sleeps, and that a file is replaced whole or not at all. The directory is on
tmpfs: after a reboot neither the files nor the containers are there.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from workers.processes import ProcessIdentity, identify, pid_namespace

WARDEN_FILE = "warden.json"

# The warden makes a round each second, and one with a hung engine takes about four.
WARDEN_SILENT_AFTER_S = 6.0


def boottime_s() -> float:
    """Seconds since boot, sleep included: the clock of every deadline on this node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class SessionDeadline:
    """Until when (CLOCK_BOOTTIME, seconds) a session's containers may run.

    The worker itself acts at `worker_deadline`; past `warden_deadline` the warden does.
    `start_ticks` and `pid_namespace` tell the process from a later one with its number and
    from another namespace's.
    """

    session_id: UUID
    pid: int
    worker_deadline: float
    warden_deadline: float
    start_ticks: int | None = None
    pid_namespace: str | None = None

    def process_is_gone(self) -> bool:
        """True only when that process is surely dead: seen from here and no longer there."""
        if self.start_ticks is None or self.pid_namespace is None:
            return False
        if self.pid_namespace != pid_namespace():
            return False
        return not ProcessIdentity(self.pid, self.start_ticks).is_alive()


def write_deadline(
    directory: Path,
    session_id: UUID,
    pid: int,
    *,
    worker_deadline: float,
    warden_deadline: float,
) -> SessionDeadline:
    """Replace the session's file and return what it says. OSError when it cannot be written.

    Write it before the session's first container exists: the warden kills what it finds no
    file for.
    """
    process = identify(pid)
    deadline = SessionDeadline(
        session_id=session_id,
        pid=pid,
        worker_deadline=worker_deadline,
        warden_deadline=warden_deadline,
        start_ticks=process.start_ticks if process else None,
        pid_namespace=pid_namespace(),
    )
    _replace(
        _session_file(directory, session_id),
        {
            "session": str(session_id),
            "pid": pid,
            "start_ticks": deadline.start_ticks,
            "pid_namespace": deadline.pid_namespace,
            "worker_deadline": worker_deadline,
            "warden_deadline": warden_deadline,
        },
    )
    return deadline


def remove_deadline(directory: Path, session_id: UUID) -> None:
    """Forget the session. Call it last at an orderly end: containers left over are killed."""
    _session_file(directory, session_id).unlink(missing_ok=True)


def read_deadlines(directory: Path) -> dict[UUID, SessionDeadline | None]:
    """Each session that has a file; None for one that cannot be understood.

    A directory that does not exist holds no session.
    """
    found: dict[UUID, SessionDeadline | None] = {}
    for path in directory.glob("*.json"):
        session_id = _session_of(path)
        if session_id is None:
            continue
        try:
            found[session_id] = _parse(session_id, path.read_bytes())
        except FileNotFoundError:
            continue  # removed by its worker between the listing and the reading
        except OSError:
            found[session_id] = None
    return found


def write_warden_alive(directory: Path, *, node: str, engine_answers: bool) -> None:
    """Stamp the warden's own file with the present CLOCK_BOOTTIME."""
    _replace(
        directory / WARDEN_FILE,
        {
            "node": node,
            "pid": os.getpid(),
            "seen_at": boottime_s(),
            "engine_answers": engine_answers,
        },
    )


def warden_is_alive(directory: Path, now: float | None = None) -> bool:
    """Whether the node's warden made a round lately; without one a worker takes no new lease."""
    try:
        seen_at = float(json.loads((directory / WARDEN_FILE).read_bytes())["seen_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    age_s = (boottime_s() if now is None else now) - seen_at
    # A stamp from the future was written before a reboot.
    return 0 <= age_s <= WARDEN_SILENT_AFTER_S


def _parse(session_id: UUID, content: bytes) -> SessionDeadline | None:
    try:
        data = json.loads(content)
        if UUID(data["session"]) != session_id:
            return None
        deadline = SessionDeadline(
            session_id=session_id,
            pid=int(data["pid"]),
            worker_deadline=float(data["worker_deadline"]),
            warden_deadline=float(data["warden_deadline"]),
            start_ticks=data["start_ticks"],
            pid_namespace=data["pid_namespace"],
        )
        # No instant is ever later than NaN or infinity: such a deadline would never pass.
        return deadline if math.isfinite(deadline.warden_deadline) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _replace(path: Path, content: dict[str, Any]) -> None:
    # Only this user: whoever can write here decides what is killed.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The name starts with a dot and ends differently, so that no reader takes it for a session.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def _session_file(directory: Path, session_id: UUID) -> Path:
    return directory / f"{session_id}.json"


def _session_of(path: Path) -> UUID | None:
    try:
        return UUID(path.stem)
    except ValueError:
        return None
