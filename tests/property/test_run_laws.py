"""Laws of runs: states, backoff, endings and ids."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.exit_codes import ExitCodes
from runs.domain.backoff import RetryPolicy, backoff_s
from runs.domain.ending import decide_ending
from runs.domain.outcome import MOST_IGNORED, OutcomeCode, judge_exit, outcome
from runs.domain.run_id import make_run_id, scheduled_for_of, to_milliseconds
from runs.domain.state import FINAL, RunStatus, may_follow

units = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 20),
    backoff=st.sampled_from(["exponential", "fixed"]),
    base_s=st.floats(0.1, 1_000),
    max_s=st.floats(0.1, 86_400),
    jitter=st.sampled_from(["full", "none"]),
)


@given(policies, st.integers(1, 100_000), units)
def test_a_backoff_is_never_negative_never_above_its_cap(
    policy: RetryPolicy, failures: int, unit: float
) -> None:
    assert 0 <= backoff_s(policy, failures, unit) <= policy.max_s


@given(policies)
def test_without_jitter_a_backoff_never_shrinks(policy: RetryPolicy) -> None:
    plain = RetryPolicy(policy.max_attempts, policy.backoff, policy.base_s, policy.max_s, "none")
    waits = [backoff_s(plain, failures, 0.5) for failures in range(1, 80)]

    assert all(before <= after for before, after in pairwise(waits))


@given(
    st.sampled_from(OutcomeCode),
    policies,
    st.integers(0, 25),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
    units,
)
def test_every_ending_may_follow_running_and_counts_what_it_should(
    code: OutcomeCode,
    policy: RetryPolicy,
    failures: int,
    losses: int,
    may_run_again: bool,
    cancel_requested: bool,
    unit: float,
) -> None:
    verdict = outcome(code, code.value)

    ending = decide_ending(
        verdict,
        policy,
        failures=failures,
        losses=losses,
        max_losses=5,
        may_run_again=may_run_again,
        cancel_requested=cancel_requested,
        random_unit=unit,
    )

    assert may_follow(RunStatus.RUNNING, ending.status)
    assert (ending.status is RunStatus.SUCCEEDED) == (code is OutcomeCode.SUCCEEDED)
    assert ending.attempt_step == (ending.status is RunStatus.QUEUED)
    if ending.status is RunStatus.QUEUED:
        assert may_run_again
        assert not cancel_requested
        assert not verdict.permanent
        assert failures + ending.failure_step < policy.max_attempts or not ending.failure_step
    if not verdict.counts_as_attempt and not verdict.permanent:
        assert ending.failure_step == 0, "our own trouble uses none of the customer's attempts"


@given(
    st.lists(st.tuples(st.sampled_from(OutcomeCode), units), min_size=1, max_size=60).filter(
        lambda events: all(code is not OutcomeCode.IGNORED_EXIT for code, _ in events)
    ),
    policies,
)
def test_any_sequence_of_endings_stays_in_the_state_table_and_comes_to_an_end(
    events: list[tuple[OutcomeCode, float]], policy: RetryPolicy
) -> None:
    status, failures, losses, attempts = RunStatus.QUEUED, 0, 0, 0
    for code, unit in events:
        if status in FINAL:
            break
        attempts += 1
        ending = decide_ending(
            outcome(code, ""),
            policy,
            failures=failures,
            losses=losses,
            max_losses=5,
            may_run_again=True,
            cancel_requested=False,
            random_unit=unit,
        )
        status, failures, losses = (
            ending.status,
            failures + ending.failure_step,
            losses + ending.loss_step,
        )
    assert failures <= policy.max_attempts
    assert attempts <= policy.max_attempts + 5
    assert status in FINAL or attempts == len(events)


@given(st.lists(st.sampled_from([1, 64, 99]), min_size=130, max_size=130), policies)
def test_ignored_tries_use_no_attempt_and_still_come_to_an_end(
    exits: list[int], policy: RetryPolicy
) -> None:
    codes = ExitCodes(fail=("64",), ignore=("99",))
    status, failures, ignored = RunStatus.QUEUED, 0, 0
    for exit_code in exits + [99] * (MOST_IGNORED + policy.max_attempts):
        if status in FINAL:
            break
        failed = outcome(OutcomeCode.NON_ZERO_EXIT, "")
        verdict = judge_exit(failed, exit_code, codes, ignored=ignored)
        ending = decide_ending(
            verdict, policy, failures=failures, losses=0, max_losses=5, may_run_again=True,
            cancel_requested=False, random_unit=0.5, ignored=ignored,
        )  # fmt: skip
        if verdict.code is OutcomeCode.IGNORED_EXIT:
            assert (ending.status, ending.failure_step) == (RunStatus.QUEUED, 0)
            ignored += 1
        if exit_code == 64:
            assert ending.status is RunStatus.FAILED
        status, failures = ending.status, failures + ending.failure_step
    assert status is RunStatus.FAILED
    assert ignored <= MOST_IGNORED
    assert failures <= policy.max_attempts


instants = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    to_milliseconds
)


@given(instants, st.binary(min_size=10, max_size=10))
def test_a_run_id_is_a_version_7_uuid_that_carries_its_instant(
    scheduled_for: datetime, random_bytes: bytes
) -> None:
    run_id = make_run_id(scheduled_for, random_bytes)

    assert run_id.version == 7
    assert run_id.variant == "specified in RFC 4122"
    assert scheduled_for_of(run_id) == scheduled_for


@given(instants, instants, st.binary(min_size=10, max_size=10))
def test_run_ids_sort_as_their_instants_do(
    one: datetime, other: datetime, random_bytes: bytes
) -> None:
    first, second = make_run_id(one, random_bytes), make_run_id(other, random_bytes)

    assert (first < second) == (one < other)


@given(st.uuids())
def test_any_id_gives_some_instant_and_no_error(run_id: object) -> None:
    assert scheduled_for_of(run_id).tzinfo is UTC  # type: ignore[arg-type]


def test_an_instant_finer_than_a_millisecond_has_no_run_id() -> None:
    with pytest.raises(ValueError, match="finer than a millisecond"):
        make_run_id(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1), bytes(10))
