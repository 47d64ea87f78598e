"""Runs again what has ended, on a customer's word: one run, or all dead letters of a filter.

A final run stays as it is; its replay is a new run that names it (`replay_of`) and runs with the
job as it is now. Each waits its turn behind the others of its job, as all that somebody asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from jobs.errors import JobNotFoundError
from jobs.models import Job
from jobs.services import jobs_hold
from jobs.versions import database_clock
from runs import store
from runs.domain.backfill import release_times
from runs.domain.run_id import make_run_ids, scheduled_for_of, to_milliseconds
from runs.domain.state import FINAL, Trigger
from runs.errors import RunIsNotFinalError, RunNotFoundError
from runs.models import Run
from runs.selectors import DeadLetterFilter, dead_letters_of
from runs.wakeups import wake_dispatcher
from scheduler_project.lib.metrics import count
from scheduler_project.lib.transactions import one_transaction
from tenants.models import Tenant

# As many as one answer may list and one transaction hold; the rest is asked for again.
MOST_REPLAYS = 500


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter and its replay; `run_id` is None in a dry run, which makes none."""

    dead_letter: UUID
    job_id: UUID
    run_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Replays:
    """What a filter met. `more`: further ones match, and take another request."""

    runs: Sequence[Replayed]
    more: bool


def run_replay(tenant: Tenant, run_id: UUID) -> Run:
    """Make a run again, due at once; return the new one, queued. Any final run may be replayed.

    A second request makes a second one. Raises RunNotFoundError, RunIsNotFinalError, and
    jobs.errors.JobNotFoundError when the job is deleted.
    """
    key = {"run_id": run_id, "scheduled_for": scheduled_for_of(run_id), "tenant": tenant}
    with one_transaction():
        job_id = Run.objects.filter(**key).values_list("job_id", flat=True).first()
        if job_id is None:
            raise RunNotFoundError
        job = jobs_hold(tenant, [job_id]).get(job_id)
        run = Run.objects.select_for_update().filter(**key).first()
        if run is None:  # withdrawn meanwhile
            raise RunNotFoundError
        if run.status not in FINAL:
            raise RunIsNotFinalError(run.status)
        if job is None:
            raise JobNotFoundError
        (replay,) = _replay([run], {job_id: job}, [to_milliseconds(database_clock())])
    return replay


def dead_letters_replay(
    tenant: Tenant, narrowed: DeadLetterFilter, *, rate_per_minute: int, dry_run: bool
) -> Replays:
    """Replay the tenant's dead letters that match, oldest first, `MOST_REPLAYS` at most.

    Only those that have not been replayed, of jobs that are not deleted: so asking again goes on
    where the last request ended, and two at once share the work. They fall due at the rate given.
    `dry_run` makes nothing.
    """
    with one_transaction():
        matching = _matching(tenant, narrowed)[: MOST_REPLAYS + 1]
        found = list(matching)
        more = len(found) > MOST_REPLAYS
        if dry_run:
            return Replays([Replayed(r.run_id, r.job_id) for r in found[:MOST_REPLAYS]], more)
        jobs = jobs_hold(tenant, {run.job_id for run in found[:MOST_REPLAYS]})
        # Read again under their locks: another request may have replayed some meanwhile.
        chosen = _locked([run for run in found[:MOST_REPLAYS] if run.job_id in jobs])
        begin = database_clock()
        due = release_times(len(chosen), begin=begin, rate_per_minute=rate_per_minute)
        made = _replay(chosen, jobs, [to_milliseconds(at) for at in due])
    return Replays(
        [Replayed(o.run_id, o.job_id, n.run_id) for o, n in zip(chosen, made, strict=True)], more
    )


def _matching(tenant: Tenant, narrowed: DeadLetterFilter) -> QuerySet[Run]:
    unreplayed = dead_letters_of(tenant, narrowed).filter(replayed_by=None)
    return unreplayed.filter(job__deleted_at=None).order_by("scheduled_for", "run_id")


def _locked(runs: Sequence[Run]) -> list[Run]:
    """Those that nobody has replayed or holds, under lock (in run order), oldest first."""
    if not runs:
        return []
    rows = Run.objects.filter(
        run_id__in=[run.run_id for run in runs],
        scheduled_for__in=[run.scheduled_for for run in runs],
        replayed_by=None,
    )
    # An id begins with its instant, so that run order is the order of time, too.
    return list(rows.order_by("run_id").select_for_update(skip_locked=True))


def _replay(
    runs: Sequence[Run], jobs: Mapping[UUID, Job], due_ats: Sequence[datetime]
) -> list[Run]:
    """Write a replay of each of the locked runs."""
    if not runs:
        return []
    # Nominally they are of this moment; they fall due from it on.
    run_ids = make_run_ids([due_ats[0]] * len(runs), os.urandom(10))
    replays = [
        Run(
            run_id=run_id,
            scheduled_for=due_ats[0],
            job=jobs[run.job_id],
            manual_key=run_id,
            job_version=jobs[run.job_id].version,
            tenant_id=run.tenant_id,
            region=jobs[run.job_id].region,
            tier=jobs[run.job_id].tier,
            trigger=Trigger.REPLAY,
            # A replay that failed is run again for the same occurrence as it was itself.
            replay_of=run.replay_of or run.run_id,
            due_at=due_at,
            ready_at=due_at,
        )
        for run, run_id, due_at in zip(runs, run_ids, due_ats, strict=True)
    ]
    Run.objects.bulk_create(replays)
    written = store.execute(
        "mark_replayed",
        replayed_bys=[replay.run_id for replay in replays],
        **store.columns(runs, "run_id", "scheduled_for"),
    )
    if written != len(runs):  # impossible under their locks
        raise RuntimeError(f"{written} of {len(runs)} runs were marked as replayed")
    transaction.on_commit(partial(count, "runs_planned_total", len(replays)))
    # A hint: losing it costs the dispatcher's interval, nothing else.
    transaction.on_commit(wake_dispatcher)
    return replays
