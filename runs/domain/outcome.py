"""What became of an attempt: one code per way a container's try can end.

Owns the rule that a container stopped by us is never blamed on the customer, and the reverse:
what the customer's program did is never blamed on us.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import StrEnum

from jobs.domain.exit_codes import ExitCodes

# An init that reports a child killed by signal n exits with 128 + n, as a shell does.
SIGNAL_EXIT_BASE = 128
SIGKILL_EXIT = SIGNAL_EXIT_BASE + signals.SIGKILL


class OutcomeCode(StrEnum):
    """Stable codes: they are stored, shown by the API and matched by customers."""

    SUCCEEDED = "succeeded"
    NON_ZERO_EXIT = "non_zero_exit"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    SIGNAL = "signal"
    IMAGE_NOT_FOUND = "image_not_found"
    PULL_DENIED = "pull_denied"
    BAD_COMMAND = "bad_command"
    PERMISSION_DENIED = "permission_denied"
    ENGINE_UNREACHABLE = "engine_unreachable"
    LEASE_EXPIRED = "lease_expired"
    CANCELLED = "cancelled"
    # By the job's own word on exit codes.
    FATAL_EXIT = "fatal_exit"
    IGNORED_EXIT = "ignored_exit"


# Trying again cannot help until the customer changes the job.
PERMANENT = frozenset(
    {
        OutcomeCode.IMAGE_NOT_FOUND,
        OutcomeCode.PULL_DENIED,
        OutcomeCode.BAD_COMMAND,
        OutcomeCode.PERMISSION_DENIED,
        OutcomeCode.FATAL_EXIT,
    }
)

# The customer's program ran and failed: these use up `max_attempts`. Our troubles never do.
COUNTS_AS_ATTEMPT = frozenset(
    {
        OutcomeCode.NON_ZERO_EXIT,
        OutcomeCode.TIMED_OUT,
        OutcomeCode.OUT_OF_MEMORY,
        OutcomeCode.SIGNAL,
    }
)


_NO_FAILURES = frozenset({OutcomeCode.SUCCEEDED, OutcomeCode.CANCELLED, OutcomeCode.IGNORED_EXIT})
# What the last attempt of a dead letter may have come to.
FAILED_OUTCOMES = [code.value for code in OutcomeCode if code not in _NO_FAILURES]
# The ends that a program chooses itself: what a job says about exit codes is about these.
_OWN_EXITS = frozenset({OutcomeCode.NON_ZERO_EXIT, OutcomeCode.SIGNAL})
# So many tries of a run may be ignored; from then on they count, or one that always ends so would
# be run for ever.
MOST_IGNORED = 100


class StopReason(StrEnum):
    """Why we stopped a container that had not ended by itself."""

    TIMEOUT = "timeout"
    LEASE_LOST = "lease_lost"
    CANCEL = "cancel"


_STOPPED: dict[StopReason, tuple[OutcomeCode, str]] = {
    StopReason.TIMEOUT: (OutcomeCode.TIMED_OUT, "stopped at its time limit"),
    StopReason.LEASE_LOST: (OutcomeCode.LEASE_EXPIRED, "stopped because its lease had run out"),
    StopReason.CANCEL: (OutcomeCode.CANCELLED, "stopped because somebody cancelled it"),
}


@dataclass(frozen=True)
class Outcome:
    """The verdict on one attempt.

    `permanent`: trying again cannot help. `counts_as_attempt`: it uses one of the customer's
    `max_attempts`. `message`: one sentence for the customer, without secrets.
    """

    code: OutcomeCode
    permanent: bool
    counts_as_attempt: bool
    message: str


def outcome(
    code: OutcomeCode,
    message: str,
    *,
    permanent: bool | None = None,
    counts_as_attempt: bool | None = None,
) -> Outcome:
    """An outcome with its code's usual retry class, or the one given instead."""
    return Outcome(
        code=code,
        permanent=code in PERMANENT if permanent is None else permanent,
        counts_as_attempt=code in COUNTS_AS_ATTEMPT
        if counts_as_attempt is None
        else counts_as_attempt,
        message=message,
    )


def classify(
    *,
    exit_code: int | None,
    signal: int | None = None,
    oom_killed: bool = False,
    stopped_for: StopReason | None = None,
    engine_error: OutcomeCode | None = None,
    detail: str = "",
) -> Outcome:
    """The verdict on a container that has ended.

    `stopped_for` is set when *we* sent the signal: it wins over whatever the program returned,
    because a program that answers TERM with exit 0 was stopped all the same. `engine_error`
    is the engine's own failure (`detail` its sentence). `exit_code` None: the container is
    gone and nobody saw how it ended, which only the warden does, after the lease.
    """
    if stopped_for is not None:
        return outcome(*_STOPPED[stopped_for])
    if engine_error is not None:
        return outcome(engine_error, detail or engine_error.value.replace("_", " "))
    if exit_code is None:
        return outcome(OutcomeCode.LEASE_EXPIRED, detail or "the container was removed")
    if exit_code == 0:
        # Before the memory flag: it also stands when only a child was killed and the main
        # process coped, and a program that says it succeeded has.
        return outcome(OutcomeCode.SUCCEEDED, "exit code 0")
    if oom_killed and exit_code == SIGKILL_EXIT:
        return outcome(OutcomeCode.OUT_OF_MEMORY, "killed for using more than its memory")
    if signal is not None:
        return outcome(OutcomeCode.SIGNAL, f"ended by {signal_name(signal)}")
    note = "; one of its processes was killed for memory" if oom_killed else ""
    return outcome(OutcomeCode.NON_ZERO_EXIT, f"exit code {exit_code}{note}")


def judge_exit(
    verdict: Outcome, exit_code: int | None, codes: ExitCodes, *, ignored: int
) -> Outcome:
    """The verdict as the job wants its exit codes read; `ignored` tries of the run were before.

    What we or the kernel stopped keeps its own verdict: that code was not the program's choice.
    """
    if verdict.code not in _OWN_EXITS or exit_code is None:
        return verdict
    if codes.fails(exit_code):
        return outcome(OutcomeCode.FATAL_EXIT, f"{verdict.message}, by which the job fails")
    if codes.ignores(exit_code) and ignored < MOST_IGNORED:
        return outcome(OutcomeCode.IGNORED_EXIT, f"{verdict.message}, which the job ignores")
    return verdict


def signal_of_exit(exit_code: int | None) -> int | None:
    """The signal that an exit code stands for (137 → 9), or None when it stands for none."""
    if exit_code is None:
        return None
    number = exit_code - SIGNAL_EXIT_BASE
    return number if number in _SIGNAL_NUMBERS else None


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 40` for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


_SIGNAL_NUMBERS = frozenset(int(number) for number in signals.valid_signals())
