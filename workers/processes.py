"""Processes named so that a recycled number is never mistaken for the one that was meant.

Owns the rule that a pid alone identifies nothing: a process is its pid *and* its start tick, and
is struck only while both match.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
FREEZER = Path("/sys/fs/cgroup/freezer")

# Field numbers of /proc/<pid>/stat, counted from the state that follows the command's bracket.
_STATE, _START_TICKS = 0, 19


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for its whole life. `start_ticks`: clock ticks from boot to its start."""

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """False once it is gone or a zombie.

        The init of a pid namespace becomes a zombie only after the kernel has killed and
        reaped everything inside, so for a container's init False means that all of it is dead.
        """
        found = _read_stat(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] not in "ZX"

    def kill(self) -> bool:
        """SIGKILL it; whether the signal was sent. Needs the right to signal it."""
        try:
            # The descriptor pins the process: between the look and the signal its number
            # cannot pass to another one.
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _thaw(self.pid)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now, or None."""
    found = _read_stat(pid)
    return None if found is None else ProcessIdentity(pid, found[1])


def identify_container_init(pid: int, container_id: str) -> ProcessIdentity | None:
    """The process, if it really is of that container as seen from here.

    An engine in another pid namespace, or on another host, reports numbers that mean somebody
    else here; only the container's id in the process's cgroup (runc) or command line (runsc)
    makes it ours to kill.
    """
    process = identify(pid)
    if process is None:
        return None
    try:
        evidence = (PROC / str(pid) / "cgroup").read_bytes()
        evidence += (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return process if container_id.encode() in evidence else None


def _thaw(pid: int) -> None:
    """Let a frozen process die: version 1's freezer holds back even a SIGKILL until the thaw.

    With version 2, and where the freezer's files can't be seen, there is nothing to do: its frozen
    processes can be killed, and an engine that answers thaws what it kills.
    """
    with suppress(OSError):
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "freezer":
                (FREEZER / path.lstrip("/") / "freezer.state").write_text("THAWED")


def pid_namespace() -> str | None:
    """This process's pid namespace, such as `pid:[4026531836]`."""
    try:
        return os.readlink(PROC / "self" / "ns" / "pid")
    except OSError:
        return None


def _read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start ticks. Split after the last bracket: a name may hold brackets."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[_STATE], int(fields[_START_TICKS])
    except (OSError, IndexError, ValueError):
        return None
