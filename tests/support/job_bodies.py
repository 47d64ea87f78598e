"""Bodies that tests of the API send: a good job, and the same with changes."""

from typing import Any

KOLKATA = {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"}
TASK = {"image": "registry.example/acme/report:3", "args": ["--daily"], "timeout_s": 900}


def good_body(**changes: Any) -> dict[str, Any]:
    """A job that is accepted, with `changes` to its members."""
    return {"name": "report", "schedule": KOLKATA, "task": TASK} | changes


def with_task(**changes: Any) -> dict[str, Any]:
    """A job whose task has `changes`."""
    return good_body(task=TASK | changes)
