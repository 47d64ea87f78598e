"""A program that wants to stay: children that ignore TERM, have left its session and their parents.

Time limit and cancel end all of it, and the record says so in time.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.acceptance.test_run_path import ended, one_off, the_run
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest

LIMIT_S = 3
# The promise: recorded this long after the limit at the latest.
RECORDED_WITHIN_S = 2.0
# TERM, the grace of a cancel, KILL; and the look that brings the cancel to the worker.
CANCELLED_WITHIN_S = 8.0


def stubborn(marker: str) -> tuple[str, ...]:
    """Ignores TERM, as does a child of a session of its own, and a grandchild whose parent is gone;
    each a `sleep` of `marker` seconds."""
    child = f"trap '' TERM; (setsid sh -c \"trap '' TERM; sleep {marker}; :\" &); sleep {marker}; :"
    return ("sh", "-c", f'trap "" TERM; setsid sh -c "$CHILD" & sleep {marker}; :', child)


def processes(marker: str) -> int:
    """How many processes of this machine have the marker as an argument of their own."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes().split(b"\0")[:2] == [b"sleep", marker.encode()]
        except OSError:
            continue  # it has ended since
    return count


def start_stubborn(stack: StackUnderTest, **task: Any) -> tuple[dict[str, Any], Callable[[], int]]:
    """A job whose whole tree of processes runs, and how many of them are left."""
    marker = f"6{uuid4().int % 10**8}"
    *args, child = stubborn(marker)
    job = one_off(stack, *args, in_s=1, env={"CHILD": child}, **task)
    poll(lambda: processes(marker) == 3, 20, "program, child and orphan run")
    return job, lambda: processes(marker)


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_time_limit_ends_the_whole_tree_and_is_recorded_within_two_seconds(
    stack: StackUnderTest,
) -> None:
    job, left = start_stubborn(stack, timeout_s=LIMIT_S)

    run = ended(stack, job)

    assert left() == 0
    assert (run["status"], run["outcome"]) == ("failed", "timed_out")
    (attempt,) = run["attempts"]
    ((recorded_at,),) = stack.rows("SELECT finished_at FROM runs WHERE job_id = %s", job["job_id"])
    began, end = (datetime.fromisoformat(attempt[at]) for at in ("started_at", "finished_at"))
    limit = timedelta(seconds=LIMIT_S)
    assert end - began > limit, "TERM alone did not end it: it was given its time"
    assert recorded_at - began < limit + timedelta(seconds=RECORDED_WITHIN_S)
    poll(lambda: not stack.containers(), 10, "its container is removed")


@pytest.mark.stack(schedulers=1, workers=1)
def test_a_cancel_ends_the_whole_tree_before_it_is_recorded(stack: StackUnderTest) -> None:
    job, left = start_stubborn(stack, timeout_s=60)
    run_id = the_run(stack, job)["run_id"]

    assert stack.client.post(f"/v1/runs/{run_id}/cancel").status_code == 202

    poll(lambda: the_run(stack, job)["status"] == "cancelled", CANCELLED_WITHIN_S, "it is recorded")
    assert left() == 0, "recorded when the container is dead, not before"
    poll(lambda: not stack.containers(), 10, "its container is removed")
