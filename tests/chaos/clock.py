"""A wall clock of a process's own, wrong by as much as a test says, while it runs.

Linux has no namespace for the wall clock. A small library is preloaded instead, so that everything
in the process sees the wrong time: Python, its C modules and the client of the database.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from scheduler_project.stack import debian

_SOURCE = Path(__file__).with_name("skewed_clock.c")


class SkewedClock:
    """Processes with `environment` have this clock; `skew` moves it at once, in all of them."""

    def __init__(self, directory: Path, name: str) -> None:
        library = directory / "skewed_clock.so"
        if not library.exists():
            _compile(library)
        self._file = directory / f"{name}.skew"
        self._file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(library), "SKEW_FILE": str(self._file)}

    def skew(self, seconds: int) -> None:
        """Let it be wrong by so much; 0: right."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:8] = struct.pack("=q", seconds)


def _compile(library: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("tcc")
    if compiler is None:
        assert debian.can_install(), "no C compiler: apt-get install tcc"
        debian.install("tcc")
        compiler = shutil.which("tcc")
    assert compiler is not None
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-fno-builtin", "-o", str(library), str(_SOURCE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
