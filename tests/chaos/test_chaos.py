"""A short campaign keeps every promise; without the fence's guard the record shows it at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from runs.domain.violation import Kind as Broken
from tests.acceptance.test_run_path import SHORT_LEASE, ended, has, one_off, the_run
from tests.chaos.campaign import Options, Result, run_campaign, table
from tests.chaos.plan import FaultClass
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template

# A result of another attempt's container: it began before its own go, or has no sensible row.
ZOMBIE_S_MARKS = (Broken.TOO_EARLY.value, Broken.BROKEN_ROW.value)
# One seed, so that a red build is red again; `make chaos` draws another each time.
SEED = 20_261


# Fewer than `make chaos` has, so that a slow machine is not still at work minutes later.
JOBS = 70

Campaign = Callable[[Options], Result]


@pytest.fixture
def campaign(services_directory: Path, stack_template: Template) -> Campaign:
    """Runs one campaign, with its files where the test run keeps its own."""
    directory = services_directory / f"chaos-{uuid.uuid4().hex[:8]}"
    return lambda options: run_campaign(options, directory, stack_template)


@pytest.mark.timeout(900)
def test_a_minute_of_chaos_breaks_no_promise(campaign: Campaign) -> None:
    result = campaign(Options(seed=SEED, seconds=60, jobs=JOBS))

    report = table(result)
    assert not result.violations, report
    assert sum(result.faults.values()) >= 15, report
    assert len(result.faults) >= 8, report
    assert sum(result.runs.values()) >= JOBS, report
    assert result.runs["succeeded"] >= JOBS / 2, report
    assert result.containers >= result.attempts["succeeded"], report


@pytest.mark.timeout(900)
def test_chaos_without_the_guard_finds_violations_in_the_record(campaign: Campaign) -> None:
    options = Options(seed=SEED, seconds=45, fault_class=FaultClass.NAPS, guard=False, jobs=50)

    result = campaign(options)

    report = table(result)
    found = [each for each in result.violations if each.startswith(ZOMBIE_S_MARKS)]
    assert found, report


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
    assert any(kind in found.stdout for kind in ZOMBIE_S_MARKS), found.stdout
