"""Counts what became of runs; each function is called after the commit of what it counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from runs.domain.outcome import OutcomeCode
from runs.domain.state import FINAL, RunStatus
from scheduler_project.lib.metrics import count, observe

if TYPE_CHECKING:
    from runs.domain.ending import Ending
    from runs.domain.planning import PlannedRun
    from runs.leases import Completion

_NO_FAILURES = (OutcomeCode.SUCCEEDED, OutcomeCode.CANCELLED, OutcomeCode.IGNORED_EXIT)


def count_planned(planned: Sequence[PlannedRun], created: int) -> None:
    """Count planned occurrences of which `created` had no row before."""
    count("runs_planned_total", created)
    skipped = sum(run.status == RunStatus.SKIPPED for run in planned)
    # Which of them had a row already isn't known: rather too few than one twice.
    count_final(RunStatus.SKIPPED, max(0, skipped - (len(planned) - created)))


def count_starts(rows: Iterable[Any]) -> None:
    """Count the starts that `record_starts` noted; `lag_s` is null when it wasn't the first."""
    for row in rows:
        _count_start(row, row.lag_s)


def count_endings(taken: Sequence[tuple[Completion, Any, Ending]]) -> None:
    """Count completions that were written, with the rows as they were before."""
    for completion, row, ending in taken:
        # A short run may end before its start was noted: the completion says it then.
        if row.started_at is None and completion.started_at is not None:
            due_at = row.first_due_at
            lag_s = None if due_at is None else (completion.started_at - due_at).total_seconds()
            _count_start(row, lag_s)
        code = completion.outcome.code
        count("run_failures_total", code not in _NO_FAILURES)
        count("lease_expiries_total", code is OutcomeCode.LEASE_EXPIRED)
        count_next(ending.status)


def count_reaped(rows: Iterable[Any]) -> None:
    """Count running runs that the reaper took from dead sessions."""
    for row in rows:
        count("run_failures_total")
        count("lease_expiries_total")
        count_next(RunStatus(row.status))


def count_next(status: RunStatus) -> None:
    """Count what followed an attempt: another one, or the run's end."""
    if status in FINAL:
        count_final(status)
    else:
        count("run_retries_total")


def count_final(status: RunStatus, runs: int = 1) -> None:
    """Count runs that became final."""
    count("runs_completed_total", runs, status=status)
    count("dead_letters_total", runs if status is RunStatus.FAILED else 0)


def _count_start(row: Any, lag_s: float | None) -> None:
    count("runs_started_total")
    if lag_s is not None:
        # The engine's clock may be a little behind the database's; a sum must not shrink.
        observe("dispatch_lag_seconds", max(0.0, lag_s), region=row.region, tier=row.tier)
