"""Laws of the fair order and of placement, for any tenants, weights and sessions."""

from collections import Counter
from math import ceil
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from runs.domain.placement import OpenSession, TenantShare, WaitingRun, place
from tenants.domain.fairness import TenantLine, fair_order

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
            scheduled_for="2026-12-01 00:00:00+00",
            tenant_id=UUID(int=tenant),
            ready_s=float(offset),
            eta_s=None,
            region="default",
            tier="container",
            is_due=offset <= 0,
            rank=rank,
            attempt=1,
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

    assert len(placements) <= most
    assert len({run.run_id for run, _ in placements}) == len(placements)
    for session in open_sessions:
        mine = [run for run, session_id in placements if session_id == session.session_id]
        due = sum(run.is_due for run in mine)
        buffer = max(1, session.slots // 10)
        assert due <= max(0, session.slots + buffer - session.slots_used)
        assert len(mine) - due <= max(0, session.prepared_limit - session.ahead)


@given(waiting, sessions)
def test_it_is_work_conserving(runs: list[WaitingRun], open_sessions: list[OpenSession]) -> None:
    runs = [run._replace(rank=2 * (run.rank // 2)) for run in runs]  # retries have their own law
    shares = {run.tenant_id: TenantShare(100, 1_000, 0) for run in runs}
    due = [run for run in runs if run.is_due]
    room = sum(max(0, s.slots + max(1, s.slots // 10) - s.slots_used) for s in open_sessions)

    placed_due = place(due, shares, open_sessions, most=1_000)

    assert len(placed_due) == min(len(due), room)


@given(
    waiting,
    sessions,
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 12)), min_size=4, max_size=4),
)
def test_retries_hold_no_more_than_their_part_of_a_tenants_slots_and_go_behind_first_attempts(
    runs: list[WaitingRun], open_sessions: list[OpenSession], facts: list[tuple[int, int]]
) -> None:
    shares = {
        UUID(int=n + 1): TenantShare(100, most, occupied=0, retries=retries)
        for n, (most, retries) in enumerate(facts)
    }
    slots = sum(session.slots for session in open_sessions)

    placed = {run for run, _ in place(runs, shares, open_sessions, most=1_000)}

    for tenant_id, share in shares.items():
        limit = max(1, min(share.most, slots) // 4)
        mine = [run for run in runs if run.tenant_id == tenant_id and run.rank == 1]
        gone = [run for run in mine if run in placed]
        assert len(gone) <= max(0, limit - share.retries)
        latest = max((run.ready_s for run in gone if run.is_due), default=None)
        waiting_earlier = [r for r in mine if r.is_due and r not in placed and latest is not None]
        assert all(run.ready_s >= latest for run in waiting_earlier if latest is not None)
        if any(run.is_due for run in gone):
            live = [r for r in runs if r.tenant_id == tenant_id and r.rank == 0 and r.is_due]
            assert all(run in placed for run in live), "first attempts go before"


@given(waiting, sessions)
def test_runs_ahead_go_by_their_time_and_those_of_one_instant_by_shares(
    runs: list[WaitingRun], open_sessions: list[OpenSession]
) -> None:
    shares = {run.tenant_id: TenantShare(100, 1_000, 0) for run in runs}
    early = [run._replace(is_due=False, rank=0) for run in runs]

    placed = [run for run, _ in place(early, shares, open_sessions, most=1_000)]

    assert [run.ready_s for run in placed] == sorted(run.ready_s for run in early)[: len(placed)]
    left = {run.run_id for run in early} - {run.run_id for run in placed}
    if placed:
        given_of = Counter(run.tenant_id for run in placed)
        last = placed[-1].ready_s
        held_back = {r.tenant_id for r in early if r.run_id in left and r.ready_s == last}
        of_the_last = {run.tenant_id for run in placed if run.ready_s == last}
        for poorer in held_back:
            # Nobody who got one of the last instant's places had more before it.
            assert all(given_of[poorer] >= given_of[other] - 1 for other in of_the_last)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.data())
def test_the_emptiest_session_that_serves_the_kind_takes_the_next_run(
    free: list[int], data: st.DataObject
) -> None:
    kinds = [data.draw(st.sampled_from([["a"], ["b"], ["a", "b"]])) for _ in free]
    open_sessions = [
        OpenSession(UUID(int=n + 1), f"q{n}", "default", tiers, 0, places, 1, 0)
        for n, (places, tiers) in enumerate(zip(free, kinds, strict=True))
    ]
    wanted = data.draw(st.lists(st.sampled_from(["a", "b"]), max_size=80))
    runs = [
        WaitingRun(UUID(int=n + 1), "", UUID(int=1), n, None, "default", tier, False, 0, 1)
        for n, tier in enumerate(wanted)
    ]

    placements = place(runs, {UUID(int=1): TenantShare(1, 1_000, 0)}, open_sessions, most=1_000)

    left = {session.session_id: session.prepared_limit for session in open_sessions}
    placed = dict(placements)
    for run in runs:
        fitting = [s.session_id for s in open_sessions if run.tier in s.tiers]
        most = max((left[session_id] for session_id in fitting), default=0)
        assert (run in placed) == (most > 0)
        if run in placed:
            assert left[placed[run]] == most
            left[placed[run]] -= 1
