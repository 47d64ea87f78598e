"""Writes what was planned: runs and counted spans in, cursors on; in the planner's transaction.

Its rule: a batch goes in by COPY, which costs a third of an INSERT of the same rows. What COPY
can't do, rows that exist already or that the database refuses, is found out by its failing: that
costs the batch a second try, and never its other jobs.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import DataError, IntegrityError, transaction

from runs import store
from runs.copying import copy_runs
from runs.domain.planning import CursorPlan, PlannedRun, PlannedSpan, Standing, spaced_after
from runs.domain.state import RunStatus, Trigger
from runs.notifications import note_run_ends
from runs.run_metrics import count_planned
from scheduler_project.lib.events import emit

_Insert = Callable[[Sequence[PlannedRun]], int]


def write_plans(plans: Sequence[CursorPlan]) -> tuple[int, Sequence[CursorPlan]]:
    """Write the plans; returns how many runs are new, and the plans that could be written.

    One that the database refuses, say because the partition of its day is missing, is left for
    the next round, and so that nobody else is left with it, the batch is then written job by job.
    """
    try:
        return _write(plans, copy_runs), plans
    except (DataError, IntegrityError):
        pass  # perhaps a row exists: COPY can't pass over it
    try:
        return _write(plans, _insert_new), plans
    except (DataError, IntegrityError) as error:
        if len(plans) == 1:
            emit("planner.stuck", "Runs of a job can't be written; it is tried again.",
                 level=logging.ERROR, job_id=plans[0].job_id,
                 error=str(error).strip())  # fmt: skip
            return 0, []
    each = [write_plans([plan]) for plan in plans]
    return sum(new for new, _ in each), [plan for _, written in each for plan in written]


def insert_planned(runs: Sequence[PlannedRun], spans: Sequence[PlannedSpan]) -> None:
    """Insert runs, some of which may have a row already, and spans; no cursor moves."""
    _insert(runs, spans, _insert_new)


def advance(job_ids: Sequence[UUID], standings: Sequence[Standing]) -> None:
    """Move each cursor to where it stands now; the caller holds their locks."""
    if not job_ids:
        return
    # Hardly any two differ after a burst: each is sent once, with a number for each cursor.
    numbers: dict[Standing, int] = {}
    places = [numbers.setdefault(standing, len(numbers) + 1) for standing in standings]
    store.execute(
        "advance_cursors",
        job_ids=store.uuids(job_ids),
        places=store.integers(places),
        **store.columns(numbers, "next_run_at", "planned_through", "last_wall_time", "tzdata"),
    )


def busy_until(job_ids: Iterable[UUID]) -> dict[UUID, datetime]:
    """When the last paced run that waits is let go, for each of the jobs that has one."""
    ids = list(job_ids)
    rows = store.fetch("paced_until", job_ids=ids) if ids else []
    return {row.job_id: row.ready_at for row in rows}


def _write(plans: Sequence[CursorPlan], insert: _Insert) -> int:
    with transaction.atomic():
        created = _insert(
            [run for plan in plans for run in plan.runs],
            [span for plan in plans for span in plan.spans],
            insert,
        )
        advance([plan.job_id for plan in plans], [plan.standing for plan in plans])
        return created


def _insert(runs: Sequence[PlannedRun], spans: Sequence[PlannedSpan], insert: _Insert) -> int:
    """Insert what was decided; returns how many runs had no row before."""
    created = insert(_paced(runs)) if runs else 0
    note_run_ends(run for run in runs if run.status == RunStatus.SKIPPED)
    transaction.on_commit(partial(count_planned, runs, created))
    if spans:
        store.execute(
            "insert_missed_spans",
            **store.columns(spans, "job_id", "from_at", "to_at", "count", "reason"),
        )
    return created


def _insert_new(runs: Sequence[PlannedRun]) -> int:
    return store.execute("insert_runs", **store.columns(runs, *PlannedRun._fields))


def _paced(runs: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
    """Put caught-up runs behind those that their job has waiting already."""
    counts = Counter(run.job_id for run in runs if run.trigger == Trigger.CATCH_UP)
    # A single one, the usual case after an outage, can't be a flood and costs no look.
    return spaced_after(runs, busy_until(job_id for job_id, n in counts.items() if n > 1))
