"""Where a stack keeps its things, and the name that tells it from every other stack.

Owns the rule that two checkouts on one machine never touch one another: the instance is derived
from the path of the local directory, and containers, tmpfs files and processes carry it.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from scheduler_project.stack.errors import StackError

CHECKOUT = Path(__file__).resolve().parent.parent.parent

# In the environment of every process of a stack: the path of its local directory.
MARKER = "SCHEDULER_STACK"

# Linux allows 107 bytes for a socket's path; supervisor binds a longer, temporary name first.
_MAX_SOCKET_PATH_BYTES = 95


@dataclass(frozen=True)
class Layout:
    """The paths of one stack; `local` is absolute."""

    local: Path

    @property
    def instance(self) -> str:
        """Name of this stack: in container labels, in /dev/shm, in database sessions."""
        return "scheduler-" + hashlib.sha256(str(self.local).encode()).hexdigest()[:8]

    @property
    def logs(self) -> Path:
        return self.local / "logs"

    @property
    def env_file(self) -> Path:
        return self.local / "env"

    @property
    def lock_file(self) -> Path:
        """Held by the command that changes this stack."""
        return self.local / "lock"

    @property
    def state_file(self) -> Path:
        return self.local / "state.json"

    @property
    def static(self) -> Path:
        return self.local / "static"

    @property
    def metrics(self) -> Path:
        """Where the processes of the API put their counts together."""
        return self.local / "metrics"

    @property
    def postgres_data(self) -> Path:
        return self.local / "postgres"

    @property
    def deadlines(self) -> Path:
        """Of workers and warden; on tmpfs, so that a reboot clears it."""
        return Path("/dev/shm") / self.instance

    @property
    def supervisor_socket(self) -> Path:
        """In `local`, or in a private directory under /tmp when that path is too long."""
        path = self.local / "supervisor.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
            return path
        return Path("/tmp") / self.instance / "supervisor.sock"

    def make_directories(self) -> None:
        """Create what is missing. The database's own account must be able to pass `local`."""
        self.local.mkdir(parents=True, exist_ok=True)
        self.local.chmod(0o711)
        self.logs.mkdir(exist_ok=True)
        # What was asked for stands there, and what customers call their things.
        self.logs.chmod(0o700)
        directory = self.supervisor_socket.parent
        directory.mkdir(exist_ok=True)
        if directory != self.local:
            _refuse_foreign(directory)
            directory.chmod(0o700)


def _refuse_foreign(directory: Path) -> None:
    # Anybody may create a name in /tmp first and would then hold our control socket.
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StackError(f"{directory} belongs to somebody else.", f"remove {directory}")


def current_layout() -> Layout:
    """The checkout's `.local`, or what LOCAL_DIR names (a second stack from one checkout)."""
    return Layout(Path(os.environ.get("LOCAL_DIR") or CHECKOUT / ".local").absolute())
