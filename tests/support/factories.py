"""Rows that tests start from; each builds on the one before, and asserts its step.

tenant → job (with cursor) → queued run → placed run → leased run → running run.
"""

import os
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection

from jobs.models import Job, ScheduleCursor
from runs import leases, store
from runs.domain.run_id import make_run_id, to_milliseconds
from runs.leases import GoAnswer, GoRequest, Leased, RunRef, SessionOffer
from runs.models import NIL, Run
from tenants.models import Tenant

TASK = {"image": "scheduler-demo:latest", "args": ["true"], "env": {}, "timeout_s": 60}


def database_now() -> datetime:
    """The database's clock, which decides."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def make_tenant(**fields: Any) -> Tenant:
    """A tenant with a name of its own."""
    return Tenant.objects.create(**{"name": f"tenant-{uuid4()}"} | fields)


def make_job(tenant: Tenant | None = None, **fields: Any) -> Job:
    """A job without an occurrence to plan; see `make_due_job`."""
    values: dict[str, Any] = {
        "schedule": {"cron": "* * * * *", "time_zone": "UTC"},
        "task": TASK,
        "overlap": "allow",
    }
    return Job.objects.create(tenant=tenant or make_tenant(), **values | fields)


def make_due_job(tenant: Tenant | None = None, *, due_in_s: float = 0, **fields: Any) -> Job:
    """A job whose cursor stands `due_in_s` seconds from now, on its schedule or not."""
    job = make_job(tenant, **fields)
    next_run_at = to_milliseconds(database_now() + timedelta(seconds=due_in_s))
    ScheduleCursor.objects.create(job=job, shard=0, next_run_at=next_run_at)
    return job


def make_run(job: Job | None = None, *, due_in_s: float = -1, **fields: Any) -> Run:
    """A queued run that is due `due_in_s` seconds from now."""
    job = job or make_job()
    scheduled_for = fields.pop("scheduled_for", None) or to_milliseconds(
        database_now() + timedelta(seconds=due_in_s)
    )
    values: dict[str, Any] = {
        "run_id": make_run_id(scheduled_for, os.urandom(10)),
        "scheduled_for": scheduled_for,
        "job_version": job.version,
        "tenant_id": job.tenant_id,
        "region": job.region,
        "tier": job.tier,
        "trigger": "schedule",
        "due_at": scheduled_for,
        "ready_at": scheduled_for,
    }
    values |= fields
    values.setdefault("attempt", 1 + values.get("failures", 0) + values.get("lease_losses", 0))
    if values["trigger"] in ("manual", "replay"):
        values.setdefault("manual_key", values["run_id"])
    return Run.objects.create(job=job, **{"manual_key": NIL} | values)


def make_session(**fields: Any) -> UUID:
    """A live worker session; returns its id."""
    session_id = uuid4()
    values: dict[str, Any] = {
        "node": "node-1",
        "celery_name": "worker@node-1",
        "pid": 1,
        "queue": f"runs.{session_id}",
        "region": "default",
        "tiers": ["container"],
        "slots": 10,
        "prepared_limit": 10,
    }
    leases.open_session(SessionOffer(session_id=session_id, **values | fields), accepting=True)
    return session_id


def place(run: Run, session_id: UUID) -> Run:
    """The run, placed on the session."""
    placed = store.fetch(
        "place_runs",
        run_ids=[run.run_id],
        scheduled_fors=[run.scheduled_for],
        sessions=[session_id],
    )
    assert [row.run_id for row in placed] == [run.run_id]
    return reread(run)


def lease(run: Run, session_id: UUID) -> Leased:
    """The lease of a run that is placed on the session first."""
    place(run, session_id)
    answer = leases.lease(session_id, [RunRef(run.run_id, run.scheduled_for)])[run.run_id]
    assert isinstance(answer, Leased), answer
    return answer


def go_request(leased: Leased) -> GoRequest:
    """The request that the worker of a lease sends when its container is prepared."""
    return GoRequest(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        prepared_ago_s=0.0,
        task_version=leased.task_version,
    )


def start(run: Run, session_id: UUID) -> Leased:
    """The lease of a run that has its go."""
    leased = lease(run, session_id)
    reply = leases.go(session_id, "node-1", [go_request(leased)])[run.run_id]
    assert reply.answer is GoAnswer.GO, reply
    return leased


def end_lease_of(session_id: UUID, *, ago_s: float = 60) -> None:
    """Let the session's lease have ended some time ago, as if its worker had died."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE worker_sessions SET lease_expires_at = now() - make_interval(secs => %s),"
            " last_seen_at = now() - make_interval(secs => %s) WHERE session_id = %s",
            [ago_s, ago_s + 30, session_id],
        )


def reread(run: Run) -> Run:
    """The run as it is stored now."""
    return Run.objects.get(run_id=run.run_id, scheduled_for=run.scheduled_for)
