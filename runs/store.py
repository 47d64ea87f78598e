"""The one door to the hot statements in runs/sql: each function executes one, by its name.

Rows come back as plain named tuples. Batches go in as parallel arrays (`unnest`), and by-id
batches give both columns of the key so that partitions are pruned.

Pruned at execution is not for nothing: planning a join of a batch with every day's partition, and
opening them all, takes twenty times as long as the join (measured: 20 ms and 0.8 ms for 30 runs).
What workers ask each moment is therefore asked of the partition itself (`fetch_of_runs`).
"""

import json
import re
from collections import namedtuple
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from runs.partitions import partition_name
from scheduler_project.lib.named_sql import load_named_sql

STATEMENTS = load_named_sql(Path(__file__).parent / "sql")


# Django leaves JSON as text in raw queries: its own fields decode it.
_JSONB_OID = 3802


def _read_json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[Any]:
    return namedtuple("Row", names)


def fetch(name: str, **parameters: Any) -> list[Any]:
    """Execute the named statement and return its rows."""
    return _fetch(STATEMENTS[name], parameters)


def fetch_of_day(name: str, day: date, **parameters: Any) -> list[Any]:
    """Execute the named statement on the runs of one day (UTC) alone and return its rows.

    For a statement that would look for each tenant, or each job, through all days: it reads the
    day's own partition, as if there were no others.
    """
    return _fetch(of_day(name, day), parameters)


def fetch_of_runs(name: str, runs: Iterable[Any], *more: str, **parameters: Any) -> list[Any]:
    """Execute the named statement on these runs, by both columns of their keys; return its rows.

    `more` are further attributes of `runs` that go in as parallel arrays. The statement says
    `runs r` and `run_attempts a` (or `e`) for the rows of these keys, and for no others.
    """
    listed = list(runs)
    keys = columns(listed, "run_id", "scheduled_for", *more)
    return _fetch(_of_their_day(name, listed), keys | parameters)


def execute_of_runs(name: str, runs: Iterable[Any], *more: str, **parameters: Any) -> int:
    """As `fetch_of_runs`; returns how many rows the statement touched."""
    listed = list(runs)
    keys = columns(listed, "run_id", "scheduled_for", *more)
    return _execute(_of_their_day(name, listed), keys | parameters)


def _of_their_day(name: str, runs: Iterable[Any]) -> str:
    """The statement on the partition of the runs' day, or on all where they have no common one.

    Only for yesterday to tomorrow: retention may have dropped an older partition, and a statement
    that names it would fail where the one on all finds nothing.
    """
    days = {_day_of(run.scheduled_for) for run in runs}
    if len(days) != 1:
        return STATEMENTS[name]
    (day,) = days
    is_near = abs((day - datetime.now(UTC).date()).days) <= 1
    return of_day(name, day) if is_near else STATEMENTS[name]


def _day_of(instant: datetime | str) -> date:
    """The day (UTC) of an instant, or of its text as PostgreSQL writes it."""
    if isinstance(instant, str):
        instant = datetime.fromisoformat(instant)
    return instant.astimezone(UTC).date()


# The rows that a statement is about, by the aliases that all statements keep to; `runs b` and the
# like are others of the same job, of any day.
_OF_THE_DAY = re.compile(r"\b(runs|run_attempts) (?=(?:AS )?(?:r|a|e)\b)")


@lru_cache(maxsize=256)
def of_day(name: str, day: date) -> str:
    """Return the named statement as it reads and writes the runs of one day."""
    return _OF_THE_DAY.sub(lambda found: f"{partition_name(found[1], day)} ", STATEMENTS[name])


def _fetch(statement: str, parameters: dict[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        if cursor.description is None:
            return []
        row_type = _row_type(tuple(column.name for column in cursor.description))
        readers = [
            _read_json if column.type_code == _JSONB_OID else None for column in cursor.description
        ]
        if not any(readers):
            return [row_type(*row) for row in cursor.fetchall()]
        return [
            row_type(
                *(read(value) if read else value for read, value in zip(readers, row, strict=True))
            )
            for row in cursor.fetchall()
        ]


def execute(name: str, **parameters: Any) -> int:
    """Execute the named statement and return how many rows it touched."""
    return _execute(STATEMENTS[name], parameters)


def _execute(statement: str, parameters: dict[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def uuids(ids: Iterable[UUID]) -> str:
    """Return many ids as the text of an array: psycopg takes ten times as long for a list."""
    return "{" + ",".join([one.hex for one in ids]) + "}"


def integers(numbers: Iterable[int]) -> str:
    """Return many numbers as the text of an array, as `uuids` does ids."""
    return "{" + ",".join([str(one) for one in numbers]) + "}"


def instants(texts: Iterable[str]) -> str:
    """Return many instants, as PostgreSQL wrote them, as the text of an array."""
    return "{" + ",".join([f'"{one}"' for one in texts]) + "}"


def columns(items: Iterable[Any], *names: str) -> dict[str, list[Any] | str]:
    """Return the attributes `names` of all items as parallel arrays, keyed by plural names.

    `columns(runs, "run_id")` → `{"run_ids": ...}`: what the statements' `unnest` takes.
    """
    listed = list(items)
    return {plural(name): _array([getattr(item, name) for item in listed]) for name in names}


def _array(values: list[Any]) -> list[Any] | str:
    """The values as the text of an array where that can be had without quoting, else as a list."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        return values
    match kinds.pop():
        case kind if kind is UUID:
            return uuids(values)
        case kind if kind is int:
            return integers(values)
        case kind if kind is datetime:
            return instants(value.isoformat() for value in values)
        case _:
            return values


def plural(name: str) -> str:
    """Return the parameter name for many of `name`; names with a unit keep it at the end."""
    if name.endswith("_s"):
        return f"{name[:-2]}s_s"
    return (
        f"{name[:-1]}ies" if name.endswith("y") else f"{name}{'es' if name.endswith('s') else 's'}"
    )


class RunKey(NamedTuple):
    """Both columns of a run's key, with the job whose guard is locked before the run."""

    run_id: UUID
    scheduled_for: Any
    job_id: UUID


def lock_guards(job_ids: Iterable[UUID]) -> dict[UUID, UUID | None]:
    """Lock the guards of the jobs, in job order, and return who holds each.

    Must come before any lock on a run in the same transaction (lock order), and as a statement of
    its own (architecture §5). Jobs without a guard are missing from the answer.
    """
    ids = sorted(set(job_ids))
    if not ids:
        return {}
    return {row.job_id: row.holder_run_id for row in fetch("lock_guards", job_ids=ids)}


def release_guards(runs: Iterable[tuple[UUID, UUID]]) -> int:
    """Pass the guards held by runs that are over to the next blocked run of each job.

    Takes (job_id, run_id) pairs; called by every way out of a run. The caller has locked the
    guards. Returns how many blocked runs went back to the queue.
    """
    pairs = list(runs)
    if not pairs:
        return 0
    job_ids, run_ids = zip(*pairs, strict=True)
    return len(fetch("pass_guards", job_ids=list(job_ids), run_ids=list(run_ids)))


class RunEventRow(NamedTuple):
    """An exceptional event of a run, as it is written."""

    run_id: UUID
    scheduled_for: Any
    kind: str
    attempt: int | None
    fence: int | None
    session: UUID | None
    detail: Any


def record_events(events: Sequence[RunEventRow]) -> None:
    """Write exceptional events of runs."""
    if events:
        execute(
            "insert_events",
            **columns(
                events, "run_id", "scheduled_for", "kind", "attempt", "fence", "session", "detail"
            ),
        )
