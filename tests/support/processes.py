"""A real process under a test's hand: start it, kill it, freeze it, read what it said.

Owns the rule that none outlives the test run, however that ends: the kernel kills each with its
parent, and each carries the run's marker for whoever sweeps up after a crash.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scheduler_project.stack.layout import CHECKOUT


@dataclass
class Process:
    """One program, now or later running. Its output is appended to `log` over all its lives."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_signal: int = signal.SIGTERM
    # A command that arranges for its own death with us (PostgreSQL, which changes its account).
    dies_by_itself: bool = False
    _child: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; one that runs already is left alone."""
        if self.is_alive:
            return
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "setpriv (package util-linux) is missing"
        prefix = [] if self.dies_by_itself else [setpriv, "--pdeathsig=KILL", "--"]
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                [*prefix, *self.command],
                env={**_inherited(), **self.environment},
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A group of its own: a kill reaches its children, an interrupt at the keyboard not.
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL, to it and its children, and wait until it is gone."""
        self._signal_group(signal.SIGKILL)
        self._wait(10)

    def stop(self, within_s: float = 30) -> int | None:
        """Ask it to end in order; killed when it does not. Returns its exit code."""
        if not self.is_alive:
            return None
        self._signal(signal.SIGCONT)
        self._signal(self.stop_signal)
        try:
            return self._wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def freeze(self) -> None:
        """SIGSTOP: it is there and does nothing, as under a debugger or a paused machine."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        self._signal_group(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def output(self) -> str:
        """Everything that it has said so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _wait(self, timeout_s: float) -> int | None:
        return None if self._child is None else self._child.wait(timeout_s)

    def _signal(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def _signal_group(self, number: int) -> None:
        if self.is_alive:
            os.killpg(self.pid, number)


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
