"""Planned runs go in by COPY, and look as if they had been inserted."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from runs import store
from runs.copying import copy_runs
from runs.domain.planning import PlannedRun
from runs.domain.run_id import make_run_ids, to_milliseconds
from runs.models import Run
from tests.support.factories import database_now, make_job, make_run

pytestmark = pytest.mark.django_db

ODD = 'eu\tä\\N\r\n"x"'


def planned(*, late_by_s: float = 0, **fields: Any) -> PlannedRun:
    job = make_job()
    at = to_milliseconds(database_now() - timedelta(seconds=late_by_s))
    run = PlannedRun(
        make_run_ids([at], uuid4().bytes[:10])[0], at, job.job_id, 3, job.tenant_id, "default",
        "container", "schedule", "queued", at, at, None, "",
    )  # fmt: skip
    return run._replace(**fields)


def row_of(run: PlannedRun) -> dict[str, Any]:
    (row,) = Run.objects.filter(run_id=run.run_id).values()
    return {name: value for name, value in row.items() if name not in ("run_id", "created_at")}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "skipped", "skip_reason": "outage"},
        {"deadline_at": database_now},
        {"trigger": "catch_up"},
        {"region": ODD, "tier": "\\."},
    ],
)
def test_a_copied_run_is_the_same_row_as_an_inserted_one(fields: dict[str, Any]) -> None:
    values = {name: value() if callable(value) else value for name, value in fields.items()}
    copied = planned(**values)
    with transaction.atomic():
        assert copy_runs([copied]) == 1
        by_copy = row_of(copied)
        Run.objects.filter(run_id=copied.run_id).delete()
        assert store.execute("insert_runs", **store.columns([copied], *PlannedRun._fields)) == 1
        assert row_of(copied) == by_copy
    assert by_copy["region"] == copied.region


def test_a_row_that_exists_fails_the_whole_copy() -> None:
    existing = make_run()
    again = planned(
        run_id=existing.run_id, scheduled_for=existing.scheduled_for, job_id=existing.job_id
    )
    other = planned()
    with pytest.raises(IntegrityError), transaction.atomic():
        copy_runs([other, again])
    assert not Run.objects.filter(run_id=other.run_id).exists()
