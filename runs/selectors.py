"""Reads runs for API and admin: lists by keyset, one run with its attempts, what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet

from runs import store
from runs.domain.lag import Lag, Milestones, decompose_lag
from runs.domain.run_id import scheduled_for_of
from runs.domain.state import RunStatus
from runs.domain.waiting import WaitingFor, WaitingRun, waiting_for
from runs.models import HAD_TROUBLE, JobGuard, Run, RunAttempt, RunOutput
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list of runs is narrowed to; None narrows nothing. `until` is exclusive."""

    job_id: UUID | None = None
    status: str | None = None
    trigger: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """What a list of dead letters is narrowed to; None narrows nothing. `until` is exclusive."""

    job_id: UUID | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    is_replayed: bool | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """The tail of what an attempt printed; bytes that are no UTF-8 are shown as U+FFFD."""

    text: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with everything around it. `outputs` is by attempt."""

    run: Run
    attempts: Sequence[RunAttempt]
    outputs: dict[int, Output]
    lag: Lag | None
    waiting_for: WaitingFor | None
    node: str | None
    lease_expires_at: datetime | None


def runs_of(tenant: Tenant, narrowed: RunFilter) -> QuerySet[Run]:
    """The tenant's runs that match all of the filter; its `job_id` must be a job of the tenant."""
    conditions = {
        # By the job alone: with the tenant beside it the database may walk all of the tenant's runs
        # to find the few of one job.
        "job_id": narrowed.job_id,
        "tenant": tenant if narrowed.job_id is None else None,
        "status": narrowed.status,
        "trigger": narrowed.trigger,
        "scheduled_for__gte": narrowed.since,
        "scheduled_for__lt": narrowed.until,
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    return Run.objects.filter(**given)


def dead_letters_of(tenant: Tenant, narrowed: DeadLetterFilter) -> QuerySet[Run]:
    """The tenant's runs that failed for good and match all of the filter.

    Index: runs_in_trouble, whose condition is repeated here.
    """
    conditions = {
        "job_id": narrowed.job_id,
        "outcome": narrowed.outcome,
        "scheduled_for__gte": narrowed.since,
        "scheduled_for__lt": narrowed.until,
        "replayed_by__isnull": None if narrowed.is_replayed is None else not narrowed.is_replayed,
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    return Run.objects.filter(HAD_TROUBLE, tenant=tenant, status=RunStatus.FAILED, **given)


def last_messages(runs: Sequence[Run]) -> dict[UUID, str]:
    """What became of the last attempt of each run, in a sentence."""
    rows = RunAttempt.objects.filter(
        run_id__in=[run.run_id for run in runs],
        scheduled_for__in=[run.scheduled_for for run in runs],
    ).order_by("attempt")
    return dict(rows.values_list("run_id", "message"))  # the last of each wins


def run_find(tenant: Tenant, run_id: UUID) -> Run | None:
    """The tenant's run of this id, or None; looks into one partition only."""
    return Run.objects.filter(
        run_id=run_id, scheduled_for=scheduled_for_of(run_id), tenant=tenant
    ).first()


def run_detail(tenant: Tenant, run_id: UUID) -> RunDetail | None:
    """The tenant's run of this id with everything around it, or None."""
    run = run_find(tenant, run_id)
    if run is None:
        return None
    key = {"run_id": run.run_id, "scheduled_for": run.scheduled_for}
    attempts = list(RunAttempt.objects.filter(**key).order_by("attempt"))
    outputs = {output.attempt: _output(output) for output in RunOutput.objects.filter(**key)}
    node, lease_expires_at = _lease(run)
    return RunDetail(
        run=run,
        attempts=attempts,
        outputs=outputs,
        lag=_lag(run, attempts),
        waiting_for=_waiting_for(tenant, run),
        node=node,
        lease_expires_at=lease_expires_at,
    )


def _output(output: RunOutput) -> Output:
    # NUL and other control characters are valid JSON once escaped; only bad UTF-8 is replaced.
    return Output(bytes(output.tail).decode("utf-8", "replace"), output.truncated)


def _lease(run: Run) -> tuple[str | None, datetime | None]:
    """Node and end of the lease of a held run; a run's lease is that of its worker's session."""
    if run.lease_owner is None or run.status not in (RunStatus.LEASED, RunStatus.RUNNING):
        return None, None
    rows = store.fetch("session_of_run", session_id=run.lease_owner)
    return (rows[0].node, rows[0].lease_expires_at) if rows else (None, None)


def _lag(run: Run, attempts: Sequence[RunAttempt]) -> Lag | None:
    """The lag of the first attempt that started; later ones are retries, not lateness."""
    first = next((attempt for attempt in attempts if attempt.started_at is not None), None)
    if first is None:
        return None
    passed = Milestones(
        first.placed_at, first.leased_at, first.prepared_at, first.go_at, first.started_at
    )
    return decompose_lag(run.due_at, passed)


def _waiting_for(tenant: Tenant, run: Run) -> WaitingFor | None:
    status = RunStatus(run.status)
    if run.finished_at is not None or status is RunStatus.RUNNING:
        return None
    now = _database_now()
    blocker = None
    if status is RunStatus.BLOCKED:
        guard = JobGuard.objects.filter(job_id=run.job_id).first()
        blocker = guard.holder_run_id if guard else None
    waits_for_slot = status is RunStatus.QUEUED and run.ready_at <= now and not run.lease_owner
    return waiting_for(
        WaitingRun(
            status=status,
            ready_at=run.ready_at,
            was_tried=run.failures > 0 or run.attempt > run.lease_losses + 1,
            is_placed=run.lease_owner is not None,
            blocker=blocker,
            tenant_is_full=waits_for_slot and tenant_is_full(tenant),
        ),
        now,
    )


def tenant_is_full(tenant: Tenant) -> bool:
    """Whether the tenant has as many active runs as it may."""
    limit = tenant.max_concurrent_runs
    rows = store.fetch("count_active_of_tenant", tenant_id=tenant.pk, limit=limit)
    return bool(rows[0].active >= limit)


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now
