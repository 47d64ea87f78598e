"""Runs the occurrences of a time that has passed, on a customer's word.

What exists stays: asking again makes only what is still missing. The job's cursor is locked, and
everything up to now settled first, so that a backfill and the planner never both decide on one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from jobs.domain.timing import CatchUp, pause_from_json
from jobs.errors import InvalidJobError
from jobs.models import Job, JobVersion
from jobs.rows import version_policies
from jobs.services import job_lock
from runs import planned, planner, store
from runs.domain.backfill import (
    MOST_OCCURRENCES,
    Epoch,
    epochs,
    occurrences_of,
    range_problems,
    release_times,
    too_many,
)
from runs.domain.planning import CATCH_UP_SPACING
from runs.domain.run_id import make_run_ids
from runs.domain.state import RunStatus, Trigger
from runs.models import NIL, Run
from runs.partitions import oldest_instant
from runs.wakeups import wake_dispatcher
from scheduler_project.lib import metrics
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill made: `created` runs, let go from `first_ready_at` to `last_ready_at`.

    `existing` occurrences had a run already and keep it. The instants are None when nothing was
    missing.
    """

    created: int
    existing: int
    first_ready_at: datetime | None = None
    last_ready_at: datetime | None = None


def job_backfill(
    tenant: Tenant, job_id: UUID, since: datetime, before: datetime, *, rate_per_minute: int
) -> Backfill:
    """Make runs for the occurrences in [since, before) that have none; also of a paused job.

    They are let go at the rate given, behind all live work. Raises jobs.errors.JobNotFoundError,
    and InvalidJobError for a range that begins before the job or the oldest day that is kept,
    ends in the future, or holds too much.
    """
    with transaction.atomic():
        job, now = job_lock(tenant, job_id)
        _check_range(job, since, before, now)
        wanted = occurrences_of(_life(job, now), since, before, MOST_OCCURRENCES + 1)
        if len(wanted) > MOST_OCCURRENCES:
            raise InvalidJobError([too_many()])
        if pause_from_json(job.pause) is None:
            planner.settle(job_id, now, CatchUp.NONE)
        missing = _without_run(job_id, wanted)
        if not missing:
            return Backfill(0, len(wanted))
        busy = planned.busy_until([job_id]).get(job_id)
        begin = now if busy is None else max(now, busy + CATCH_UP_SPACING)
        ready = release_times(len(missing), begin=begin, rate_per_minute=rate_per_minute)
        _insert(job, missing, ready)
        transaction.on_commit(partial(metrics.count, "runs_planned_total", len(missing)))
        transaction.on_commit(wake_dispatcher)
    return Backfill(len(missing), len(wanted) - len(missing), ready[0], ready[-1])


def _check_range(job: Job, since: datetime, before: datetime, now: datetime) -> None:
    kept_from = oldest_instant(connection, now.astimezone(UTC).date(), settings.RETENTION_DAYS)
    earliest, why = max(
        (job.created_at, "the job was created at"), (kept_from, "history is kept from")
    )
    problems = list(range_problems(since, before, earliest=earliest, why=why, now=now))
    if problems:
        raise InvalidJobError(problems)


def _life(job: Job, now: datetime) -> list[Epoch]:
    rows = JobVersion.objects.filter(job=job).order_by("version")
    versions = list(rows.values_list("effective_from", "schedule", "policies"))
    # A job that another path made has no versions: it has always been as it is.
    return epochs(versions or [(job.created_at, job.schedule, version_policies(job))], now)


def _without_run(job_id: UUID, wanted: list[datetime]) -> list[datetime]:
    if not wanted:
        return []
    rows = Run.objects.filter(
        job_id=job_id, manual_key=NIL, scheduled_for__gte=wanted[0], scheduled_for__lte=wanted[-1]
    )
    existing = set(rows.values_list("scheduled_for", flat=True))
    return [instant for instant in wanted if instant not in existing]


def _insert(job: Job, instants: list[datetime], ready: list[datetime]) -> None:
    count = len(instants)
    created = store.execute(
        "insert_runs",
        run_ids=make_run_ids(instants, os.urandom(10)),
        scheduled_fors=instants,
        job_ids=[job.job_id] * count,
        job_versions=[job.version] * count,
        tenant_ids=[job.tenant_id] * count,
        regions=[job.region] * count,
        tiers=[job.tier] * count,
        triggers=[Trigger.BACKFILL.value] * count,
        statuses=[RunStatus.QUEUED.value] * count,
        due_ats=instants,
        ready_ats=ready,
        # Somebody asked for each of them now: the deadline of late occurrences is not theirs.
        deadline_ats=[None] * count,
        skip_reasons=[""] * count,
    )
    # The cursor's lock is ours and what exists was left out: fewer rows would be a fault of ours.
    assert created == count, f"{created} of {count} backfilled runs were new"
