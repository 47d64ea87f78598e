"""Which process a file speaks of, told from a later one that got the same number."""

import contextlib
import json
from pathlib import Path

import psutil

from scheduler_project.stack.state import write_private

# The boot clock is corrected now and then: the start time of one process moves a little.
_START_TOLERANCE_S = 2.0


def write_identity(file: Path, pid: int) -> None:
    """Write down the process `pid`: its number and when it started."""
    write_private(file, json.dumps({"pid": pid, "started": psutil.Process(pid).create_time()}))


def living_process(file: Path) -> psutil.Process | None:
    """The process written down in `file`, while it lives."""
    with contextlib.suppress(OSError, ValueError, KeyError, psutil.Error):
        saved = json.loads(file.read_text())
        process = psutil.Process(saved["pid"])
        same = abs(process.create_time() - saved["started"]) < _START_TOLERANCE_S
        if same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None
