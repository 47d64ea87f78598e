"""How often Python looks for reference cycles in a process that makes many small rows."""

import gc
from typing import Final

# Objects made beyond those freed before a look. A planner's batch is a few 100,000 tuples without
# a cycle among them; with Python's 700 a fifth of its time went into looking at them.
_YOUNG: Final = 100_000


def collect_rarely() -> None:
    """Look seldom, and never again at what exists by now: the imported program."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
