"""How far ahead, and how much at once, does a planner work?

Its rule: planning the next minute never meets this minute's go.

Cron falls due at full minutes. Some seconds before one the planner comes to the minute after it,
which can wait; what the workers do at the full minute can't.
"""

from datetime import datetime, timedelta
from typing import Final

# Around a full minute only what is due this soon is planned: it then still has time to be placed
# and prepared.
URGENT: Final = timedelta(seconds=45)
# A burst's go, its starts and the first completions take the database about so long.
QUIET_BEFORE: Final = timedelta(seconds=1)
QUIET_AFTER: Final = timedelta(seconds=3)

# A transaction that is longer keeps edits of its jobs waiting; a much shorter one wastes its flush.
LONGEST: Final = timedelta(seconds=1)
SHORT: Final = timedelta(milliseconds=300)


def look_ahead(now: datetime, longest: timedelta) -> timedelta:
    """How far ahead to plan at `now`, the database's time: `longest`, or less near full minutes."""
    into_minute = timedelta(seconds=now.second, microseconds=now.microsecond)
    is_quiet = into_minute < QUIET_AFTER or into_minute >= timedelta(minutes=1) - QUIET_BEFORE
    return min(longest, URGENT) if is_quiet else longest


def next_batch(batch: int, *, was_full: bool, took: timedelta, most: int) -> int:
    """How many cursors to claim next, after a batch of `batch` took that long.

    Halved when it was too long, doubled when it was full and short; from 1 to `most`.
    """
    if took > LONGEST:
        return max(1, batch // 2)
    if was_full and took < SHORT:
        return min(most, batch * 2)
    return min(most, batch)
