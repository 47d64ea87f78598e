"""The stack's addresses and keys as a file that a shell can source: `. .local/env`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from scheduler_project.stack.state import write_private


def write_env_file(path: Path, values: Mapping[str, str]) -> None:
    """Write `NAME=value` lines, quoted for a shell; readable by their owner alone."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
    write_private(path, "".join(lines))


def read_env_file(path: Path) -> dict[str, str]:
    """Return what `write_env_file` wrote."""
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if line)
    return {name: shlex.split(value)[0] if value else "" for name, value in pairs}
