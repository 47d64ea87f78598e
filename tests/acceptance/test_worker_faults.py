"""One part of a node fails at a time: no two attempts of a run ever execute at once.

What the containers did is told by the engine's own events, since the record can't know what an
attempt did after its worker was dead.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import StackFactory
from tests.acceptance.test_run_path import SHORT_LEASE, ended, one_off
from tests.support.dark_line import DarkLine
from tests.support.engine_witness import EngineWitness
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest

# The first attempt stays until somebody ends it, the second ends well at once.
STAYS = ("sh", "-c", '[ "$ATTEMPT" -ge 2 ] && echo again || sleep 600')
LEASE = timedelta(seconds=float(SHORT_LEASE["LEASE_S"]))
SLOTS = 8


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
