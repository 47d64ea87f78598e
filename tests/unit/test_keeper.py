"""The keeper: a lease never outlives its arithmetic, and no run of ours is forgotten or doubled."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import leases
from runs.domain.outcome import OutcomeCode
from runs.domain.run_id import make_run_id
from tests.support.lease_desk import Row
from tests.support.polling import poll
from tests.support.worker_in_memory import (
    SHORT_LEASE,
    WorkerInMemory,
    worker_in_memory,
)
from workers import deadlines, keeper
from workers.deadlines import read_deadlines
from workers.sandbox.base import ContainerHandle, ContainerSpec, EngineUnreachable
from workers.sandbox.fake import FakeProgram

_SLOTS = 4
FOREVER = ("sleep", "600")


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerInMemory]:
    """A worker that has not been opened yet."""
    with worker_in_memory(tmp_path, monkeypatch, _SLOTS) as worker:
        worker.sandbox.engine.programs[FOREVER] = FakeProgram(duration_s=None)
        yield worker


def place(worker: WorkerInMemory, *, ready_in_s: float = -1, **task: Any) -> Row:
    return worker.desk.place(worker.session_id, ready_in_s=ready_in_s, **task)


def running(worker: WorkerInMemory) -> Row:
    row = place(worker, args=FOREVER)
    worker.run_in_thread(row.leased.run_id)
    poll(lambda: any(h.run_id == row.leased.run_id for h in worker.containers("running")))
    return row


def alive(worker: WorkerInMemory) -> list[ContainerHandle]:
    """What executes or, frozen, could again."""
    return worker.containers("running") + worker.containers("paused")


def container_of(worker: WorkerInMemory, row: Row, **fields: Any) -> ContainerSpec:
    """A container of this session that no thread works with."""
    spec = ContainerSpec(
        run_id=row.leased.run_id,
        session_id=worker.session_id,
        tenant_id=row.leased.tenant_id,
        job_id=row.leased.job_id,
        image="scheduler-demo:latest",
        args=FOREVER,
        **{"attempt": 1, "fence": row.leased.fence} | fields,
    )
    worker.sandbox.start(worker.sandbox.prepare(spec))
    return spec


def is_removed(worker: WorkerInMemory, row: Row) -> Callable[[], bool]:
    return lambda: all(h.run_id != row.leased.run_id for h in worker.containers())


# --- the lease ------------------------------------------------------------------------------------


def test_without_the_database_containers_are_dead_before_the_lease_s_end_with_every_slot_full(
    worker: WorkerInMemory,
) -> None:
    worker.open(SHORT_LEASE)
    rows = [running(worker) for _ in range(_SLOTS)]
    for call in ("heartbeat", "look", "complete"):
        worker.desk.fail(call, 10_000)
    (deadline,) = read_deadlines(worker.directory).values()
    assert deadline is not None

    poll(lambda: not alive(worker), what="every container is dead")

    assert deadlines.boottime_s() < deadline.warden_deadline, "the warden had nothing to do"
    assert [row.status for row in rows] == ["running"] * _SLOTS, "nobody was told"


def test_an_unknown_answer_extends_nothing(worker: WorkerInMemory) -> None:
    """The database extended the lease, and the worker may not believe it."""
    worker.open(SHORT_LEASE)
    running(worker)

    worker.desk.lose("heartbeat", 10_000)

    poll(lambda: not alive(worker), what="the container is dead")


def test_the_deadline_counts_from_before_a_heartbeat_was_sent(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer took three seconds: the lease began at some time within them."""
    worker.open(SHORT_LEASE)
    clock, beats = {"ahead_s": 0.0}, []
    renew = leases.heartbeat

    def slow(*args: Any, **options: Any) -> Any:
        beats.append(deadlines.boottime_s() + clock["ahead_s"])
        clock["ahead_s"] += 3
        return renew(*args, **options)

    monkeypatch.setattr(keeper, "boottime_s", lambda: deadlines.boottime_s() + clock["ahead_s"])
    monkeypatch.setattr(leases, "heartbeat", slow)
    poll(lambda: len(beats) >= 2, what="two heartbeats were answered late")

    (deadline,) = read_deadlines(worker.directory).values()
    assert deadline is not None
    sent_at = deadline.worker_deadline - SHORT_LEASE.lease_s + SHORT_LEASE.worker_margin_s
    assert any(0 <= began - sent_at < 1 for began in beats), "it counts from the sending"


def test_a_missed_heartbeat_is_tried_again_in_time(worker: WorkerInMemory) -> None:
    worker.open(SHORT_LEASE)
    row = running(worker)

    for call in ("heartbeat", "look"):
        worker.desk.fail(call, 6)
    poll(lambda: worker.desk.calls[-3:].count("look") == 3, what="it is heard again")

    assert row.status == "running"
    assert worker.containers("running")


def test_the_deadline_file_is_there_before_the_first_container_and_grows(
    worker: WorkerInMemory,
) -> None:
    def deadline() -> float:
        (found,) = read_deadlines(worker.directory).values()
        assert found is not None
        return found.warden_deadline

    worker.open(SHORT_LEASE)
    first = deadline()

    poll(lambda: deadline() > first, what="a heartbeat has moved it")


def test_a_lost_lease_stops_everything_and_ends_the_process_once(worker: WorkerInMemory) -> None:
    worker.open()
    row = running(worker)

    worker.desk.session_is_alive = False

    poll(lambda: worker.signals, what="the process is asked to end")
    poll(is_removed(worker, row), what="its container is gone")
    looks = len(worker.desk.calls)
    poll(lambda: len(worker.desk.calls) > looks + 5)
    assert worker.signals == [signal.SIGTERM]
    assert worker.keeper.adopt(row.leased.run_id) is None, "nothing new is taken"


# --- what the rows say ----------------------------------------------------------------------------


def test_a_run_whose_message_never_came_is_found(worker: WorkerInMemory) -> None:
    worker.open()

    row = place(worker)

    poll(lambda: worker.desk.completion_of(row), what="it was run without a message")
    assert worker.became[row.leased.run_id] == "succeeded"


def test_a_run_ahead_of_its_time_is_left_to_its_message(worker: WorkerInMemory) -> None:
    worker.open()
    row = place(worker, ready_in_s=60)
    looks = len(worker.desk.calls)
    poll(lambda: len(worker.desk.calls) > looks + 5)

    assert row.status == "queued"
    assert "lease" not in worker.desk.calls


def test_orphans_that_no_thread_is_free_for_are_not_piled_up(worker: WorkerInMemory) -> None:
    """The database answers looks and takes no completion: each is asked for once, not each look."""
    worker.desk.fail("complete", 10_000)
    worker.open()
    threads = 2 * _SLOTS + 1
    for _ in range(threads + 5):
        place(worker).status = "leased"
    queue = worker.keeper._finders._work_queue
    poll(lambda: queue.qsize() == 5, what="five of them wait for a thread")
    looks = worker.desk.calls.count("look")

    poll(lambda: worker.desk.calls.count("look") > looks + 20)

    assert queue.qsize() == 5


def test_a_run_that_lost_its_thread_is_given_up_only_when_its_container_is_gone(
    worker: WorkerInMemory,
) -> None:
    worker.open()
    row = place(worker)
    row.status = "running"
    container_of(worker, row)
    for _ in range(2):
        worker.sandbox.fail_next("remove", EngineUnreachable("no answer"))

    poll(lambda: worker.desk.completion_of(row), what="the orphan is settled")

    completion = worker.desk.completion_of(row)
    assert completion is not None
    assert completion.outcome.code is OutcomeCode.LEASE_EXPIRED
    assert is_removed(worker, row)()


def test_an_orphan_is_settled_by_one_thread_however_long_it_takes(worker: WorkerInMemory) -> None:
    worker.open()
    row = place(worker)
    row.status = "leased"
    worker.desk.fail("complete", 30)

    poll(lambda: worker.desk.completion_of(row), within_s=15, what="the orphan is settled")

    assert worker.desk.largest["complete"] == 1, "nobody else has asked"


def test_the_orphan_of_an_old_lease_leaves_a_newer_lease_s_container_alone(
    worker: WorkerInMemory,
) -> None:
    worker.open()
    row = running(worker)
    (newer,) = worker.containers("running")
    old = worker.desk.heartbeat(worker.session_id, accepting=True, reason="").owned[0]

    worker.keeper._settle_orphan(replace(old, fence=newer.fence - 1))

    assert worker.containers("running") == [newer]
    assert row.status == "running"


def test_a_cancel_between_lease_and_answer_is_not_taken_for_a_loss(worker: WorkerInMemory) -> None:
    """Rows read before a lease know nothing of it."""
    worker.open()
    for _ in range(20):
        row = place(worker)
        assert worker.run(row.leased.run_id) == "succeeded"


# --- leftovers ------------------------------------------------------------------------------------


def test_a_container_that_could_not_be_removed_is_removed_later(worker: WorkerInMemory) -> None:
    worker.open()
    row = place(worker)
    worker.sandbox.fail_next("remove", EngineUnreachable("no answer"))

    worker.run(row.leased.run_id)

    poll(is_removed(worker, row), what="the leftover is gone")


def test_a_container_whose_creation_got_no_answer_is_removed_later(worker: WorkerInMemory) -> None:
    worker.open()
    gone = place(worker)
    del worker.desk.rows[gone.leased.run_id]

    container_of(worker, gone)

    poll(is_removed(worker, gone), what="the leftover is gone")


def test_what_a_thread_works_with_is_no_leftover(worker: WorkerInMemory) -> None:
    worker.open()
    running(worker)
    sweeps = worker.asked("list_ours")

    poll(lambda: worker.asked("list_ours") > sweeps + 3)

    assert len(worker.containers("running")) == 1


# --- what it says of itself -----------------------------------------------------------------------


def test_a_worker_whose_deadline_cannot_be_written_takes_nothing_new(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.open()
    poll(lambda: worker.desk.accepting == (True, ""))

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("workers.keeper.write_deadline", full)
        poll(lambda: worker.desk.accepting == (False, "the deadline file can't be written"))
    poll(lambda: worker.desk.accepting == (True, ""), what="it accepts again")


def test_a_worker_without_a_warden_takes_nothing_new(
    worker: WorkerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.open()
    monkeypatch.setattr("workers.keeper.warden_is_alive", lambda directory: False)

    poll(lambda: worker.desk.accepting == (False, "the node's warden is not running"))


def test_a_worker_drained_by_an_operator_takes_nothing_new(worker: WorkerInMemory) -> None:
    worker.open()
    worker.desk.draining = True

    poll(lambda: worker.keeper.is_draining)

    assert worker.keeper.adopt(make_run_id(place(worker).leased.scheduled_for, bytes(10))) is None


# --- the end --------------------------------------------------------------------------------------


def test_a_keeper_that_closes_drains_first_ends_its_session_and_forgets_its_deadline(
    worker: WorkerInMemory,
) -> None:
    worker.open()
    worker.keeper.close(timeout_s=5)

    assert worker.keeper.is_draining
    assert worker.desk.ended
    assert read_deadlines(worker.directory) == {}


def test_a_session_that_ended_out_of_order_keeps_its_deadline_for_the_warden(
    worker: WorkerInMemory,
) -> None:
    worker.open()
    worker.desk.fail("end_session")

    worker.keeper.close(timeout_s=5)

    assert list(read_deadlines(worker.directory)) == [worker.session_id]
