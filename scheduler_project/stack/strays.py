"""The processes of a stack, found by what they carry and not by what a supervisor remembers.

Owns the rule that `down` leaves nothing: a supervisor that was killed knows its children no more,
but each of them still has the stack's marker in its environment.
"""

import contextlib
import os
import signal
from pathlib import Path

import psutil

from scheduler_project.stack.layout import MARKER, Layout


def processes_of(layout: Layout) -> list[psutil.Process]:
    """Every living process of this stack, the caller and its parents left out."""
    return [process for process in marked(layout.local) if not _is_caller(process)]


def marked(directory: Path, *, or_below: bool = False) -> list[psutil.Process]:
    """Every living process whose marker names `directory`, or one below it if that is asked for.

    PostgreSQL's backends write their titles over their environment and are not found; they end
    with their postmaster, which is.
    """
    found = []
    for process in psutil.process_iter():
        # Gone meanwhile, or another user's, which cannot be ours to end.
        with contextlib.suppress(psutil.Error, OSError):
            marker = Path(process.environ().get(MARKER) or "/")
            is_ours = marker == directory or (or_below and directory in marker.parents)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _is_caller(process: psutil.Process) -> bool:
    own = psutil.Process(os.getpid())
    return process.pid == own.pid or process.pid in {parent.pid for parent in own.parents()}


def end_all(processes: list[psutil.Process], grace_s: float = 10.0) -> int:
    """Ask, wait, kill, wait; returns how many there were."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            # PostgreSQL takes TERM as "when the last client has gone", INT as "now, in order".
            is_database = process.name() == "postgres"
            process.send_signal(signal.SIGINT if is_database else signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=10)
    return len(processes)


def listens(port: int, layout: Layout) -> bool:
    """Whether a process of this stack listens on the port of 127.0.0.1."""
    owners = {
        connection.pid
        for connection in psutil.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    }
    return bool(owners & {process.pid for process in processes_of(layout)})


def read_pid(path: Path) -> int | None:
    """The number in a pid file, or None where there is no such file or number."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
