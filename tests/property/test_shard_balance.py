"""Laws of the balance: it settles, evenly, and never takes from the living."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from runs.domain.shard_balance import balance

ids = st.integers(1, 40).map(lambda n: UUID(int=n))


@given(
    st.lists(ids, min_size=1, max_size=9, unique=True),
    st.lists(st.none() | ids, min_size=1, max_size=80),
)
def test_any_owners_settle_into_even_shares_that_cover_every_shard(
    live: list[UUID], start: list[UUID | None]
) -> None:
    owners = dict(enumerate(start))
    for _ in range(3):
        for me in live:
            change = balance(me, owners, live)
            assert all(owners[shard] not in live for shard in change.take)
            assert all(owners[shard] == me for shard in change.resign)
            owners |= dict.fromkeys(change.resign, None) | dict.fromkeys(change.take, me)

    shares = [sum(owner == me for owner in owners.values()) for me in live]
    assert sum(shares) == len(owners)
    assert max(shares) - min(shares) <= 1


@given(st.lists(ids, min_size=1, max_size=9, unique=True), st.integers(1, 80))
def test_a_settled_fleet_does_not_move(live: list[UUID], shards: int) -> None:
    owners: dict[int, UUID | None] = dict.fromkeys(range(shards), None)
    for _ in range(2):
        for me in live:
            change = balance(me, owners, live)
            owners |= dict.fromkeys(change.resign, None) | dict.fromkeys(change.take, me)

    assert all(not balance(me, owners, live).take for me in live)
    assert all(not balance(me, owners, live).resign for me in live)
