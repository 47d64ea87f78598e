"""The environment that a run's container sees.

Owns the rule that our names cannot be taken: a customer who sets `RUN_ID` gets ours, so that a
program can trust the fence it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from jobs.domain.instant import format_instant

RESERVED_NAMES = frozenset({"RUN_ID", "JOB_ID", "ATTEMPT", "SCHEDULED_FOR", "FENCE"})


def container_environment(
    *,
    run_id: UUID,
    job_id: UUID,
    attempt: int,
    scheduled_for: datetime,
    fence: int,
    job_env: Mapping[str, str],
) -> dict[str, str]:
    """The job's variables, then ours over them.

    `scheduled_for` is the nominal instant, written as RFC 3339 in UTC; a naive one raises
    ValueError, because reading it as local time would be off by hours and look right.
    Names and sizes of `job_env` were checked when the job was saved.
    """
    return {
        **job_env,
        "RUN_ID": str(run_id),
        "JOB_ID": str(job_id),
        "ATTEMPT": str(attempt),
        "SCHEDULED_FOR": rfc3339_utc(scheduled_for),
        "FENCE": str(fence),
    }


def rfc3339_utc(instant: datetime) -> str:
    """`2026-03-29T01:30:00Z`, or with milliseconds when there are any, as the API writes it."""
    if instant.tzinfo is None:
        raise ValueError("scheduled_for needs an offset")
    return format_instant(instant)
