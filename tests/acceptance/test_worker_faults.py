"""One part of a node fails at a time: no two attempts of a run ever execute at once.

What the containers did is told by the engine's own events, since the record can't know what an
attempt did after its worker was dead.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import StackFactory
from tests.acceptance.test_run_path import SHORT_LEASE, ended, in_seconds, one_off, the_run
from tests.support.dark_line import DarkLine
from tests.support.engine_witness import EngineWitness
from tests.support.held_engine import HeldEngine
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest

# The first attempt stays until somebody ends it, the second ends well at once.
STAYS = ("sh", "-c", '[ "$ATTEMPT" -ge 2 ] && echo again || sleep 600')
LEASE = timedelta(seconds=float(SHORT_LEASE["LEASE_S"]))
SLOTS = 8


def now_of(stack: StackUnderTest) -> datetime:
    """The database's clock, which the engine on this machine shares."""
    found: datetime = stack.rows("SELECT clock_timestamp()")[0][0]
    return found


def worker_of(stack: StackUnderTest, job: dict[str, Any]) -> tuple[Process, Process]:
    """The worker that has the job's run now, and the other."""
    (owner,) = stack.rows(
        "SELECT s.pid FROM runs r JOIN worker_sessions s ON s.session_id = r.lease_owner"
        " WHERE r.job_id = %s",
        job["job_id"],
    )[0]
    first, second = stack.workers
    return (first, second) if first.pid == owner else (second, first)


@pytest.fixture
def witness(stack: StackUnderTest) -> Iterator[EngineWitness]:
    with EngineWitness(stack.engine, stack.instance) as witness:
        yield witness


def session_of(stack: StackUnderTest, worker: Process) -> dict[str, Any]:
    """The session of this life of a worker."""
    columns = "session_id, lease_expires_at, accepting, not_accepting_reason"
    (row,) = stack.rows(
        f"SELECT {columns} FROM worker_sessions WHERE pid = %s AND ended_at IS NULL", worker.pid
    )
    return dict(zip(columns.split(", "), row, strict=True))


def point_at(worker: Process, line: DarkLine) -> None:
    """Let the worker's next life reach the database through the line only."""
    url = urlsplit(worker.environment["DATABASE_URL"])
    through = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{line.port}"))
    worker.environment = {**worker.environment, "DATABASE_URL": through.geturl()}


def test_a_worker_cut_off_from_the_database_has_no_container_left_when_its_lease_ends(
    make_stack: StackFactory,
) -> None:
    env = SHORT_LEASE | {"WORKER_SLOTS": str(SLOTS)}
    stack = make_stack(schedulers=1, workers=2, env=env)
    cut_off, other = stack.workers
    with (
        DarkLine(stack.postgres.server.port) as line,
        EngineWitness(stack.engine, stack.instance) as witness,
    ):
        point_at(cut_off, line)
        stack.start()
        stack.rows(
            "UPDATE worker_sessions SET cordoned = true WHERE pid = %s RETURNING 1", other.pid
        )
        jobs = [one_off(stack, *STAYS, in_s=1) for _ in range(SLOTS)]
        poll(lambda: len(witness.alive()) == SLOTS, 30, "every slot is full")
        stack.rows("UPDATE worker_sessions SET cordoned = false RETURNING 1")

        line.cut()

        poll(lambda: not witness.alive(), 10, "every container is dead")
        # Nobody could renew it since: this is the instant at which others may take the runs.
        expiry: datetime = session_of(stack, cut_off)["lease_expires_at"]
        deaths = [life.died_at for life in witness.of_attempt(1) if life.died_at]
        assert len(deaths) == SLOTS
        assert max(deaths) < expiry, f"the last died {max(deaths) - expiry} after the lease"

        runs = [ended(stack, job, within_s=40) for job in jobs]
        assert {run["status"] for run in runs} == {"succeeded"}
        assert {len(run["attempts"]) for run in runs} == {2}
        assert witness.overlaps() == []
        assert {life.session_id for life in witness.of_attempt(2)} == {
            str(session_of(stack, other)["session_id"])
        }


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE)
def test_runs_of_a_killed_worker_are_running_again_within_the_lease_and_five_seconds(
    stack: StackUnderTest, witness: EngineWitness
) -> None:
    jobs = [one_off(stack, *STAYS, in_s=1) for _ in range(4)]
    poll(lambda: len(witness.alive()) == 4, 30, "four containers run")
    worker, _ = worker_of(stack, jobs[0])
    session = session_of(stack, worker)["session_id"]
    lost = [life for life in witness.alive() if life.session_id == str(session)]

    killed_at = now_of(stack)
    worker.kill()

    poll(lambda: all(life.died_at for life in lost), 10, "the warden has killed its containers")
    for life in lost:
        assert life.died_at is not None
        assert life.died_at - killed_at < timedelta(seconds=3), "it need not wait for the deadline"
    poll(lambda: len(witness.of_attempt(2)) == len(lost), 30, "each of its runs has a second try")
    poll(lambda: all(life.started_at for life in witness.of_attempt(2)), 10, "they run")
    late = max(life.started_at for life in witness.of_attempt(2) if life.started_at) - killed_at
    assert late < LEASE + timedelta(seconds=5), f"running again after {late}"
    assert witness.overlaps() == []
    counters = "SELECT failures, lease_losses FROM runs WHERE run_id::text = ANY(%s)"
    assert set(stack.rows(counters, [life.run_id for life in lost])) == {(0, 1)}


@pytest.mark.parametrize("fault", [Process.kill, Process.freeze])
@pytest.mark.stack(schedulers=1, workers=2, env={"WORKER_SLOTS": "8"})
def test_what_a_lost_worker_was_given_and_had_not_started_starts_on_time_elsewhere(
    stack: StackUnderTest, fault: Callable[[Process], None]
) -> None:
    """Long before its lease of 30 s has ended."""
    at = in_seconds(20)
    jobs = [one_off(stack, "true", schedule={"at": at}) for _ in range(6)]
    poll(lambda: all(the_run(stack, job).get("placed_at") for job in jobs), 15, "all are placed")
    lost, staying = worker_of(stack, jobs[0])
    session = session_of(stack, lost)["session_id"]
    other = session_of(stack, staying)["session_id"]
    owners = "SELECT DISTINCT lease_owner FROM runs"
    assert (session,) in stack.rows(owners)

    fault(lost)

    # Silent for 5 s, then taken and placed at once.
    poll(lambda: stack.rows(owners) == [(other,)], 12, "the other has been given all")
    for run in (ended(stack, job, within_s=40) for job in jobs):
        (attempt,) = run["attempts"]
        late = datetime.fromisoformat(attempt["go_at"]) - datetime.fromisoformat(at)
        assert run["status"] == "succeeded"
        assert late < timedelta(seconds=2), f"its go came {late} after its time"
    tried_on = "SELECT DISTINCT session_id FROM run_attempts"
    assert stack.rows(tried_on) == [(other,)], "nothing ran where it could not be reported"
    counters = "SELECT DISTINCT failures, lease_losses FROM runs"
    assert stack.rows(counters) == [(0, 0)]


@pytest.mark.parametrize(
    ("call", "old_tries"), [("create", 0), ("start", 1)], ids=["before create", "go to start"]
)
def test_a_worker_frozen_before_its_container_runs_never_runs_it(
    make_stack: StackFactory, call: str, old_tries: int
) -> None:
    """Frozen before the create: no attempt is counted. After the go: a lease is lost, and the
    created container is removed by the warden before anybody else may run it."""
    stack = make_stack(schedulers=1, workers=2, env=SHORT_LEASE)
    frozen, other = stack.workers
    with (
        HeldEngine(stack.engine.host, stack.directory) as held,
        EngineWitness(stack.engine, stack.instance) as witness,
    ):
        frozen.environment = {**frozen.environment, "DOCKER_HOST": held.host}
        stack.start()
        stack.rows(
            "UPDATE worker_sessions SET cordoned = true WHERE pid = %s RETURNING 1", other.pid
        )
        held.hold(rb"POST \S+/containers/\S*" + call.encode())
        job = one_off(stack, "sh", "-c", "sleep 2; echo whole", in_s=1)
        poll(held.arrived.is_set, 20, f"the worker has called {call}")
        old = str(session_of(stack, frozen)["session_id"])

        frozen.freeze()
        stack.rows("UPDATE worker_sessions SET cordoned = false RETURNING 1")
        run = ended(stack, job, within_s=40)
        # Awake again, it sends what it was about to send: for the create, late is late too.
        held.let_go()
        frozen.thaw()
        poll(lambda: not frozen.is_alive, 30, "the old life ends, since its lease is lost")

        assert (run["status"], run["output_tail"]) == ("succeeded", "whole\n")
        outcomes = [attempt["outcome"] for attempt in run["attempts"]]
        assert outcomes == ["lease_expired"] * old_tries + ["succeeded"]
        assert the_run(stack, job)["attempts"] == run["attempts"], "waking up changed nothing"
        ran = [life.session_id for life in witness.lives if life.started_at]
        assert ran == [str(session_of(stack, other)["session_id"])]
        (made,) = [life for life in witness.lives if life.session_id == old]
        assert made.started_at is None
        if old_tries:
            again = witness.of_attempt(2)[0].started_at
            assert made.removed_at is not None
            assert again is not None
            assert made.removed_at < again, "the created container went first"
        poll(lambda: not stack.containers(), 15, "every container is removed")


@pytest.mark.stack(schedulers=1, workers=2, env=SHORT_LEASE)
def test_a_worker_frozen_while_its_container_runs_finds_it_dead(
    stack: StackUnderTest, witness: EngineWitness
) -> None:
    job = one_off(stack, *STAYS, in_s=1)
    poll(lambda: witness.alive(), 30, "its container runs")
    worker, _ = worker_of(stack, job)

    worker.freeze()
    poll(lambda: not witness.alive(), 10, "the warden has killed it")
    (first,) = witness.of_attempt(1)
    assert first.died_at is not None
    assert first.died_at < session_of(stack, worker)["lease_expires_at"]
    run = ended(stack, job, within_s=30)
    worker.thaw()
    poll(lambda: not worker.is_alive, 30, "the old life ends, since its lease is lost")

    assert [attempt["outcome"] for attempt in run["attempts"]] == ["lease_expired", "succeeded"]
    assert the_run(stack, job)["attempts"] == run["attempts"], "waking up changed nothing"
    assert witness.overlaps() == []


@pytest.mark.stack(schedulers=1, workers=1, env=SHORT_LEASE)
def test_without_its_warden_a_worker_takes_nothing_new_says_so_and_goes_on_with_what_it_has(
    stack: StackUnderTest, witness: EngineWitness
) -> None:
    (worker,) = stack.workers
    running = one_off(stack, "sh", "-c", "sleep 12; echo whole", in_s=1)
    poll(lambda: witness.alive(), 30, "its container runs")

    stack.warden.kill()

    poll(lambda: not session_of(stack, worker)["accepting"], 10, "the worker accepts nothing")
    said = session_of(stack, worker)["not_accepting_reason"]
    waiting = one_off(stack, "true", in_s=1)
    done = ended(stack, running, within_s=30)
    lone = the_run(stack, waiting)

    assert said == "the node's warden is not running"
    assert (done["status"], len(done["attempts"])) == ("succeeded", 1)
    assert (lone["status"], lone["placed_at"]) == ("queued", None)
    stack.revive()
    assert ended(stack, waiting, within_s=20)["status"] == "succeeded"
