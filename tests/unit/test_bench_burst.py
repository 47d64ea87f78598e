"""A statement in PostgreSQL's own statistics is told by its name."""

import pytest

from bench.burst import name_of
from runs.store import STATEMENTS


@pytest.mark.parametrize("name", ["place_runs", "advance_cursors", "copy_runs", "insert_runs"])
def test_a_statement_without_comments_and_values_keeps_its_name(name: str) -> None:
    lines = STATEMENTS[name].splitlines()
    shown = "\n".join(line for line in lines if not line.startswith("--"))
    for number, value in enumerate(["%(run_ids)s", "%(job_ids)s", "'queued'", "'leased'"], 1):
        shown = shown.replace(value, f"${number}")
    assert name_of(shown, STATEMENTS) == name


def test_no_two_statements_that_write_are_taken_for_each_other() -> None:
    writes = {
        name: body
        for name, body in STATEMENTS.items()
        if "UPDATE " in body or "INSERT " in body or "DELETE " in body
    }
    named = {name: name_of(body, STATEMENTS) for name, body in writes.items()}
    assert named == {name: name for name in writes}


def test_a_strange_query_keeps_its_beginning() -> None:
    assert name_of("VACUUM  ANALYZE\njobs", STATEMENTS) == "VACUUM ANALYZE jobs"
