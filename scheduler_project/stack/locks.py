"""One at a time across processes: a lock on a file, given up by the kernel when its holder dies."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler_project.stack.errors import StackError


@contextmanager
def exclusive(path: Path, timeout_s: float = 300.0) -> Iterator[None]:
    """Hold the lock while the block runs; StackError when somebody else keeps it too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StackError(
                        f"Another command holds {path} for {timeout_s:.0f} s.",
                        f"see who: fuser {path}",
                    ) from None
                time.sleep(0.1)
        yield
