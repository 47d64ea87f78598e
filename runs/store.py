"""The one door to the hot statements in runs/sql: each function executes one, by its name.

Rows come back as plain named tuples. Batches go in as parallel arrays (`unnest`), and by-id
batches give both columns of the key so that partitions are pruned.
"""

import json
from collections import namedtuple
from collections.abc import Iterable, Sequence
from datetime import date
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


@lru_cache(maxsize=256)
def of_day(name: str, day: date) -> str:
    """Return the named statement as it reads the runs of one day."""
    return STATEMENTS[name].replace("FROM runs r\n", f"FROM {partition_name('runs', day)} r\n")


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
    with connection.cursor() as cursor:
        cursor.execute(STATEMENTS[name], parameters)
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


def columns(items: Iterable[Any], *names: str) -> dict[str, list[Any]]:
    """Return the attributes `names` of all items as parallel arrays, keyed by plural names.

    `columns(runs, "run_id")` → `{"run_ids": [...]}`: what the statements' `unnest` takes.
    """
    listed = list(items)
    return {plural(name): [getattr(item, name) for item in listed] for name in names}


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
