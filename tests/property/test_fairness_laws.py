"""Laws of the fair order and of placement, for any tenants, weights and sessions."""

from datetime import UTC, datetime, timedelta
from math import ceil
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from runs.domain.placement import OpenSession, TenantShare, WaitingRun, place
from tenants.domain.fairness import TenantLine, fair_order

T0 = datetime(2026, 12, 1, tzinfo=UTC)

lines = st.lists(
    st.builds(
        lambda weight, occupied, most, waiting: (weight, occupied, most, waiting),
        st.integers(1, 1_000),
        st.integers(0, 50),
        st.integers(0, 60),
        st.integers(0, 40),
    ),
    max_size=8,
)


def to_lines(drawn: list[tuple[int, int, int, int]]) -> list[TenantLine[tuple[int, int]]]:
    return [
        TenantLine(UUID(int=index), weight, occupied, most, [(index, n) for n in range(waiting)])
        for index, (weight, occupied, most, waiting) in enumerate(drawn)
    ]


@given(lines)
def test_everything_that_may_run_is_yielded_once_and_in_its_tenants_order(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    order = list(fair_order(to_lines(drawn)))

    for index, (_, occupied, most, waiting) in enumerate(drawn):
        mine = [n for tenant, n in order if tenant == index]
        assert mine == list(range(min(waiting, max(0, most - occupied))))


@given(lines)
def test_each_next_slot_goes_to_the_smallest_share(drawn: list[tuple[int, int, int, int]]) -> None:
    occupied = [line[1] for line in drawn]
    left = [min(line[3], max(0, line[2] - line[1])) for line in drawn]

    for tenant, _ in fair_order(to_lines(drawn)):
        share = occupied[tenant] / drawn[tenant][0]
        assert all(
            share <= occupied[other] / drawn[other][0]
            for other in range(len(drawn))
            if left[other] > 0
        )
        occupied[tenant] += 1
        left[tenant] -= 1


@given(
    st.integers(1, 100),
    st.lists(st.integers(1, 100), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_a_tenant_with_one_waiting_run_starts_within_its_bound_of_turnovers(
    weight: int, others: list[int], slots: int
) -> None:
    """With Σw the weights of those with work: at most ⌈Σw ÷ (w × slots)⌉ turnovers of all slots."""
    flood = 10_000
    tenants = [TenantLine(UUID(int=0), weight, 0, flood, ["mine"])] + [
        TenantLine(UUID(int=n + 1), other, 0, flood, ["theirs"] * 1_000)
        for n, other in enumerate(others)
    ]
    position = list(fair_order(tenants)).index("mine")

    turnovers = ceil((weight + sum(others)) / (weight * slots))
    assert position <= turnovers * slots + len(others)


sessions = st.lists(
    st.builds(
        lambda n, slots, used, prepared, ahead: OpenSession(
            session_id=UUID(int=n),
            queue=f"q{n}",
            region="default",
            tiers=["container"],
            slots=slots,
            prepared_limit=prepared,
            slots_used=used,
            ahead=ahead,
        ),
        st.integers(1, 1_000_000),
        st.integers(1, 30),
        st.integers(0, 40),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    max_size=5,
    unique_by=lambda session: session.session_id,
)
waiting = st.lists(
    st.builds(
        lambda n, tenant, offset, rank: WaitingRun(
            run_id=UUID(int=n),
            scheduled_for=T0,
            tenant_id=UUID(int=tenant),
            ready_at=T0 + timedelta(seconds=offset),
            region="default",
            tier="container",
            is_due=offset <= 0,
            rank=rank,
        ),
        st.integers(1, 1_000_000),
        st.integers(1, 4),
        st.integers(-60, 60),
        st.integers(0, 2),
    ),
    max_size=60,
    unique_by=lambda run: run.run_id,
)


@given(waiting, sessions, st.integers(1, 100))
def test_no_session_gets_more_than_its_room_and_no_run_is_placed_twice(
    runs: list[WaitingRun], open_sessions: list[OpenSession], most: int
) -> None:
    shares = {run.tenant_id: TenantShare(100, 1_000, 0) for run in runs}

    placements = place(runs, shares, open_sessions, most=most)

    by_id = {run.run_id: run for run in runs}
    assert len(placements) <= most
    assert len({placement.run_id for placement in placements}) == len(placements)
    for session in open_sessions:
        mine = [by_id[p.run_id] for p in placements if p.session_id == session.session_id]
        due = sum(run.is_due for run in mine)
        buffer = max(1, session.slots // 10)
        assert due <= max(0, session.slots + buffer - session.slots_used)
        assert len(mine) - due <= max(0, session.prepared_limit - session.ahead)


@given(waiting, sessions)
def test_it_is_work_conserving(runs: list[WaitingRun], open_sessions: list[OpenSession]) -> None:
    shares = {run.tenant_id: TenantShare(100, 1_000, 0) for run in runs}
    due = [run for run in runs if run.is_due]
    room = sum(max(0, s.slots + max(1, s.slots // 10) - s.slots_used) for s in open_sessions)

    placed_due = place(due, shares, open_sessions, most=1_000)

    assert len(placed_due) == min(len(due), room)
