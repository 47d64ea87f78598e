"""What a person sees of a command: one line a step, and for a failure what to do about it."""

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console

# In a file or a pipe there is no width to keep to; the table of runs needs this much.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


@contextlib.contextmanager
def step(title: str) -> Iterator[list[str]]:
    """Show `title` as done, with its time, when the block ends; add details to the list."""
    details: list[str] = []
    began = time.monotonic()
    with console.status(title):
        yield details
    detail = ", ".join(details)
    console.print(
        f"[green]✓[/] {title}{': ' if detail else ''}{detail} "
        f"[dim]{time.monotonic() - began:.1f} s[/]"
    )
