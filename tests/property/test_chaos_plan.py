"""Laws of the plan of faults: repeatable, inside the fault model, and with every kind in it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.campaign import LEASE
from tests.chaos.plan import Fault, FaultClass, Kind, all_faults, plan_faults

seeds = st.integers(0, 10**9)
lengths = st.integers(1, 900)
classes = st.sampled_from(FaultClass)

OF_SINGLE = set(Kind) - {Kind.WORKER_ASLEEP}
OF_A_NODE = {
    Kind.WORKER_ASLEEP,
    Kind.WORKER_KILLED,
    Kind.WORKER_FROZEN,
    Kind.WARDEN_KILLED,
    Kind.WARDEN_FROZEN,
    Kind.ENGINE_RESTARTED,
    Kind.ENGINE_FROZEN,
}


def of_a_node(faults: list[Fault]) -> list[Fault]:
    return [fault for fault in faults if fault.kind in OF_A_NODE]


@given(seeds, lengths, classes)
def test_a_seed_gives_the_same_plan_again(seed: int, seconds: int, of: FaultClass) -> None:
    assert plan_faults(seed, seconds, LEASE, of) == plan_faults(seed, seconds, LEASE, of)


@given(seeds, lengths, classes)
def test_every_fault_is_healed_within_the_time(seed: int, seconds: int, of: FaultClass) -> None:
    for fault in all_faults(plan_faults(seed, seconds, LEASE, of)):
        assert fault.at_s >= 0
        assert fault.lasts_s >= 0
        assert fault.at_s + fault.lasts_s <= seconds


@given(seeds, lengths)
def test_on_a_node_one_thing_fails_at_a_time_and_has_settled_before_the_next(
    seed: int, seconds: int
) -> None:
    faults = of_a_node(all_faults(plan_faults(seed, seconds, LEASE)))
    for earlier, later in pairwise(faults):
        assert later.at_s >= earlier.over_s
        if earlier.kind is Kind.WORKER_KILLED:  # its containers are dead by the warden's hand
            assert later.at_s - earlier.at_s >= LEASE.lease_s - LEASE.warden_margin_s


@given(seeds, lengths, classes)
def test_within_a_lane_no_two_faults_overlap(seed: int, seconds: int, of: FaultClass) -> None:
    for lane in plan_faults(seed, seconds, LEASE, of).values():
        for earlier, later in pairwise(lane):
            assert later.at_s >= earlier.at_s + earlier.lasts_s


@pytest.mark.parametrize(("seconds", "faults", "kinds"), [(300, 100, len(OF_SINGLE)), (60, 20, 8)])
@given(seed=seeds)
def test_there_are_faults_enough(seconds: int, faults: int, kinds: int, seed: int) -> None:
    planned = all_faults(plan_faults(seed, seconds, LEASE))
    assert len(planned) >= faults
    assert len({fault.kind for fault in planned}) >= kinds


@given(seeds)
def test_double_faults_overlap_on_the_node(seed: int) -> None:
    faults = of_a_node(all_faults(plan_faults(seed, 300, LEASE, FaultClass.DOUBLE)))
    together = [
        (earlier, later)
        for earlier, later in pairwise(faults)
        if later.at_s < earlier.at_s + earlier.lasts_s
    ]
    assert len(together) >= 5
