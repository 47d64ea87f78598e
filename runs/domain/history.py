"""Does the record of a run explain itself? Its rule: row and attempts must agree, to the counter.

What an attempt did is written twice, in its own row and in the run's, by statements that are
guarded differently; a fault in a guard shows as a disagreement between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, pairwise
from uuid import UUID

from runs.domain.accounting import EDIT_SLACK
from runs.domain.outcome import COUNTS_AS_ATTEMPT, PERMANENT, OutcomeCode
from runs.domain.state import FINAL, HELD, RunStatus
from runs.domain.timeline import Timeline
from runs.domain.violation import Kind, Violation

_FAILURES = COUNTS_AS_ATTEMPT | PERMANENT
# Our troubles: they use none of the customer's attempts.
_LOSSES = frozenset({OutcomeCode.ENGINE_UNREACHABLE, OutcomeCode.LEASE_EXPIRED})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, as recorded. `started_at` and `finished_at` are the engine's, on `node`."""

    attempt: int
    fence: int
    node: str
    go_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    ended_at: datetime | None
    outcome: str
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run with its attempts, in order of their number."""

    job_id: UUID
    run_id: UUID
    scheduled_for: datetime
    trigger: str
    status: str
    due_at: datetime
    ready_at: datetime
    attempt: int
    failures: int
    lease_losses: int
    lease_owner: UUID | None
    fence: int
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    skip_reason: str
    outcome: str
    exit_code: int | None
    attempts: Sequence[Attempt] = ()

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def last(self) -> Attempt | None:
        """The attempt of the run's present number; None while it has not begun."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.attempt == self.attempt else None

    @property
    def touched_at(self) -> datetime | None:
        """When it first had a go, an end or a cancel; None: it has only waited so far."""
        first = self.attempts[0] if self.attempts else None
        began = (first.go_at or first.ended_at) if first is not None else None
        marks = [at for at in (began, self.finished_at, self.cancel_requested_at) if at is not None]
        return min(marks, default=None)


def check_run(
    run: RunRecord, timeline: Timeline | None, *, clock_tolerance: timedelta, max_lease_losses: int
) -> Iterator[Violation]:
    """Everything that a run's own record can show wrong.

    `clock_tolerance`: how far a node's clock may be from the database's. `timeline` None: the job
    is unknown, and what depends on its policies is not judged.
    """
    for kind, facts in chain(
        _row(run),
        _numbers(run),
        _fences(run),
        _time(run, clock_tolerance),
        _attempts_apart(run),
        _counters(run),
        _end(run, timeline, max_lease_losses),
    ):
        yield Violation(kind, facts, job_id=run.job_id, run_id=run.run_id)


Finding = Iterator[tuple[Kind, str]]


def _row(run: RunRecord) -> Finding:
    """What CHECK constraints promise, asked again: somebody may have dropped one."""
    broken = {
        f"status {run.status} is unknown": run.status not in set(RunStatus),
        "final without an end": run.is_final and run.finished_at is None,
        "not final, with an end": not run.is_final and run.finished_at is not None,
        f"{run.status} without owner and fence": run.status in HELD
        and (run.lease_owner is None or run.fence <= 0),
        f"{run.status}, with an owner": (run.is_final or run.status == RunStatus.BLOCKED)
        and run.lease_owner is not None,
        "skipped without a reason": run.status == RunStatus.SKIPPED and not run.skip_reason,
        f"{run.status}, with a reason to skip": run.status != RunStatus.SKIPPED
        and bool(run.skip_reason),
        "due before it was scheduled": run.due_at < run.scheduled_for,
        "ready before it is due": run.ready_at < run.due_at,
    }
    yield from ((Kind.BROKEN_ROW, facts) for facts, is_so in broken.items() if is_so)


def _numbers(run: RunRecord) -> Finding:
    """Attempts are 1 … n; n is the run's number, or one less while that one has not begun."""
    numbers = [each.attempt for each in run.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Kind.ATTEMPT_NUMBERS, f"its attempts are numbered {numbers}"
    elif len(numbers) not in (run.attempt, run.attempt - 1):
        yield Kind.ATTEMPT_NUMBERS, f"{len(numbers)} attempts, and the run says {run.attempt}"
    for each in run.attempts:
        open_number = run.attempt if run.status == RunStatus.RUNNING else None
        if (each.ended_at is None) != (each.attempt == open_number):
            is_open = "has not ended" if each.ended_at is None else "has ended"
            yield Kind.WRONG_END, f"attempt {each.attempt} {is_open}, and the run is {run.status}"
    if run.status == RunStatus.RUNNING and run.last is None:
        yield Kind.WRONG_END, f"it runs, and attempt {run.attempt} is not recorded"
    waits = not run.is_final and run.status != RunStatus.RUNNING
    if waits and run.last is not None:
        yield Kind.ATTEMPT_NUMBERS, f"it is {run.status} for attempt {run.attempt}, which was made"


def _fences(run: RunRecord) -> Finding:
    fences = [each.fence for each in run.attempts]
    if any(later <= earlier for earlier, later in pairwise(fences)):
        yield Kind.FENCE_ORDER, f"its attempts' fences don't grow: {fences}"
    if fences and run.fence < fences[-1]:
        yield Kind.FENCE_ORDER, f"its fence {run.fence} is below its last attempt's {fences[-1]}"


def _time(run: RunRecord, clock_tolerance: timedelta) -> Finding:
    for each in run.attempts:
        name = f"attempt {each.attempt}"
        if each.go_at is not None and each.go_at < run.due_at:
            yield Kind.TOO_EARLY, f"{name} had its go {run.due_at - each.go_at} before it was due"
        if each.started_at is None:
            continue
        allowed_from = each.go_at or run.due_at
        if each.started_at + clock_tolerance < allowed_from:
            early = allowed_from - each.started_at
            yield Kind.TOO_EARLY, f"{name} was started by the engine {early} before its go"
        # An engine notes the start once it has returned: a program of a millisecond ends before.
        ended = each.finished_at
        if ended is not None and ended + clock_tolerance < each.started_at:
            yield Kind.BROKEN_ROW, f"{name} finished before it started"
    last = run.last
    if last is not None and last.go_at is not None and run.due_at <= last.go_at < run.ready_at:
        yield Kind.TOO_EARLY, f"attempt {last.attempt} had its go before its wait was over"


def _attempts_apart(run: RunRecord) -> Finding:
    """No attempt begins before the one before it is over, by the record and by the engine."""
    for earlier, later in pairwise(run.attempts):
        names = f"attempts {earlier.attempt} and {later.attempt}"
        begins = later.go_at or later.ended_at
        if earlier.ended_at is not None and begins is not None and begins < earlier.ended_at:
            yield Kind.ATTEMPTS_OVERLAP, f"{names}: the second began before the first was over"
    ran = [each for each in run.attempts if each.started_at is not None]
    for n, earlier in enumerate(ran):
        for later in ran[n + 1 :]:
            # Of other hosts' clocks nothing can be concluded to the second.
            if later.node == earlier.node and engine_times_overlap(earlier, later):
                names = f"attempts {earlier.attempt} and {later.attempt}"
                yield Kind.ATTEMPTS_OVERLAP, f"{names} ran at once by the engine of {later.node}"


def engine_times_overlap(one: Attempt, other: Attempt) -> bool:
    """Whether two attempts on one node ran at once; an end that nobody recorded proves nothing."""
    if one.started_at is None or other.started_at is None:
        return False
    first, second = (one, other) if one.started_at <= other.started_at else (other, one)
    assert second.started_at is not None
    return first.finished_at is not None and second.started_at < first.finished_at


def _counters(run: RunRecord) -> Finding:
    """The counters say what the attempts say. The last of a cancelled run counts nowhere, save
    as a lease lost when the reaper took it."""
    ended = [each for each in run.attempts if each.ended_at is not None]
    uncounted = run.status == RunStatus.CANCELLED and run.last is not None
    failures = sum(each.outcome in _FAILURES for each in ended[: -1 if uncounted else None])
    losses = sum(each.outcome in _LOSSES for each in ended)
    least_losses = losses - 1 if uncounted and ended[-1].outcome in _LOSSES else losses
    if failures != run.failures:
        yield Kind.WRONG_COUNTERS, f"{failures} attempts failed, and it counts {run.failures}"
    if not least_losses <= run.lease_losses <= losses:
        facts = f"{losses} attempts were lost by us, and it counts {run.lease_losses}"
        yield Kind.WRONG_COUNTERS, facts


def _end(run: RunRecord, timeline: Timeline | None, max_lease_losses: int) -> Finding:
    """Why is it final (or not)? The last attempt or the row's own reason must say so."""
    last = run.last
    succeeded = [each.attempt for each in run.attempts if each.outcome == OutcomeCode.SUCCEEDED]
    if run.status == RunStatus.SUCCEEDED:
        if last is None or last.outcome != OutcomeCode.SUCCEEDED:
            yield Kind.WRONG_END, "it succeeded, and its last attempt did not"
    elif succeeded:
        yield Kind.WRONG_END, f"it is {run.status}, and attempt {succeeded[0]} succeeded"
    elif run.status == RunStatus.FAILED:
        yield from _dead_letter(run, timeline, max_lease_losses)
    elif run.status == RunStatus.CANCELLED:
        if run.cancel_requested_at is None and run.outcome != "job_deleted":
            yield Kind.WRONG_END, "it is cancelled, and nobody asked for that"
    elif run.status == RunStatus.SKIPPED and last is not None:
        yield Kind.WRONG_END, f"it was skipped, and attempt {last.attempt} was made"
    if run.is_final and run.status != RunStatus.SKIPPED and last is not None:
        yield from _same_verdict(run, last)


def _same_verdict(run: RunRecord, last: Attempt) -> Finding:
    if last.outcome != run.outcome:
        facts = f"its outcome is {run.outcome!r}, its last attempt's {last.outcome!r}"
        yield Kind.WRONG_END, facts
    # Of an attempt that the reaper ended nobody knows the code; the run's is an earlier one's.
    elif last.exit_code != run.exit_code and last.outcome != OutcomeCode.LEASE_EXPIRED:
        facts = f"its exit code is {run.exit_code}, its last attempt's {last.exit_code}"
        yield Kind.WRONG_END, facts


def _dead_letter(run: RunRecord, timeline: Timeline | None, max_lease_losses: int) -> Finding:
    last = run.last
    if last is None or last.outcome not in _FAILURES | _LOSSES:
        yield Kind.WRONG_END, "it failed, and its last attempt did not"
        return
    if last.outcome in PERMANENT or timeline is None or run.finished_at is None:
        return
    versions = timeline.around(run.finished_at, EDIT_SLACK)
    if any(version.is_deleted for version in versions):
        return  # runs of a deleted job are not tried again
    if last.outcome in _LOSSES and run.lease_losses < max_lease_losses:
        facts = f"a dead letter after {run.lease_losses} losses of {max_lease_losses}"
        yield Kind.WRONG_END, facts
    allowed = min((each.max_attempts for each in versions), default=1)
    if last.outcome not in _LOSSES and run.failures < allowed:
        facts = f"a dead letter after {run.failures} failures, of {allowed} allowed"
        yield Kind.WRONG_END, facts
