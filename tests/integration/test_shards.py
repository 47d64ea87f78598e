"""Shard leases: every shard has one owner, owners come and go, and an old term renews nothing."""

from uuid import UUID

import pytest
from django.db import connection

from runs.models import ShardLease
from runs.shards import ShardLeases
from tests.support.racing import race

pytestmark = pytest.mark.django_db


def let_end(owner: UUID) -> None:
    """The owner's leases end, as if its process had died or frozen."""
    with connection.cursor() as cursor:
        for table in ("shard_leases", "scheduler_processes"):
            cursor.execute(
                f"UPDATE {table} SET expires_at = now() - interval '1 second' WHERE owner = %s",
                [owner],
            )


def settle(*processes: ShardLeases) -> None:
    """Let each process tick until nothing has changed for two rounds: one is for announcements."""
    quiet = 0
    for _ in range(8):
        changes = [sum(process.tick().values()) for process in processes]
        quiet = 0 if any(changes) else quiet + 1
        if quiet == 2:
            return
    raise AssertionError(f"shards still move after eight rounds: {changes}")


def test_a_process_alone_takes_every_shard() -> None:
    alone = ShardLeases()

    settle(alone)

    assert alone.held() == list(range(64))


def test_three_processes_share_the_shards_evenly_and_each_has_one_owner() -> None:
    processes = [ShardLeases() for _ in range(3)]

    settle(*processes)

    held = [process.held() for process in processes]
    assert sorted(len(shards) for shards in held) == [21, 21, 22]
    assert sorted(shard for shards in held for shard in shards) == list(range(64))


def test_a_newcomer_is_given_its_share_and_a_graceful_stop_gives_it_back() -> None:
    first, second = ShardLeases(), ShardLeases()
    settle(first)
    settle(first, second)
    assert (len(first.held()), len(second.held())) == (32, 32)

    second.resign_all()

    assert second.held() == []
    settle(first)
    assert first.held() == list(range(64))


def test_the_shards_of_a_dead_process_are_taken_under_a_new_term() -> None:
    dead, living = ShardLeases(), ShardLeases()
    settle(dead, living)
    before = {row.shard: row.term for row in ShardLease.objects.filter(owner=dead.owner)}

    let_end(dead.owner)
    settle(living)

    assert living.held() == list(range(64))
    after = {row.shard: row.term for row in ShardLease.objects.filter(shard__in=before)}
    assert all(after[shard] == term + 1 for shard, term in before.items())


def test_a_process_that_comes_back_after_its_term_has_lost_its_shards() -> None:
    frozen, other = ShardLeases(), ShardLeases()
    settle(frozen)
    let_end(frozen.owner)
    settle(other)
    assert other.held() == list(range(64))

    assert frozen.tick()["lost"] == 64

    held_by_both = set(frozen.held()) & set(other.held())
    assert held_by_both == set()


def test_an_ended_lease_is_not_renewed_although_nobody_took_it() -> None:
    late = ShardLeases()
    settle(late)
    let_end(late.owner)

    counts = late.tick()

    assert (counts["lost"], counts["taken"]) == (64, 64)
    assert set(ShardLease.objects.values_list("term", flat=True)) == {2}


def test_a_process_that_cannot_renew_stops_believing_in_its_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases = ShardLeases()
    now = 1_000.0
    monkeypatch.setattr("runs.shards._boottime_s", lambda: now)
    settle(leases)
    assert len(leases.held()) == 64

    now += 6.0

    assert leases.held() == []


def test_fewer_shards_in_the_settings_leave_the_rest_alone(settings: object) -> None:
    settings.SHARDS = 8  # type: ignore[attr-defined]
    process = ShardLeases()

    settle(process)

    assert process.held() == list(range(8))


@pytest.mark.django_db(transaction=True)
def test_processes_that_start_in_the_same_moment_never_hold_one_shard_together() -> None:
    processes = [ShardLeases() for _ in range(4)]

    race([process.tick for process in processes])

    owned = [shard for process in processes for shard in process.held()]
    assert len(owned) == len(set(owned))
    settle(*processes)
    assert sorted(len(process.held()) for process in processes) == [16] * 4
