"""What a run that does nothing leaves behind: one line, with its name and the time it ran.

Owns the rule that all schedulers beside each other are judged by the same witness: the file that
their runs write, not what each says of itself.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles


class NoOpLog:
    """Appends lines; whole ones, from as many processes and threads as there are."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, name: str) -> None:
        """The run `name` runs now."""
        os.write(self._file, f"{name} {time.time():.6f}\n".encode())

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Drain:
    """How a burst was served. Times in seconds after it fell due; the rate is over the whole."""

    runs: int
    lost: int
    doubled: int
    early: int
    lag_p50_s: float
    lag_p99_s: float
    drained_s: float
    runs_per_s: float


def lines_of(path: Path) -> int:
    """How many runs have run so far."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read_starts(path: Path) -> list[tuple[str, float]]:
    """The names and times of what has run so far, in the order in which it was written."""
    whole = path.read_text().rpartition("\n")[0]  # the last line may be half written
    rows = (row.partition(" ") for row in whole.splitlines())
    return [(name, float(at)) for name, _, at in rows]


def judge(path: Path, names: Iterable[str], due: float) -> Drain:
    """Read the file of a burst of `names` that fell due at `due` (seconds of the epoch).

    A run that ran twice counts with its first time.
    """
    expected = set(names)
    times: dict[str, float] = {}
    seen: Counter[str] = Counter()
    for name, at in read_starts(path):
        if name in expected:
            seen[name] += 1
            times[name] = min(at, times.get(name, float("inf")))
    lags = sorted(at - due for at in times.values())
    if not lags:
        raise RuntimeError(f"none of {len(expected)} runs has run")
    cuts = quantiles(lags, n=100) if len(lags) > 1 else lags * 99
    return Drain(
        runs=len(expected),
        lost=len(expected) - len(times),
        doubled=sum(count > 1 for count in seen.values()),
        early=sum(lag < 0 for lag in lags),
        lag_p50_s=median(lags),
        lag_p99_s=cuts[98],
        drained_s=lags[-1],
        runs_per_s=len(lags) / max(lags[-1], 1e-9),
    )
