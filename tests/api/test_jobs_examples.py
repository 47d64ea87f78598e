"""The examples in the OpenAPI document are like what the API takes and gives."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobs.api import examples as jobs
from jobs.services import job_delete
from runs.api import examples as runs
from runs.api.serializers import RunDetailOutput, RunOutput, shown_run
from runs.models import Run
from tenants.models import Tenant
from tests.support.api_client import ApiClient
from tests.support.factories import (
    database_now,
    make_due_job,
    make_job,
    make_run,
    make_session,
    start,
)


def assert_alike(example: Any, real: Any) -> None:
    """The same members in the same order; where both have a value, of the same type."""
    if isinstance(example, dict) and isinstance(real, dict):
        assert list(example) == list(real)
        for name in example:
            assert_alike(example[name], real[name])
    elif isinstance(example, list) and isinstance(real, list):
        if example and real:
            assert_alike(example[0], real[0])
    elif example is not None and real is not None:
        assert type(example) is type(real), (example, real)


def test_the_examples_of_jobs_are_taken_and_given(alice: ApiClient) -> None:
    created = alice.post("/v1/jobs", jobs.NEW_JOB)
    assert created.status_code == 201, created.content
    given = created.json()
    assert_alike(jobs.JOB, given)
    assert given["task"] == jobs.JOB["task"]
    assert given["retry"] == jobs.JOB["retry"]
    changed = alice.patch(f"/v1/jobs/{given['job_id']}", jobs.CHANGE, If_Match="1").json()
    assert_alike(jobs.CHANGED_JOB, changed)
    for name in ("version", "schedule", "task"):
        assert changed[name] == jobs.CHANGED_JOB[name]
    assert_alike(jobs.JOB_PAGE, alice.get("/v1/jobs").json())


def test_the_examples_of_runs_are_given(alice: ApiClient, acme: Tenant) -> None:
    job = make_due_job(acme, due_in_s=60)
    created = alice.post(f"/v1/jobs/{job.job_id}/runs", {}).json()
    assert_alike(runs.NEW_RUN, created)
    cancelled = alice.post(f"/v1/runs/{created['run_id']}/cancel").json()
    assert_alike(runs.CANCELLED_RUN, cancelled)
    assert_alike(runs.RUN_PAGE, alice.get("/v1/runs").json())
    run = make_run(make_job(acme))
    start(run, make_session())
    assert_alike(runs.RUN_DETAIL, alice.get(f"/v1/runs/{run.run_id}").json())


def test_the_fast_way_to_show_a_run_gives_what_is_described(acme: Tenant) -> None:
    run = make_run(
        make_job(acme), status="skipped", skip_reason="overlap", finished_at=database_now()
    )
    run.refresh_from_db()
    described = {name: value or None for name, value in RunOutput(run).data.items()}
    shown = {name: value or None for name, value in shown_run(run).items()}
    assert shown == described
    assert set(shown) < set(RunDetailOutput().fields)


def test_the_command_runs_a_job_now(acme: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_due_job(acme, due_in_s=60)
    call_command("run_now", str(job.job_id))
    run = Run.objects.get(job=job)
    assert capsys.readouterr().out.strip() == str(run.run_id)
    assert run.trigger == "manual"
    job_delete(acme, job.job_id, changed_by="test")
    with pytest.raises(CommandError, match="no job"):
        call_command("run_now", str(job.job_id))
