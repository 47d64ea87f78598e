"""A silent database: containers are frozen at the worker's deadline, and go on or die in time."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.outcome import OutcomeCode
from tests.support.lease_desk import Row
from tests.support.polling import poll
from tests.support.worker_in_memory import WorkerInMemory, worker_in_memory
from workers import freezer
from workers.deadlines import SessionDeadline, boottime_s, read_deadlines
from workers.freezer import Act, Ice, act_of, freeze_times
from workers.keeper import LeaseTiming
from workers.sandbox.base import ContainerHandle, EngineUnreachable
from workers.sandbox.fake import FakeProgram

# Frozen a second after the last heartbeat; a pause may take 0.8 s, a frozen container has 1.6 s.
TIMING = LeaseTiming(
    lease_s=3.5, heartbeat_s=0.2, worker_margin_s=2.5, warden_margin_s=0.5, prepare_lead_s=0.5
)
FOREVER = ("sleep", "600")
TIMES = freeze_times(20.0, 25.0)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerInMemory]:
    monkeypatch.setattr(freezer, "_THAW_RETRY_S", 0.05)
    with worker_in_memory(tmp_path, monkeypatch, 4) as worker:
        worker.sandbox.engine.programs[FOREVER] = FakeProgram(duration_s=None)
        yield worker.open(TIMING)


def running(worker: WorkerInMemory, **task: Any) -> Row:
    row = worker.desk.place(worker.session_id, **{"args": FOREVER, **task})
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: any(h.run_id == row.leased.run_id for h in worker.containers("running")))
    return row


def silence(worker: WorkerInMemory, calls: int = 100_000) -> None:
    for call in ("heartbeat", "look"):
        worker.desk.fail(call, calls)


def deadline(worker: WorkerInMemory) -> SessionDeadline:
    (found,) = read_deadlines(worker.directory).values()
    assert found is not None
    return found


def outcome_of(worker: WorkerInMemory, row: Row) -> OutcomeCode:
    poll(lambda: worker.desk.completion_of(row), 5, "it is reported")
    completion = worker.desk.completion_of(row)
    assert completion is not None
    return completion.outcome.code


# --- the decision ---------------------------------------------------------------------------------


def test_by_default_containers_are_frozen_at_20_s_and_killed_at_24_s() -> None:
    assert (TIMES.freeze_at, TIMES.confirmed_by, TIMES.kill_at) == (20.0, 22.0, 24.0)


@pytest.mark.parametrize(
    ("ice", "now", "act"),
    [
        (Ice.RUNNING, 19.9, Act.NOTHING),
        (Ice.FREEZING, 19.9, Act.NOTHING),  # proven meanwhile: thawed when the answer is there
        (Ice.FROZEN, 19.9, Act.THAW),
        (Ice.UNSURE, 19.9, Act.THAW),
        (Ice.THAWING, 19.9, Act.NOTHING),
        (Ice.RUNNING, 20.0, Act.FREEZE),
        (Ice.FREEZING, 21.9, Act.NOTHING),
        (Ice.FROZEN, 23.9, Act.NOTHING),
        (Ice.UNSURE, 20.0, Act.KILL),
        (Ice.RUNNING, 22.0, Act.KILL),  # this process slept
        (Ice.FREEZING, 22.0, Act.KILL),
        (Ice.THAWING, 22.0, Act.KILL),
        (Ice.FROZEN, 24.0, Act.KILL),
    ],
)
def test_what_is_done_with_a_container(ice: Ice, now: float, act: Act) -> None:
    assert act_of(ice, now, TIMES) is act


@given(
    st.sampled_from(Ice), st.floats(0, 1e6), st.floats(0.1, 300), st.floats(0, 299), st.floats(0, 9)
)
def test_nothing_but_a_confirmed_frost_outlives_the_time_for_it(
    ice: Ice, worker_deadline: float, room: float, share: float, late: float
) -> None:
    times = freeze_times(worker_deadline, worker_deadline + room)
    assert times.freeze_at <= times.confirmed_by <= times.kill_at < worker_deadline + room
    act = act_of(ice, times.confirmed_by + late, times)
    assert act is Act.KILL or (ice is Ice.FROZEN and times.confirmed_by + late < times.kill_at)


# --- the story ------------------------------------------------------------------------------------


def test_a_frozen_container_goes_on_when_the_lease_proves_still_ours(
    worker: WorkerInMemory,
) -> None:
    rows = [running(worker) for _ in range(4)]
    silence(worker)
    poll(lambda: len(worker.containers("paused")) == 4, 5, "every container is frozen")
    assert boottime_s() >= deadline(worker).worker_deadline
    assert worker.desk.completions == []

    silence(worker, 0)

    poll(lambda: len(worker.containers("running")) == 4, 2, "they go on")
    for handle in worker.containers("running"):
        worker.sandbox.finish(handle)
    assert {outcome_of(worker, row) for row in rows} == {OutcomeCode.SUCCEEDED}
    assert worker.asked("kill") == 0


def test_a_frozen_container_is_killed_before_the_warden_would_when_nobody_answers(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)
    silence(worker)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    at = deadline(worker)
    times = freeze_times(at.worker_deadline, at.warden_deadline)

    poll(lambda: not worker.containers("paused"), 5, "it is over")

    assert times.kill_at <= boottime_s() < at.warden_deadline, "the warden had nothing to do"
    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED
    assert worker.asked("unpause") == 0, "it never ran again"


def test_an_answer_that_is_lost_on_its_way_thaws_nothing(worker: WorkerInMemory) -> None:
    """The database has extended the lease, and the worker may not believe it."""
    row = running(worker)
    worker.desk.lose("heartbeat", 100_000)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    poll(lambda: not worker.containers("paused"), 5, "it is over")
    assert worker.asked("unpause") == 0
    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED


def test_a_lease_that_is_lost_meanwhile_kills_what_is_frozen_at_once(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)
    silence(worker)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    at = deadline(worker)

    worker.desk.session_is_alive = False
    silence(worker, 0)

    poll(lambda: not worker.containers("paused"), 5, "it is dead")
    assert boottime_s() < freeze_times(at.worker_deadline, at.warden_deadline).kill_at
    assert worker.asked("unpause") == 0
    poll(lambda: row.leased.run_id in worker.became, 5)


def test_what_cannot_be_frozen_is_killed_at_once(worker: WorkerInMemory) -> None:
    row = running(worker)
    worker.sandbox.fail_next("pause", EngineUnreachable("busy"))
    silence(worker)
    at = deadline(worker)

    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED
    assert boottime_s() < freeze_times(at.worker_deadline + 0.2, at.warden_deadline).confirmed_by


def test_an_engine_that_hangs_over_a_pause_does_not_hold_up_the_kill(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(worker.sandbox, "pause", lambda _: answers.wait(20))
    row = running(worker)
    silence(worker)
    try:
        assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED
        assert boottime_s() < deadline(worker).warden_deadline
    finally:
        answers.set()


def test_a_pause_that_is_answered_after_the_lease_was_proven_is_undone(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause, asked, answers = worker.sandbox.pause, threading.Event(), threading.Event()

    def slow(handle: ContainerHandle) -> None:
        asked.set()
        answers.wait(20)
        pause(handle)

    monkeypatch.setattr(worker.sandbox, "pause", slow)
    running(worker)
    silence(worker)
    poll(asked.is_set, 5, "the engine was asked")
    before = deadline(worker)
    silence(worker, 0)
    poll(lambda: deadline(worker) != before, 5, "the lease is proven")

    answers.set()

    poll(lambda: worker.asked("unpause"), 5, "it is undone")
    poll(lambda: worker.containers("running"), 5, "it goes on")


def test_a_thaw_that_fails_is_tried_again(worker: WorkerInMemory) -> None:
    row = running(worker)
    silence(worker)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    for _ in range(3):
        worker.sandbox.fail_next("unpause", EngineUnreachable("busy"))
    silence(worker, 0)
    poll(lambda: worker.containers("running"), 5, "it goes on")
    worker.sandbox.finish(worker.containers("running")[0])
    assert outcome_of(worker, row) is OutcomeCode.SUCCEEDED


def test_time_spent_frozen_is_not_the_customer_s(worker: WorkerInMemory) -> None:
    program = ("work", "1.5 s")
    worker.sandbox.engine.programs[program] = FakeProgram(duration_s=1.5)
    began = time.monotonic()
    row = running(worker, args=program, timeout_s=2)
    silence(worker)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    frozen_at = time.monotonic()
    poll(lambda: time.monotonic() > frozen_at + 1, 2)
    silence(worker, 0)

    assert outcome_of(worker, row) is OutcomeCode.SUCCEEDED
    assert time.monotonic() - began > 2, "longer than its limit by the clock on the wall"


def test_a_limit_that_passes_after_a_frost_is_kept(worker: WorkerInMemory) -> None:
    began = time.monotonic()
    row = running(worker, timeout_s=2)
    silence(worker)
    poll(lambda: worker.containers("paused"), 5, "it is frozen")
    frozen_at = time.monotonic()
    poll(lambda: time.monotonic() > frozen_at + 1, 2)
    silence(worker, 0)

    assert outcome_of(worker, row) is OutcomeCode.TIMED_OUT
    assert 2.8 < time.monotonic() - began < 5


def test_what_is_being_stopped_is_not_frozen(worker: WorkerInMemory) -> None:
    """A pause would only hold up its death."""
    row = running(worker)
    worker.sandbox.engine.programs[FOREVER] = FakeProgram(duration_s=None, term_exit_code=None)
    worker.sandbox.fail_next("stop", EngineUnreachable("busy"))
    worker.sandbox.fail_next("stop", EngineUnreachable("busy"))
    row.cancel_requested = True
    poll(lambda: worker.asked("stop"), 5, "its cancel is under way")
    silence(worker)
    outcome_of(worker, row)
    assert worker.asked("pause") == 0
