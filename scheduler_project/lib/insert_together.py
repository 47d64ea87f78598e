"""New rows of several tables by one statement: one round trip, and its text is made once.

For what is always written together on a hot path. The models' own fields adapt the values, so a
row reads back as it would from `save()`; foreign keys between the rows are checked at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Field, Model
from django.db.models.expressions import DatabaseDefault

from scheduler_project.lib.prepared import prepared_cursor

Columns = tuple[tuple[str, tuple[str, ...]], ...]


def insert_together(*rows: Model) -> None:
    """Insert new rows in one statement.

    Columns that the database fills (an identity, a default that nobody has overridden) are left to
    it and aren't read back. Raises what `save(force_insert=True)` would raise.
    """
    # Itself, not Django's stand-in for it: every field asks it, and the stand-in looks it up anew.
    connection = connections[DEFAULT_DB_ALIAS]
    given = [_given(row) for row in rows]
    columns = tuple(
        (row._meta.db_table, tuple(field.column for field, _ in pairs))
        for row, pairs in zip(rows, given, strict=True)
    )
    values = [
        field.get_db_prep_save(value, connection) for pairs in given for field, value in pairs
    ]
    with prepared_cursor() as cursor:
        cursor.execute(_statement(columns), values)
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


def _given(row: Model) -> list[tuple[Field[Any, Any], Any]]:
    """The fields of `row` that have a value, with it."""
    pairs = ((field, getattr(row, field.attname)) for field in row._meta.concrete_fields)
    return [
        (field, value)
        for field, value in pairs
        if not isinstance(value, DatabaseDefault) and not (field.primary_key and value is None)
    ]


@cache
def _statement(tables: Columns) -> str:
    inserts = [
        f"INSERT INTO {table} ({', '.join(columns)})"  # noqa: S608 – names of our own tables
        f" VALUES ({', '.join(['%s'] * len(columns))})"
        for table, columns in tables
    ]
    parts = ", ".join(f"row_{number} AS ({insert})" for number, insert in enumerate(inserts[:-1]))
    return f"WITH {parts} {inserts[-1]}" if parts else inserts[-1]
