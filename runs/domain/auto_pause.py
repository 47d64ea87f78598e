"""Has a job failed so often in a row that it should rest? Its rule: one success starts anew."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

MOST_FAILURES: Final = 1_000


def failures_in_a_row(statuses: Sequence[str]) -> int:
    """How many of the newest runs failed before one succeeded; `statuses` newest first.

    Only `succeeded` and `failed` say something about the job: what was skipped or cancelled is
    passed over.
    """
    telling = [status for status in statuses if status in ("succeeded", "failed")]
    return sum(1 for _ in takewhile(lambda status: status == "failed", telling))


def should_pause(statuses: Sequence[str], auto_pause_after: int | None) -> bool:
    """Whether a job that asks to be paused after so many failures in a row has had them."""
    return auto_pause_after is not None and failures_in_a_row(statuses) >= auto_pause_after
