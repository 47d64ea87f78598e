"""The logs of a stack's programs: their last lines, and following them."""

import os
import shutil
from pathlib import Path

from scheduler_project.stack.errors import StackError
from scheduler_project.stack.layout import Layout


def last_lines(layout: Layout, count: int = 6) -> str:
    """The last lines of each program's log, for a failure."""
    parts = []
    for path in sorted(layout.logs.glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()[-count:]
        if lines:
            parts.append("\n".join([f"--- {path.name}", *lines]))
    return "\n".join(parts)


def follow(layout: Layout, name: str | None) -> None:
    """Become `tail`, which follows one log or all of them; does not return."""
    paths = _paths(layout, name)
    tail = shutil.which("tail")
    if tail is None:
        raise StackError("There is no tail on this machine.", f"look into {layout.logs}")
    os.execv(tail, [tail, "-n", "50", "-F", *(str(path) for path in paths)])


def _paths(layout: Layout, name: str | None) -> list[Path]:
    paths = sorted(layout.logs.glob("*.log"))
    if name is None and paths:
        return paths
    chosen = [path for path in paths if path.stem == name]
    if not chosen:
        names = ", ".join(path.stem for path in paths) or "none yet"
        raise StackError(f"There is no log {name or ''}.", f"logs: {names}")
    return chosen
