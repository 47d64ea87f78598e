"""Runs by hand and cancels runs: the one path for API, admin and commands."""

from __future__ import annotations

import os
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import connection, transaction

from jobs.services import job_hold
from runs import store
from runs.domain.run_id import make_run_id, scheduled_for_of, to_milliseconds
from runs.domain.state import FINAL, RunStatus, Trigger
from runs.errors import RunIsFinalError, RunNotFoundError
from runs.models import Run
from runs.run_metrics import count_final
from runs.wakeups import wake_dispatcher
from scheduler_project.lib.metrics import count
from scheduler_project.lib.transactions import one_transaction
from tenants.models import Tenant

# Taken back before its container started: cancelled at once, because nothing has to be stopped.
_NOT_STARTED = (RunStatus.QUEUED, RunStatus.BLOCKED, RunStatus.LEASED)


def run_now(tenant: Tenant, job_id: UUID) -> Run:
    """Make a run of the job, due at once; return it, queued. Also of a job that is switched off.

    It obeys the job's overlap at its go, like every run, and never takes the place of an
    occurrence: its `manual_key` is its own. Raises jobs.errors.JobNotFoundError.
    """
    with one_transaction():
        job = job_hold(tenant, job_id)
        # An id carries milliseconds. Cut, not rounded: a run must not be due in the future.
        now = to_milliseconds(_database_clock())
        run_id = make_run_id(now, os.urandom(10))
        run = Run(
            run_id=run_id,
            scheduled_for=now,
            job=job,
            manual_key=run_id,
            job_version=job.version,
            tenant=tenant,
            region=job.region,
            tier=job.tier,
            trigger=Trigger.MANUAL,
            due_at=now,
            ready_at=now,
        )
        run.save(force_insert=True)
        transaction.on_commit(partial(count, "runs_planned_total"))
        # A hint: losing it costs the dispatcher's interval, nothing else.
        transaction.on_commit(wake_dispatcher)
    return run


def run_cancel(tenant: Tenant, run_id: UUID) -> Run:
    """Cancel a run and return it: at once before its start, else by asking its worker.

    A running one is `cancelled` once its container is confirmed dead or its lease has ended; until
    then `cancel_requested_at` says that it was asked. Asking twice is harmless. Raises
    RunNotFoundError, and RunIsFinalError when it has ended already.
    """
    key = {"run_id": run_id, "scheduled_for": scheduled_for_of(run_id)}
    with one_transaction():
        job_id = Run.objects.filter(**key, tenant=tenant).values_list("job_id", flat=True).first()
        if job_id is None:
            raise RunNotFoundError
        store.lock_guards([job_id])
        run = Run.objects.select_for_update().filter(**key, tenant=tenant).first()
        if run is None:  # withdrawn while we waited for the guard
            raise RunNotFoundError
        if run.status in FINAL:
            raise RunIsFinalError(run.status)
        now = _database_clock()
        if run.status in _NOT_STARTED:
            _cancel_waiting(run, now)
        elif run.cancel_requested_at is None:
            _request_cancel(run, now)
        transaction.on_commit(wake_dispatcher)
    return run


def _cancel_waiting(run: Run, now: datetime) -> None:
    rows = Run.objects.filter(
        run_id=run.run_id, scheduled_for=run.scheduled_for, status__in=_NOT_STARTED
    )
    changes = {
        "status": RunStatus.CANCELLED,
        "outcome": "cancelled",
        "cancel_requested_at": now,
        "finished_at": now,
        "lease_owner": None,
    }
    if not rows.update(**changes):  # impossible under the row's lock; else we'd free a used guard
        raise RuntimeError(f"run {run.run_id} changed under its lock")
    # A run in a backoff holds its job's guard, and others may be blocked behind it.
    store.release_guards([(run.job_id, run.run_id)])
    transaction.on_commit(partial(count_final, RunStatus.CANCELLED))
    for name, value in changes.items():
        setattr(run, name, value)


def _request_cancel(run: Run, now: datetime) -> None:
    rows = Run.objects.filter(
        run_id=run.run_id, scheduled_for=run.scheduled_for, status=RunStatus.RUNNING
    )
    if not rows.update(cancel_requested_at=now):  # impossible under the row's lock
        raise RuntimeError(f"run {run.run_id} changed under its lock")
    run.cancel_requested_at = now


def _database_clock() -> datetime:
    """The database's clock at this moment: later than any lock waited for before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now
