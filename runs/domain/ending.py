"""What follows the end of an attempt: success, another try, another worker, or a dead letter?"""

from dataclasses import dataclass

from runs.domain.backoff import RetryPolicy, backoff_s
from runs.domain.outcome import Outcome, OutcomeCode
from runs.domain.state import RunStatus

# Our own trouble (engine, lease): the run goes to another worker after a breath that doubles with
# each trouble, so that a broken node cannot spin.
_TROUBLE_BASE_S = 1.0
_TROUBLE_LONGEST_S = 60.0


@dataclass(frozen=True)
class Ending:
    """The run's next state, what its counters gain, and how long it waits when queued again."""

    status: RunStatus
    attempt_step: int = 0
    failure_step: int = 0
    loss_step: int = 0
    wait_s: float = 0.0


def decide_ending(
    outcome: Outcome,
    policy: RetryPolicy,
    *,
    failures: int,
    losses: int,
    max_losses: int,
    may_run_again: bool,
    cancel_requested: bool,
    random_unit: float,
    ignored: int = 0,
) -> Ending:
    """Decide from how an attempt ended.

    `failures` and `losses` count the run's failed attempts and our own troubles before this one;
    `may_run_again` is False for a deleted job, whose runs are not tried again. `random_unit` in
    [0, 1) is the jitter; `ignored` tries before this one make the waits longer, too. A container
    that succeeded has succeeded, whatever was asked meanwhile.
    """
    if outcome.code is OutcomeCode.SUCCEEDED:
        return Ending(RunStatus.SUCCEEDED)
    if outcome.code is OutcomeCode.CANCELLED or cancel_requested:
        return Ending(RunStatus.CANCELLED)
    if outcome.permanent:
        return Ending(RunStatus.FAILED, failure_step=1)
    if outcome.code is OutcomeCode.IGNORED_EXIT and may_run_again:
        wait_s = backoff_s(policy, failures + ignored + 1, random_unit)
        return Ending(RunStatus.QUEUED, attempt_step=1, wait_s=wait_s)
    if not outcome.counts_as_attempt:
        return _after_trouble(losses + 1, max_losses, may_run_again)
    if failures + 1 >= policy.max_attempts or not may_run_again:
        return Ending(RunStatus.FAILED, failure_step=1)
    wait_s = backoff_s(policy, failures + ignored + 1, random_unit)
    return Ending(RunStatus.QUEUED, attempt_step=1, failure_step=1, wait_s=wait_s)


def _after_trouble(losses: int, max_losses: int, may_run_again: bool) -> Ending:
    """Our trouble uses none of the customer's attempts, but it does not go on for ever."""
    if losses >= max_losses or not may_run_again:
        return Ending(RunStatus.FAILED, loss_step=1)
    wait_s = min(_TROUBLE_BASE_S * 2.0 ** (losses - 1), _TROUBLE_LONGEST_S)
    return Ending(RunStatus.QUEUED, attempt_step=1, loss_step=1, wait_s=wait_s)
