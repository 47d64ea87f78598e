"""One run on a worker: what becomes of it when database, engine or lease let go at each step."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.domain.outcome import OutcomeCode, StopReason
from runs.leases import CompleteAnswer, GoAnswer, GoReply
from tests.support.lease_desk import Row
from tests.support.polling import poll
from tests.support.worker_in_memory import WorkerInMemory, worker_in_memory
from workers import keeper
from workers.deadlines import boottime_s
from workers.sandbox.base import (
    BadCommand,
    ContainerExit,
    ContainerGone,
    ContainerHandle,
    EngineUnreachable,
    ImageNotFound,
    SandboxError,
)
from workers.sandbox.fake import FakeProgram

_SLOTS = 2
FOREVER = ("sleep", "600")


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerInMemory]:
    with worker_in_memory(tmp_path, monkeypatch, _SLOTS) as worker:
        worker.sandbox.engine.programs[FOREVER] = FakeProgram(duration_s=None)
        yield worker.open()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(worker: WorkerInMemory) -> Iterator[None]:
    """After every story, whatever happened in it: no container, and every slot free."""
    yield
    worker.end_stories()
    poll(lambda: not worker.containers(), what="every container is removed")
    assert worker.free_slots() == _SLOTS


def place(worker: WorkerInMemory, *, ready_in_s: float = -1, **task: Any) -> Row:
    return worker.desk.place(worker.session_id, ready_in_s=ready_in_s, **task)


def place_and_run(worker: WorkerInMemory, **fields: Any) -> tuple[str, Row]:
    row = place(worker, **fields)
    return worker.run(row.leased.run_id), row


def running(worker: WorkerInMemory, **fields: Any) -> Row:
    """A run whose container runs, in a thread of its own, until it is stopped."""
    row = place(worker, **{"args": FOREVER} | fields)
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: any(h.run_id == row.leased.run_id for h in worker.containers("running")))
    return row


def became(worker: WorkerInMemory, row: Row) -> str:
    return poll(lambda: worker.became.get(row.leased.run_id, ""), what="the story has ended")


def outcome_of(worker: WorkerInMemory, row: Row) -> OutcomeCode | None:
    completion = worker.desk.completion_of(row)
    return completion.outcome.code if completion else None


# --- the whole story ------------------------------------------------------------------------------


def test_a_run_is_leased_prepared_started_and_reported(worker: WorkerInMemory) -> None:
    worker.sandbox.engine.programs[("true",)] = FakeProgram(output=b"a long line\n")

    word, row = place_and_run(worker)

    completion = worker.desk.completion_of(row)
    assert word == "succeeded"
    assert completion is not None
    assert (completion.exit_code, completion.fence) == (0, row.leased.fence)
    assert (completion.output, completion.output_truncated) == (b"ng line\n", True)
    assert completion.started_at is not None
    story = ("prepare", "start", "wait", "remove")
    assert [name for name, _ in worker.sandbox.calls if name in story] == list(story)


def test_a_run_ahead_of_its_time_is_prepared_and_waits_without_a_slot(
    worker: WorkerInMemory,
) -> None:
    row = place(worker, ready_in_s=1)
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: worker.containers("created"))

    assert worker.free_slots() == _SLOTS
    assert became(worker, row) == "succeeded"


def test_a_message_for_a_run_that_a_thread_has_already_does_nothing(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)

    assert worker.run(row.leased.run_id) == "known already"
    assert worker.desk.calls.count("lease") == 1


def test_a_message_for_a_run_that_is_not_ours_is_refused(worker: WorkerInMemory) -> None:
    row = place(worker)
    worker.desk.give_away(row)

    assert worker.run(row.leased.run_id) == "refused: leased"
    assert worker.asked("prepare") == 0


# --- slots ----------------------------------------------------------------------------------------


def test_a_run_due_on_arrival_that_finds_no_slot_goes_back_before_anything_is_made(
    worker: WorkerInMemory,
) -> None:
    for _ in range(_SLOTS):
        running(worker)

    word, row = place_and_run(worker)

    assert word == "handed back: no free slot"
    assert (row.status, row.owner) == ("queued", None)
    assert worker.asked("prepare") == _SLOTS


def test_a_prepared_run_that_finds_no_slot_at_its_time_goes_back_without_its_container(
    worker: WorkerInMemory,
) -> None:
    for _ in range(_SLOTS):
        running(worker)

    word, row = place_and_run(worker, ready_in_s=0.1)

    assert word == "handed back: no free slot"
    assert row.status == "queued"
    assert not [h for h in worker.containers() if h.run_id == row.leased.run_id]


def test_a_slot_is_free_again_even_if_the_removal_fails_in_a_way_nobody_expects(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(worker.sandbox, "remove", raises(RuntimeError("no more threads")))
        row = place(worker)
        with pytest.raises(RuntimeError):
            worker.run(row.leased.run_id)

        assert worker.free_slots() == _SLOTS


# --- the go ---------------------------------------------------------------------------------------


def test_a_clock_that_runs_ahead_of_the_database_s_asks_again(worker: WorkerInMemory) -> None:
    row = place(worker)
    worker.desk.go_answers[row.leased.run_id] = [GoReply(GoAnswer.NOT_YET, 0.05)] * 3

    assert worker.run(row.leased.run_id) == "succeeded"
    assert worker.desk.calls.count("go") == 4


def test_a_run_is_handed_back_when_the_database_s_clock_was_set_back(
    worker: WorkerInMemory,
) -> None:
    row = place(worker)
    worker.desk.go_answers[row.leased.run_id] = [GoReply(GoAnswer.NOT_YET, 3_600)]

    assert worker.run(row.leased.run_id).startswith("handed back")
    assert row.status == "queued"


def test_a_run_whose_task_was_edited_goes_back_to_be_prepared_again(
    worker: WorkerInMemory,
) -> None:
    row = place(worker)
    worker.desk.go_answers[row.leased.run_id] = [GoReply(GoAnswer.TASK_CHANGED)]

    assert worker.run(row.leased.run_id).startswith("handed back")
    assert row.status == "queued"
    assert worker.asked("start") == 0


@pytest.mark.parametrize("answer", [GoAnswer.BLOCK, GoAnswer.SKIP, GoAnswer.LEASE_LOST])
def test_a_run_without_a_go_never_starts(worker: WorkerInMemory, answer: GoAnswer) -> None:
    row = place(worker)
    worker.desk.go_answers[row.leased.run_id] = [GoReply(answer)]

    assert worker.run(row.leased.run_id) == answer.value
    assert worker.asked("start") == 0
    assert worker.desk.completion_of(row) is None


# --- answers that are lost ------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["go", "complete"])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_unknown_answer_is_asked_for_again(worker: WorkerInMemory, call: str, cut: str) -> None:
    row = place(worker)
    (worker.desk.fail if cut == "before" else worker.desk.lose)(call, 3)

    assert worker.run(row.leased.run_id) == "succeeded"
    assert worker.asked("start") == 1
    assert len(worker.desk.completions) == 1


def test_a_lease_whose_answer_is_lost_starts_nothing_and_is_given_up_in_order(
    worker: WorkerInMemory,
) -> None:
    row = place(worker)
    worker.desk.lose("lease")

    assert worker.run(row.leased.run_id) == "refused: unknown_outcome"

    poll(lambda: outcome_of(worker, row), what="the orphan is settled")
    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED
    assert worker.asked("start") == 0


def test_a_hand_back_whose_answer_is_lost_ends_the_story_all_the_same(
    worker: WorkerInMemory,
) -> None:
    row = place(worker)
    worker.desk.go_answers[row.leased.run_id] = [GoReply(GoAnswer.TASK_CHANGED)]
    worker.desk.lose("hand_back")

    assert worker.run(row.leased.run_id).startswith("handed back")
    assert row.status == "queued"


# --- the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnreachable("it does not answer"), OutcomeCode.ENGINE_UNREACHABLE),
        (ImageNotFound("no such image"), OutcomeCode.IMAGE_NOT_FOUND),
        (BadCommand("no command"), OutcomeCode.BAD_COMMAND),
    ],
)
def test_a_container_that_cannot_be_made_is_reported_without_a_go(
    worker: WorkerInMemory, error: SandboxError, code: OutcomeCode
) -> None:
    worker.sandbox.fail_next("prepare", error)

    word, row = place_and_run(worker)

    assert (word, outcome_of(worker, row)) == (code.value, code)
    assert "go" not in worker.desk.calls


@pytest.mark.parametrize(
    "task",
    [
        {"image": None, "timeout_s": "soon"},
        {"timeout_s": None},
        {"env": ["A=1"]},
        {"resources": {"cpu": "many"}},
        {"resources": [1]},
    ],
)
def test_a_task_that_cannot_be_read_is_said_so_once_and_for_all(
    worker: WorkerInMemory, task: dict[str, Any]
) -> None:
    word, row = place_and_run(worker, **task)

    completion = worker.desk.completion_of(row)
    assert completion is not None
    assert (word, completion.outcome.permanent) == ("bad_command", True)
    assert "task" in completion.outcome.message


def test_a_start_without_an_answer_is_reported_only_when_the_container_is_surely_gone(
    worker: WorkerInMemory,
) -> None:
    worker.sandbox.fail_next("start", EngineUnreachable("no answer"))
    for _ in range(3):
        worker.sandbox.fail_next("remove", EngineUnreachable("no answer"))

    word, row = place_and_run(worker)

    assert word == "engine_unreachable"
    assert worker.asked("remove") > 3, "it was tried until the engine answered"
    assert outcome_of(worker, row) is OutcomeCode.ENGINE_UNREACHABLE


def test_a_container_that_the_warden_removed_before_its_start_lost_its_lease(
    worker: WorkerInMemory,
) -> None:
    worker.sandbox.fail_next("start", ContainerGone("the container was removed"))

    _, row = place_and_run(worker)

    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED


def test_an_engine_that_goes_silent_while_a_container_runs_does_not_end_the_run(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)
    worker.sandbox.engine.silent = True
    poll(lambda: worker.desk.accepting == (False, "the container engine does not answer"), 5)
    worker.sandbox.engine.silent = False

    worker.sandbox.finish(worker.containers("running")[0])

    assert became(worker, row) == "succeeded"


def test_a_cancel_is_reported_only_when_the_engine_confirms_the_death(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)
    worker.sandbox.engine.silent = True
    row.cancel_requested = True
    poll(lambda: worker.asked("stop") > 2, what="the stop is tried again")
    assert worker.desk.completion_of(row) is None

    worker.sandbox.engine.silent = False

    assert became(worker, row) == "cancelled"


def test_a_fault_of_ours_is_reported_and_counted_once_the_container_is_gone(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.sandbox, "wait", raises(KeyError("State")))
    for _ in range(3):
        worker.sandbox.fail_next("remove", EngineUnreachable("no answer"))

    word, row = place_and_run(worker, args=FOREVER)

    assert worker.containers() == []
    completion = worker.desk.completion_of(row)
    assert word == "engine_unreachable"
    assert completion is not None
    assert not completion.outcome.counts_as_attempt
    assert "KeyError" in completion.outcome.message


# --- being stopped --------------------------------------------------------------------------------


def test_a_container_that_outlives_its_time_limit_is_stopped(worker: WorkerInMemory) -> None:
    word, _ = place_and_run(worker, args=FOREVER, timeout_s=1)

    assert word == "timed_out"
    assert worker.asked("stop") == 1


def test_a_cancelled_run_is_stopped_and_reported_as_cancelled(worker: WorkerInMemory) -> None:
    row = running(worker)

    row.cancel_requested = True

    assert became(worker, row) == "cancelled"
    assert outcome_of(worker, row) is OutcomeCode.CANCELLED


def test_a_run_that_somebody_else_has_by_now_is_killed_and_its_report_is_refused(
    worker: WorkerInMemory,
) -> None:
    row = running(worker)

    worker.desk.give_away(row)

    assert became(worker, row) == CompleteAnswer.STALE_FENCE.value
    assert (worker.asked("kill"), worker.asked("stop")) == (1, 0)


def test_a_prepared_run_that_was_withdrawn_loses_its_container_at_once(
    worker: WorkerInMemory,
) -> None:
    row = place(worker, ready_in_s=60)
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: worker.containers("created"))

    del worker.desk.rows[row.leased.run_id]

    assert became(worker, row).startswith("handed back")
    assert worker.containers() == []


def test_a_worker_that_was_frozen_between_its_go_and_the_start_never_starts(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGCONT: this thread goes on before the one that enforces the deadline."""
    row = place(worker)
    with monkeypatch.context() as frozen:
        frozen.setattr(worker.keeper, "_enforce", lambda: None)
        now = boottime_s

        def go_and_freeze(*args: Any) -> GoReply:
            frozen.setattr("workers.keeper.boottime_s", lambda: now() + 3_600)
            return GoReply(GoAnswer.GO)

        worker.desk.fail("heartbeat", 10_000)
        frozen.setattr(worker.keeper, "go", go_and_freeze)
        word = worker.run(row.leased.run_id)
    worker.desk.fail("heartbeat", 0)

    assert word == "lease_expired"
    assert worker.asked("start") == 0


def test_a_lease_lost_during_the_start_kills_at_once(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = worker.sandbox.start

    def lose_the_lease_and_start(handle: ContainerHandle) -> Any:
        worker.keeper.stop_running(StopReason.LEASE_LOST)
        return start(handle)

    monkeypatch.setattr(worker.sandbox, "start", lose_the_lease_and_start)

    word, row = place_and_run(worker, args=FOREVER)

    assert word == "lease_expired"
    assert (worker.asked("kill"), worker.asked("stop")) == (1, 0)
    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED


@pytest.mark.parametrize(
    ("exit_code", "is_current", "code"),
    [
        (137, False, OutcomeCode.LEASE_EXPIRED),  # the warden's, seen after waking up
        (137, True, OutcomeCode.SIGNAL),  # the customer's own
        (0, False, OutcomeCode.SUCCEEDED),  # it ended by itself before anybody killed it
        (1, False, OutcomeCode.NON_ZERO_EXIT),
    ],
)
def test_a_kill_past_the_lease_is_never_the_customers(
    worker: WorkerInMemory,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: int,
    is_current: bool,
    code: OutcomeCode,
) -> None:
    wait = worker.sandbox.wait

    def freeze_while_it_runs(*args: Any) -> ContainerExit | None:
        ended = wait(*args)
        monkeypatch.setattr(worker.keeper, "lease_has_held_since", lambda began: is_current)
        return ended

    monkeypatch.setattr(worker.sandbox, "wait", freeze_while_it_runs)
    worker.sandbox.engine.programs[("true",)] = FakeProgram(exit_code=exit_code)

    _, row = place_and_run(worker)

    assert outcome_of(worker, row) is code


def test_a_kill_past_the_lease_is_ours_even_if_the_lease_is_renewed_before_it_is_looked_at(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen for longer than the warden waits and shorter than the database does."""
    wait = worker.sandbox.wait

    def freeze_while_it_runs(*args: Any) -> ContainerExit | None:
        ended = wait(*args)
        assert worker.keeper.lease_is_current()
        monkeypatch.setattr(keeper, "boottime_s", lambda: boottime_s() + 1_000)
        poll(worker.keeper.lease_is_current, what="the first heartbeat after it has renewed it")
        return ended

    monkeypatch.setattr(worker.sandbox, "wait", freeze_while_it_runs)
    worker.sandbox.engine.programs[("true",)] = FakeProgram(exit_code=137)

    _, row = place_and_run(worker)

    assert outcome_of(worker, row) is OutcomeCode.LEASE_EXPIRED


# --- leaving --------------------------------------------------------------------------------------


def test_a_drain_hands_back_what_has_not_started_and_lets_the_rest_go_on(
    worker: WorkerInMemory,
) -> None:
    runs_on = running(worker)
    waits = place(worker, ready_in_s=60)
    worker.run_in_thread(waits.leased.run_id)
    poll(lambda: worker.containers("created"))

    worker.keeper.drain()

    assert became(worker, waits).startswith("handed back")
    assert (waits.status, runs_on.status) == ("queued", "running")
    assert worker.run(place(worker).leased.run_id) == "known already"
    poll(lambda: worker.desk.draining, what="the database knows")


@pytest.mark.parametrize("step", ["wait", "start"])
def test_a_worker_that_gives_up_waits_for_no_engine(worker: WorkerInMemory, step: str) -> None:
    row = place(worker, args=FOREVER)
    if step == "start":
        go_silent_at(worker, "start")
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: worker.asked(step), what=f"the story has come to its {step}")
    worker.sandbox.engine.silent = True

    worker.keeper.give_up()

    assert became(worker, row) == "given up"
    assert worker.desk.completion_of(row) is None, "its death is not known"


@pytest.mark.parametrize("call", ["go", "complete"])
def test_a_worker_that_gives_up_waits_for_no_database(worker: WorkerInMemory, call: str) -> None:
    row = place(worker)
    worker.desk.fail(call, 10_000)
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: worker.desk.calls.count(call) > 2, what="it is asked again and again")

    worker.keeper.give_up()

    assert became(worker, row) in ("lease_lost", "stale_fence")


# --- helpers --------------------------------------------------------------------------------------


def raises(error: Exception) -> Callable[..., ContainerExit]:
    def call(*_: object) -> ContainerExit:
        raise error

    return call


def go_silent_at(worker: WorkerInMemory, method: str) -> None:
    """Let the engine stop answering with the call of `method`."""
    original = getattr(worker.sandbox, method)
    silenced = threading.Event()

    def call(*args: Any) -> Any:
        if not silenced.is_set():
            silenced.set()
            worker.sandbox.engine.silent = True
        return original(*args)

    setattr(worker.sandbox, method, call)
