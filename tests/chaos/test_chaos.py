"""A short campaign keeps every promise; without the fence's guard the record shows it at once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from runs.domain.violation import Kind as Broken
from tests.acceptance.test_run_path import SHORT_LEASE, ended, has, one_off, the_run
from tests.chaos.campaign import Options, run_campaign, table
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template

# One seed, so that a red build is red again; `make chaos` draws another each time.
SEED = 20_261


@pytest.mark.timeout(900)
def test_a_minute_of_chaos_breaks_no_promise(
    services_directory: Path,
    stack_template: Template,
) -> None:
    directory = services_directory / f"chaos-{uuid.uuid4().hex[:8]}"

    result = run_campaign(Options(seed=SEED, seconds=60), directory, stack_template)

    report = table(result)
    assert not result.violations, report
    assert sum(result.faults.values()) >= 15, report
    assert len(result.faults) >= 8, report
    assert sum(result.runs.values()) >= 150, report
    assert result.runs["succeeded"] >= 75, report
    assert result.containers >= result.attempts["succeeded"], report


def a_zombie_reports(stack: StackUnderTest) -> None:
    """A worker sleeps past its lease and reports its first attempt while the second runs."""
    job = one_off(stack, "sh", "-c", '[ "$ATTEMPT" -ge 2 ] && sleep 8; sleep 2', in_s=1)
    poll(has(stack, job, "running"), 20, "the run is under way")
    poll(lambda: stack.containers(running_only=True), 10, "its container runs")
    ((pid,),) = stack.rows(
        "SELECT s.pid FROM runs r JOIN worker_sessions s ON s.session_id = r.lease_owner"
        " WHERE r.job_id = %s",
        job["job_id"],
    )
    (worker,) = [worker for worker in stack.workers if worker.pid == pid]

    worker.freeze()
    poll(
        lambda: the_run(stack, job)["attempt"] == 2 and the_run(stack, job)["started_at"],
        40,
        "another worker runs the second attempt",
    )
    worker.thaw()

    poll(lambda: not worker.is_alive, 30, "the old life ends, since its lease is lost")
    ended(stack, job, within_s=60)


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE)
def test_a_zombie_s_report_is_refused_and_the_record_is_clean(
    stack: StackUnderTest,
) -> None:
    a_zombie_reports(stack)

    assert "No violation" in stack.manage("verify_history")


@pytest.mark.stack(
    schedulers=1, workers=2, env={**SHORT_LEASE, "UNSAFE_NO_FENCE_GUARD": "1", "DEBUG": "1"}
)
def test_without_the_guard_a_zombie_s_report_is_found_in_the_record(
    stack: StackUnderTest,
) -> None:
    a_zombie_reports(stack)

    found = stack.command("verify_history")
    assert found.returncode == 1, found.stdout + found.stderr
    assert any(kind in found.stdout for kind in (Broken.TOO_EARLY, Broken.BROKEN_ROW)), found.stdout
