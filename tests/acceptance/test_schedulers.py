"""Schedulers come, die and freeze; what falls due is planned and starts all the same."""

from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.test_run_path import ended, in_seconds, one_off, the_run
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest


def shards_by_owner(stack: StackUnderTest) -> dict[int, int]:
    """How many shards each living scheduler process holds, by its pid."""
    return {
        int(pid): int(shards)
        for pid, shards in stack.rows(
            "SELECT p.pid, count(s.shard) FROM scheduler_processes p LEFT JOIN shard_leases s"
            " ON s.owner = p.owner AND s.expires_at > now() WHERE p.expires_at > now() GROUP BY 1"
        )
    }


def are_shared(stack: StackUnderTest, processes: int) -> bool:
    shares = sorted(shards_by_owner(stack).values())
    return len(shares) == processes and sum(shares) == 64 and shares[-1] - shares[0] <= 1


@pytest.mark.stack(schedulers=3, workers=2)
def test_a_scheduler_killed_just_before_a_burst_makes_no_run_late(stack: StackUnderTest) -> None:
    poll(lambda: are_shared(stack, 3), 20, "three schedulers share the shards")
    at = in_seconds(16)
    jobs = [one_off(stack, "true", schedule={"at": at}) for _ in range(8)]
    due = datetime.fromisoformat(at)
    poll(
        lambda: stack.rows("SELECT now() > %s::timestamptz - interval '5 seconds'", due)[0][0],
        20,
        "five seconds before the burst",
    )

    stack.schedulers[0].kill()

    for job in jobs:
        run = ended(stack, job)
        assert run["status"] == "succeeded"
        go = datetime.fromisoformat(run["attempts"][0]["go_at"])
        assert (go - due).total_seconds() < 1, f"its go came {go - due} after its time"
    poll(lambda: are_shared(stack, 2), 20, "the two that are left share its shards")


@pytest.mark.stack(schedulers=2, workers=1)
def test_shards_are_resigned_at_a_graceful_stop_and_taken_at_once(stack: StackUnderTest) -> None:
    poll(lambda: are_shared(stack, 2), 20, "two schedulers share the shards")

    stack.schedulers[1].stop()

    held = shards_by_owner(stack)
    assert list(held) == [stack.schedulers[0].pid], "it has left the fleet"
    poll(lambda: are_shared(stack, 1), 4, "its shards are taken before any term ends")


@pytest.mark.stack(schedulers=2, workers=1, env={"PLANNER_BATCH": "200"})
def test_a_frozen_scheduler_that_holds_locks_stops_nobody(stack: StackUnderTest) -> None:
    poll(lambda: are_shared(stack, 2), 20, "two schedulers share the shards")
    stack.rows("UPDATE worker_sessions SET cordoned = true RETURNING 1")
    frozen, other = stack.schedulers
    make_due_jobs(stack, 6_000)

    freeze_in_a_transaction(stack, frozen)

    poll(lambda: not cursors_due(stack), 40, "the other has planned every job")
    assert other.is_alive
    assert stack.rows("SELECT count(DISTINCT job_id), count(*) FROM runs") == [(6_000, 6_000)]
    frozen.thaw()
    quick = one_off(stack, "true", in_s=3)
    stack.rows("UPDATE worker_sessions SET cordoned = false RETURNING 1")
    stack.rows("DELETE FROM runs WHERE job_id <> %s RETURNING 1", quick["job_id"])
    assert ended(stack, quick)["status"] == "succeeded"
    assert len(the_run(stack, quick)["attempts"]) == 1


def make_due_jobs(stack: StackUnderTest, number: int) -> None:
    """Jobs of one tenant that all fall due at the next full hour and are claimed at once."""
    with stack.db() as connection:
        connection.execute(
            "WITH job AS (INSERT INTO jobs (job_id, tenant_id, name, description, labels, schedule,"
            " dst, flexible_window_s, misfire, overlap, queue_limit, task, retry, region, tier,"
            " enabled, version) SELECT gen_random_uuid(), (SELECT tenant_id FROM tenants LIMIT 1),"
            " 'due', '', '{}', jsonb_build_object('at', to_char(now() AT TIME ZONE 'UTC' +"
            " interval '60 seconds', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')), '{}', 0, '{}', 'allow',"
            " 10, '{\"image\": \"x\", \"timeout_s\": 1}', '{}', 'default', 'container', true, 1"
            " FROM generate_series(1, %s) RETURNING job_id)"
            " INSERT INTO schedule_cursors (job_id, shard, next_run_at, last_wall_time, tzdata)"
            " SELECT job_id, (random() * 63)::int, date_trunc('second', now() + interval"
            " '60 seconds'), '', '' FROM job",
            [number],
        )


def cursors_due(stack: StackUnderTest) -> int:
    count: int = stack.rows(
        "SELECT count(*) FROM schedule_cursors WHERE next_run_at < now() + interval '65 seconds'"
    )[0][0]
    return count


def freeze_in_a_transaction(stack: StackUnderTest, scheduler: Process) -> None:
    """Freeze the scheduler at a moment at which its planner holds locks on cursors."""

    def holds_locks() -> list[tuple[Any, ...]]:
        scheduler.freeze()
        held = stack.rows(
            "SELECT a.pid FROM pg_stat_activity a JOIN scheduler_processes p"
            " ON a.application_name LIKE '%%scheduler' AND p.pid = %s"
            " JOIN pg_locks l ON l.pid = a.pid AND l.relation = 'schedule_cursors'::regclass"
            " AND l.mode = 'RowShareLock' WHERE a.state LIKE 'idle in transaction%%'",
            scheduler.pid,
        )
        if not held:
            scheduler.thaw()
        return held

    poll(holds_locks, 20, "the scheduler is frozen within a transaction", every_s=0.02)
