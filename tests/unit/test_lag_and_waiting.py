"""Why a run started when it did, and what it waits for when it hasn't."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from runs.domain.lag import STAGES, Milestones, decompose_lag
from runs.domain.state import FINAL, RunStatus
from runs.domain.waiting import WaitingFor, WaitingRun, WaitReason, waiting_for

DUE = datetime(2026, 12, 1, 9, tzinfo=UTC)
NOWHERE = Milestones(None, None, None, None, None)


def at(seconds: float) -> datetime:
    return DUE + timedelta(seconds=seconds)


def test_what_was_done_ahead_of_time_counts_nothing() -> None:
    lag = decompose_lag(DUE, Milestones(at(-60), at(-5), at(-4.9), at(0.004), at(0.154)))
    assert lag is not None
    assert lag.total_s == pytest.approx(0.154)
    assert lag.stages_s == pytest.approx(
        {"placed": 0, "leased": 0, "prepared": 0, "go": 0.004, "started": 0.15}
    )


def test_the_stages_of_a_late_run_add_up_to_its_lag() -> None:
    lag = decompose_lag(DUE, Milestones(at(3), at(3.5), at(4), at(4.25), at(5)))
    assert lag is not None
    assert lag.stages_s == pytest.approx(
        {"placed": 3, "leased": 0.5, "prepared": 0.5, "go": 0.25, "started": 0.75}
    )
    assert sum(lag.stages_s.values()) == pytest.approx(lag.total_s) == 5


def test_a_stage_that_was_not_recorded_goes_into_the_next() -> None:
    lag = decompose_lag(DUE, Milestones(at(1), None, None, at(3), at(4)))
    assert lag is not None
    assert lag.stages_s == pytest.approx(
        {"placed": 1, "leased": 0, "prepared": 0, "go": 2, "started": 1}
    )


def test_only_the_engine_s_stage_may_be_negative_when_its_clock_is_behind() -> None:
    lag = decompose_lag(DUE, Milestones(at(-60), at(-5), at(-5), at(0.5), at(0.4)))
    assert lag is not None
    assert [lag.stages_s[stage] for stage in STAGES] == pytest.approx([0, 0, 0, 0.5, -0.1])
    assert sum(lag.stages_s.values()) == pytest.approx(lag.total_s)


def test_there_is_no_lag_before_the_start() -> None:
    assert decompose_lag(DUE, NOWHERE) is None


def run(status: RunStatus = RunStatus.QUEUED, *, ready_in_s: float = 0, **facts: object) -> object:
    values = {"was_tried": False, "is_placed": False} | facts
    waiting = WaitingRun(status=status, ready_at=at(ready_in_s), **values)  # type: ignore[arg-type]
    return waiting_for(waiting, DUE)


def test_a_run_ahead_of_its_time_waits_for_it() -> None:
    expected = WaitingFor(WaitReason.TIME, until=at(30))
    assert run(ready_in_s=30) == run(ready_in_s=30, is_placed=True) == expected
    assert run(RunStatus.LEASED, ready_in_s=30, is_placed=True) == expected


def test_a_failed_run_waits_for_the_end_of_its_pause() -> None:
    assert run(ready_in_s=30, was_tried=True) == WaitingFor(WaitReason.RETRY_BACKOFF, until=at(30))


def test_a_blocked_run_waits_for_the_run_that_holds_the_guard() -> None:
    holder = uuid4()
    assert run(RunStatus.BLOCKED, blocker=holder) == WaitingFor(
        WaitReason.EARLIER_RUN, run_id=holder
    )


def test_a_due_run_waits_for_its_worker_its_tenant_or_a_slot() -> None:
    assert run(is_placed=True, tenant_is_full=True) == WaitingFor(WaitReason.WORKER)
    assert run(RunStatus.LEASED, is_placed=True) == WaitingFor(WaitReason.WORKER)
    assert run(tenant_is_full=True) == WaitingFor(WaitReason.TENANT_CONCURRENCY)
    assert run() == WaitingFor(WaitReason.SLOT)


@pytest.mark.parametrize("status", sorted(FINAL | {RunStatus.RUNNING}))
def test_what_runs_or_has_ended_waits_for_nothing(status: RunStatus) -> None:
    assert run(status, ready_in_s=30) is None
