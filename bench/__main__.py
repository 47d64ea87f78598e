"""All benchmarks, one after another: JSON lines as they come, and one table at the end.

    python -m bench [--quick] [--only plan,drain]

Each is a program of its own with servers of its own, so that none warms another. `--quick` takes
less than three minutes: smaller sizes, a round each, no peers that would have to be installed.
Ends with 1 when a program fails or takes too long; a missed target is in the table, and no failure:
on a machine with other work a single ratio proves little.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from bench.table import Row, rows_of, table
from scheduler_project.stack.layout import CHECKOUT


@dataclass(frozen=True)
class Program:
    """One benchmark. `quick`: its arguments in a quick run; None where it has no part in it."""

    name: str
    quick: tuple[str, ...] | None
    longest_s: float


PROGRAMS = (
    Program("plan", ("--quick", "--rounds=1", "--planners=1"), 1_200),
    Program("publish", ("--quick", "--rounds=1"), 300),
    Program("drain", ("--quick",), 3_600),
    Program("burst", None, 1_200),
    Program("recovery", ("--quick",), 1_200),
    Program("growth", None, 7_200),
    Program("api", None, 900),
)


def run(program: Program, *, is_quick: bool) -> tuple[list[Row], bool]:
    """Run it and pass on what it says; its rows, and whether it came to its end."""
    began = time.monotonic()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            f"bench.{program.name}",
            *((program.quick or ()) if is_quick else ()),
        ],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    watch = threading.Timer(program.longest_s, child.terminate)
    watch.start()
    rows: list[Row] = []
    try:
        for text in child.stdout:
            if text.startswith("{"):
                print(text, end="", flush=True)
                rows += rows_of(json.loads(text))
        is_well = child.wait() == 0
    finally:
        watch.cancel()
        if child.poll() is None:
            child.terminate()
            child.wait()
    taken = f"{time.monotonic() - began:.0f} s"
    if not is_well:
        rows.append(Row(program.name, f"failed after {taken}", holds=False))
    print(f"{program.name}: {taken}", file=sys.stderr, flush=True)
    return rows, is_well


def main() -> None:
    """Read the command line and run what is asked for."""
    names = [program.name for program in PROGRAMS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under three minutes")
    parser.add_argument("--only", type=lambda words: words.split(","), help=", ".join(names))
    asked = parser.parse_args()
    if unknown := set(asked.only or []) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    wanted = [
        program
        for program in PROGRAMS
        if (program.name in asked.only if asked.only else not asked.quick or program.quick)
    ]
    rows: list[Row] = []
    all_well = True
    for program in wanted:
        found, is_well = run(program, is_quick=asked.quick)
        rows += found
        all_well &= is_well
    print(f"\n{table(rows)}")
    sys.exit(not all_well)


if __name__ == "__main__":
    main()
