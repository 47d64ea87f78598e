"""A history that real services, planner, leases and reaper have made: every way a run can go.

Time is not waited for: a job is saved, and then its first version and its cursor are set back, as
if it had been saved a while ago and nobody had planned it since.
"""

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.test import override_settings

from jobs.domain.schedule import next_occurrence, schedule_from_json
from jobs.domain.spec import JobChanges
from jobs.domain.timing import Pause
from jobs.models import Job, JobVersion, ScheduleCursor
from jobs.services import job_create
from runs import leases
from runs.domain.outcome import OutcomeCode, outcome
from runs.leases import CompleteAnswer, Completion, GoAnswer, Leased
from runs.models import Run
from runs.planner import plan_once
from runs.reaper import reap_once
from runs.services import run_cancel, run_now
from tenants.models import Tenant
from tests.support.factories import (
    database_now,
    end_lease_of,
    go_request,
    lease,
    make_session,
    make_tenant,
    reread,
)

EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}
_A_DAY = timedelta(days=1)
TASK = {"image": "a/b:1", "timeout_s": 60}


def saved_job(tenant: Tenant, *, minutes_ago: int = 0, **said: Any) -> Job:
    """A job that was saved so long ago and has not been planned since."""
    given: dict[str, Any] = {"schedule": EVERY_MINUTE, "task": TASK} | said
    job = job_create(tenant, JobChanges(**given), changed_by="test")
    set_back(job, timedelta(minutes=minutes_ago))
    return job


def set_back(job: Job, by: timedelta) -> None:
    """Let the job's last version have been made so much earlier, and the cursor stand there."""
    version = JobVersion.objects.get(job=job, version=job.version)
    version.effective_from -= by
    version.save()
    following = next_occurrence(schedule_from_json(job.schedule), version.effective_from)
    ScheduleCursor.objects.filter(job=job).update(next_run_at=following)


def resting_job(tenant: Tenant, *, minutes_ago: int, ended_minutes_ago: int | None = None) -> Job:
    """A job that was saved so long ago, paused until now or until it was over by itself."""
    pause = Pause() if ended_minutes_ago is None else Pause(until=database_now() + _A_DAY)
    job = saved_job(tenant, pause=pause)
    now = database_now()
    since = now - timedelta(minutes=minutes_ago)
    said = {"since": since.isoformat()}
    until = None
    if ended_minutes_ago is not None:
        until = now - timedelta(minutes=ended_minutes_ago)
        said["until"] = until.isoformat()
    execute(
        "UPDATE jobs SET pause = pause || %s::jsonb WHERE job_id = %s", json.dumps(said), job.pk
    )
    execute(
        "UPDATE job_versions SET effective_from = %s, policies = jsonb_set(policies, '{pause}',"
        " policies -> 'pause' || %s::jsonb) WHERE job_id = %s",
        since,
        json.dumps(said),
        job.pk,
    )
    following = until and next_occurrence(
        schedule_from_json(job.schedule), until - timedelta(microseconds=1)
    )
    execute(
        "UPDATE schedule_cursors SET next_run_at = %s, paused_until = %s WHERE job_id = %s",
        following,
        until,
        job.pk,
    )
    return job


def go(run: Run, session: UUID) -> tuple[Leased, GoAnswer]:
    """Lease the run and ask for its go."""
    leased = lease(run, session)
    return leased, leases.go(session, "node-1", [go_request(leased)])[run.run_id].answer


def end(
    leased: Leased,
    session: UUID,
    code: OutcomeCode,
    *,
    exit_code: int | None = None,
    ran: bool = True,
) -> CompleteAnswer:
    """Complete an attempt whose container ran a moment by the engine's clock, or never did."""
    now = database_now()
    completion = Completion(
        run_id=leased.run_id,
        scheduled_for=leased.scheduled_for,
        job_id=leased.job_id,
        fence=leased.fence,
        outcome=outcome(code, "as the test says"),
        exit_code=exit_code,
        started_at=now if ran else None,
        finished_at=now + timedelta(milliseconds=1) if ran else None,
    )
    return leases.complete(session, "node-1", [completion])[leased.run_id]


def ready(run: Run) -> Run:
    """The run, its backoff over; its go is asked for later than `ready_at`, as always."""
    Run.objects.filter(run_id=run.run_id, scheduled_for=run.scheduled_for).update(
        ready_at=database_now()
    )
    return reread(run)


@dataclass
class LivedHistory:
    """The runs by what became of them, and the jobs they belong to."""

    tenant: Tenant = field(default_factory=make_tenant)
    session: UUID = field(default_factory=make_session)
    runs: dict[str, Run] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)

    def live(self) -> "LivedHistory":
        """Plan, run, fail, lose, cancel, skip and block."""
        # However slow the machine is: this session does not fall silent and loses no lease.
        execute(
            "UPDATE worker_sessions SET lease_expires_at = now() + interval '1 hour',"
            " last_seen_at = now() + interval '1 hour' WHERE session_id = %s",
            self.session,
        )
        self._minutely_job_after_an_outage()
        self._each_end()
        self._overlaps()
        self.runs = {name: reread(run) for name, run in self.runs.items()}
        return self

    def _minutely_job_after_an_outage(self) -> None:
        """Rows for the latest occurrences, one catch-up, the rest counted in a span."""
        job = saved_job(self.tenant, minutes_ago=30, overlap="allow")
        self.jobs["minutely"] = job
        plan_once()
        for run in Run.objects.filter(job=job, due_at__lte=database_now()).order_by("due_at"):
            leased, answer = go(run, self.session)
            assert answer is GoAnswer.GO
            assert end(leased, self.session, OutcomeCode.SUCCEEDED, exit_code=0) == "ok"
            self.runs[f"minutely_{run.trigger}"] = run
        self.runs["planned"] = Run.objects.filter(job=job, status="queued").earliest("due_at")

    def _each_end(self) -> None:
        retry = {"max_attempts": 2, "base_s": 1}
        yearly = {"cron": "0 0 29 2 *", "time_zone": "UTC"}
        job = saved_job(self.tenant, overlap="allow", retry=retry, schedule=yearly)
        self.jobs["by_hand"] = job

        run = self.runs["succeeded"] = run_now(self.tenant, job.job_id)
        leased, _ = go(run, self.session)
        end(leased, self.session, OutcomeCode.NON_ZERO_EXIT, exit_code=7)
        leased, _ = go(ready(run), self.session)
        end(leased, self.session, OutcomeCode.SUCCEEDED, exit_code=0)

        run = self.runs["failed"] = run_now(self.tenant, job.job_id)
        for _ in range(2):
            leased, _ = go(ready(run), self.session)
            end(leased, self.session, OutcomeCode.NON_ZERO_EXIT, exit_code=7)

        run = self.runs["image_gone"] = run_now(self.tenant, job.job_id)
        end(lease(run, self.session), self.session, OutcomeCode.IMAGE_NOT_FOUND, ran=False)

        run = self.runs["cancelled_waiting"] = run_now(self.tenant, job.job_id)
        run_cancel(self.tenant, run.run_id)

        run = self.runs["cancelled_running"] = run_now(self.tenant, job.job_id)
        leased, _ = go(run, self.session)
        run_cancel(self.tenant, run.run_id)
        end(leased, self.session, OutcomeCode.CANCELLED)

        run = self.runs["lost_then_succeeded"] = run_now(self.tenant, job.job_id)
        dead = make_session()
        leased, answer = go(run, dead)
        assert answer is GoAnswer.GO
        _reap(dead)
        assert end(leased, dead, OutcomeCode.SUCCEEDED, exit_code=0) == "stale_fence"
        leased, _ = go(ready(run), self.session)
        end(leased, self.session, OutcomeCode.SUCCEEDED, exit_code=0)

        run = self.runs["lost_and_cancelled"] = run_now(self.tenant, job.job_id)
        dead = make_session()
        assert go(run, dead)[1] is GoAnswer.GO
        run_cancel(self.tenant, run.run_id)
        _reap(dead)

        run = self.runs["running"] = run_now(self.tenant, job.job_id)
        assert go(run, self.session)[1] is GoAnswer.GO
        self.runs["leased"] = run_now(self.tenant, job.job_id)
        lease(self.runs["leased"], self.session)

    def _overlaps(self) -> None:
        yearly = {"cron": "0 0 29 2 *", "time_zone": "UTC"}
        job = saved_job(self.tenant, overlap="skip", schedule=yearly)
        self.jobs["skip"] = job
        run = self.runs["in_the_way"] = run_now(self.tenant, job.job_id)
        leased, _ = go(run, self.session)
        run = self.runs["skipped"] = run_now(self.tenant, job.job_id)
        assert go(run, self.session)[1] is GoAnswer.SKIP
        end(leased, self.session, OutcomeCode.SUCCEEDED, exit_code=0)
        run = self.runs["holder"] = run_now(self.tenant, job.job_id)
        go(run, self.session)

        job = saved_job(self.tenant, overlap="queue", schedule=yearly)
        self.jobs["queue"] = job
        run = self.runs["first"] = run_now(self.tenant, job.job_id)
        leased, _ = go(run, self.session)
        second = self.runs["second"] = run_now(self.tenant, job.job_id)
        assert go(second, self.session)[1] is GoAnswer.BLOCK
        self.runs["blocked"] = run_now(self.tenant, job.job_id)
        assert go(self.runs["blocked"], self.session)[1] is GoAnswer.BLOCK
        end(leased, self.session, OutcomeCode.SUCCEEDED, exit_code=0)
        assert go(reread(second), self.session)[1] is GoAnswer.GO


def _reap(session: UUID) -> None:
    """Let the reaper take the running run of a session that died."""
    end_lease_of(session)
    # The server of the tests is young: a lease of no time ago it was up already.
    with override_settings(LEASE_S=0):
        assert reap_once()["reaped"] == 1


def execute(statement: str, *parameters: Any) -> int:
    """Write to the database past every service; returns the rows touched."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
