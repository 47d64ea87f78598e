"""Pages by cursor over real rows: neither a row lost nor one twice."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db.models import QuerySet

from runs.models import Run
from scheduler_project.lib.pagination import CursorScope, Page, keyset_page
from tenants.models import Tenant
from tests.support.factories import database_now, make_job, make_run

COLUMNS = {"scheduled_for": datetime, "run_id": UUID}
Turn = Callable[[str | None], Page[Run]]


@pytest.fixture
def instant() -> datetime:
    return database_now().replace(microsecond=0) + timedelta(hours=1)


@pytest.fixture
def page_of(acme: Tenant) -> Turn:
    """Return a page of 50 runs after a cursor."""
    rows: QuerySet[Run] = Run.objects.filter(tenant=acme)
    scope = CursorScope("runs", acme.pk, {})
    return lambda cursor: keyset_page(rows, COLUMNS, scope, cursor, 50)


def make_runs(tenant: Tenant, count: int, scheduled_for: datetime) -> list[UUID]:
    job = make_job(tenant)
    return [
        make_run(job, scheduled_for=scheduled_for, trigger="manual").run_id for _ in range(count)
    ]


def read_all(page_of: Turn, between: Callable[[], object] = lambda: None) -> list[UUID]:
    cursor, seen = None, []
    while True:
        page = page_of(cursor)
        seen += [run.run_id for run in page.rows]
        if page.next_cursor is None:
            return seen
        cursor = page.next_cursor
        between()


def test_rows_of_one_instant_come_once_each(acme: Tenant, page_of: Turn, instant: datetime) -> None:
    made = make_runs(acme, 120, instant)
    seen = read_all(page_of)
    assert len(seen) == 120
    assert seen == sorted(made, reverse=True)


def test_rows_that_come_while_paging_neither_push_nor_hide_the_others(
    acme: Tenant, page_of: Turn, instant: datetime
) -> None:
    made = make_runs(acme, 120, instant)
    seen = read_all(page_of, lambda: make_runs(acme, 7, instant + timedelta(seconds=1)))
    assert seen == sorted(made, reverse=True)


def test_rows_a_millisecond_apart_are_not_mixed_up(
    acme: Tenant, page_of: Turn, instant: datetime
) -> None:
    made = [
        run_id
        for offset in range(60)
        for run_id in make_runs(acme, 2, instant + timedelta(milliseconds=offset))
    ]
    assert sorted(read_all(page_of)) == sorted(made)


def test_the_last_page_says_so_even_when_it_is_full(
    acme: Tenant, page_of: Turn, instant: datetime
) -> None:
    make_runs(acme, 50, instant)
    page = page_of(None)
    assert len(page.rows) == 50
    assert page.next_cursor is None


def test_a_list_of_nothing_is_one_empty_page(page_of: Turn) -> None:
    assert page_of(None) == Page([], None)


def test_a_page_costs_one_query(
    acme: Tenant,
    page_of: Turn,
    instant: datetime,
    django_assert_num_queries: Callable[[int], object],
) -> None:
    make_runs(acme, 60, instant)
    cursor = page_of(None).next_cursor
    with django_assert_num_queries(1) as captured:  # type: ignore[attr-defined]
        page_of(cursor)
    assert '"run_id") < (' in captured.captured_queries[0]["sql"]
