"""How an attempt is judged: a table, and two laws over every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.exit_codes import ExitCodes
from runs.domain.outcome import (
    COUNTS_AS_ATTEMPT,
    PERMANENT,
    OutcomeCode,
    StopReason,
    classify,
    judge_exit,
    outcome,
    signal_name,
    signal_of_exit,
)


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "stopped_for", "engine_error", "expected"),
    [
        (0, False, None, None, OutcomeCode.SUCCEEDED),
        (1, False, None, None, OutcomeCode.NON_ZERO_EXIT),
        (127, False, None, None, OutcomeCode.NON_ZERO_EXIT),
        (255, False, None, None, OutcomeCode.NON_ZERO_EXIT),
        (137, False, None, None, OutcomeCode.SIGNAL),
        (143, False, None, None, OutcomeCode.SIGNAL),
        (139, False, None, None, OutcomeCode.SIGNAL),
        # A killed child is no failure of a program that copes, and no excuse for another.
        (137, True, None, None, OutcomeCode.OUT_OF_MEMORY),
        (0, True, None, None, OutcomeCode.SUCCEEDED),
        (5, True, None, None, OutcomeCode.NON_ZERO_EXIT),
        (143, True, None, None, OutcomeCode.SIGNAL),
        # What we stopped was stopped, whatever it answered.
        (137, False, StopReason.TIMEOUT, None, OutcomeCode.TIMED_OUT),
        (0, False, StopReason.TIMEOUT, None, OutcomeCode.TIMED_OUT),
        (137, True, StopReason.TIMEOUT, None, OutcomeCode.TIMED_OUT),
        (137, False, StopReason.LEASE_LOST, None, OutcomeCode.LEASE_EXPIRED),
        (143, False, StopReason.CANCEL, None, OutcomeCode.CANCELLED),
        (None, False, StopReason.CANCEL, OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.CANCELLED),
        (None, False, None, None, OutcomeCode.LEASE_EXPIRED),
        (127, False, None, OutcomeCode.BAD_COMMAND, OutcomeCode.BAD_COMMAND),
        (143, False, None, OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.ENGINE_UNREACHABLE),
    ],
)
def test_an_ended_container_gets_the_code_of_whoever_ended_it(
    exit_code: int | None,
    oom_killed: bool,
    stopped_for: StopReason | None,
    engine_error: OutcomeCode | None,
    expected: OutcomeCode,
) -> None:
    verdict = classify(
        exit_code=exit_code,
        signal=signal_of_exit(exit_code),
        oom_killed=oom_killed,
        stopped_for=stopped_for,
        engine_error=engine_error,
    )
    assert verdict.code is expected
    assert verdict.message


def test_permanent_and_our_own_failures_use_no_attempt_of_the_customers() -> None:
    assert PERMANENT.isdisjoint(COUNTS_AS_ATTEMPT)
    ours = {OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.LEASE_EXPIRED, OutcomeCode.CANCELLED}
    assert ours.isdisjoint(COUNTS_AS_ATTEMPT | PERMANENT)


def test_every_code_but_success_is_in_exactly_one_class() -> None:
    ours = {OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.LEASE_EXPIRED, OutcomeCode.CANCELLED}
    free = {OutcomeCode.SUCCEEDED, OutcomeCode.IGNORED_EXIT}
    assert set(OutcomeCode) == free | PERMANENT | COUNTS_AS_ATTEMPT | ours


CODES = ExitCodes(fail=("64-78", "2"), ignore=("75-0", "99", "137"))


@pytest.mark.parametrize(
    ("code", "exit_code", "ignored", "expected"),
    [
        (OutcomeCode.NON_ZERO_EXIT, 64, 0, OutcomeCode.FATAL_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 78, 0, OutcomeCode.FATAL_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 2, 0, OutcomeCode.FATAL_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 79, 0, OutcomeCode.NON_ZERO_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 99, 0, OutcomeCode.IGNORED_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 99, 99, OutcomeCode.IGNORED_EXIT),
        (OutcomeCode.NON_ZERO_EXIT, 99, 100, OutcomeCode.NON_ZERO_EXIT),
        (OutcomeCode.SIGNAL, 137, 0, OutcomeCode.IGNORED_EXIT),
        (OutcomeCode.SUCCEEDED, 0, 0, OutcomeCode.SUCCEEDED),
        # What we or the kernel stopped is not the program's own word.
        (OutcomeCode.OUT_OF_MEMORY, 137, 0, OutcomeCode.OUT_OF_MEMORY),
        (OutcomeCode.TIMED_OUT, 2, 0, OutcomeCode.TIMED_OUT),
        (OutcomeCode.LEASE_EXPIRED, 99, 0, OutcomeCode.LEASE_EXPIRED),
        (OutcomeCode.BAD_COMMAND, None, 0, OutcomeCode.BAD_COMMAND),
    ],
)
def test_a_job_says_what_its_exit_codes_mean(
    code: OutcomeCode, exit_code: int | None, ignored: int, expected: OutcomeCode
) -> None:
    judged = judge_exit(outcome(code, "said"), exit_code, CODES, ignored=ignored)
    assert judged.code is expected
    assert judged.permanent == (expected in PERMANENT)


def test_an_unanswering_registry_may_be_an_exception_to_its_codes_class() -> None:
    verdict = outcome(
        OutcomeCode.IMAGE_NOT_FOUND, "silence", permanent=False, counts_as_attempt=True
    )
    assert (verdict.permanent, verdict.counts_as_attempt) == (False, True)


def test_the_message_tells_a_killed_child_and_names_the_signal() -> None:
    assert "killed for memory" in classify(exit_code=5, oom_killed=True).message
    assert "SIGSEGV" in classify(exit_code=139, signal=11).message


@pytest.mark.parametrize(
    ("exit_code", "signal"), [(None, None), (0, None), (128, None), (137, 9), (255, None)]
)
def test_exit_codes_that_stand_for_signals(exit_code: int | None, signal: int | None) -> None:
    assert signal_of_exit(exit_code) == signal


def test_a_signal_without_a_name_has_a_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"


@given(
    exit_code=st.none() | st.integers(0, 255),
    oom_killed=st.booleans(),
    reason=st.sampled_from(StopReason),
)
def test_what_we_stopped_is_never_a_failure_of_the_programs(
    exit_code: int | None, oom_killed: bool, reason: StopReason
) -> None:
    verdict = classify(
        exit_code=exit_code,
        signal=signal_of_exit(exit_code),
        oom_killed=oom_killed,
        stopped_for=reason,
    )
    assert verdict.code in {
        OutcomeCode.TIMED_OUT,
        OutcomeCode.LEASE_EXPIRED,
        OutcomeCode.CANCELLED,
    }


@given(exit_code=st.integers(1, 255), oom_killed=st.booleans())
def test_what_ended_by_itself_with_an_error_always_counts(exit_code: int, oom_killed: bool) -> None:
    verdict = classify(exit_code=exit_code, signal=signal_of_exit(exit_code), oom_killed=oom_killed)
    assert verdict.counts_as_attempt
    assert not verdict.permanent
