"""Printed facts become rows with their limit or peer beside them."""

import pytest

from bench.table import Row, number, rows_of, table

DRAIN = {
    "question": "drain", "lag_p50_s": 1.25, "lag_p99_s": 3.5, "runs_per_s": 1234.5,
    "lost": 0, "doubled": 0, "early": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345.6, "12,346"), (1_000, "1,000"), (48.52, "48.5"), (0.0213, "0.0213"),
     (0.00042, "0.0004"), (0, "0"), (200, "200")],
)  # fmt: skip
def test_a_figure_is_short(value: float, text: str) -> None:
    assert number(value) == text


def test_a_drain_has_its_ratio_beside_bare_celery() -> None:
    rows = rows_of({**DRAIN, "of": "product", "ratio": 0.4, "target": 0.5})
    assert [row.holds for row in rows] == [True, False]
    assert rows[1].beside == "bare Celery ETA: × 0.4"


@pytest.mark.parametrize("fault", ["lost", "doubled", "early"])
def test_a_drain_that_loses_doubles_or_is_early_has_failed(fault: str) -> None:
    (row,) = rows_of({**DRAIN, "of": "product", fault: 1})
    assert row.holds is False


def test_a_peer_has_no_target() -> None:
    (row,) = rows_of({**DRAIN, "of": "procrastinate", "lost": 7})
    assert (row.holds, row.target) == (None, "")
    assert "lost 7" in row.beside


def test_each_limit_of_a_burst_is_a_row() -> None:
    rows = rows_of(
        {"question": "burst", "runs": 20_000, "lost": 0, "statements_per_run": 0.2,
         "wal_bytes_per_run": 3_500,
         "limits": {"statements_per_run": 0.1, "wal_bytes_per_run": 4_096}}
    )  # fmt: skip
    assert [(row.question, row.holds) for row in rows] == [
        ("burst, statements per run", False),
        ("burst, wal bytes per run", True),
        ("burst, lost", True),
    ]


@pytest.mark.parametrize(
    ("more_is_better", "ratio", "limit", "holds"),
    [(True, 0.95, 0.9, True), (True, 0.8, 0.9, False), (False, 1.2, 1.5, True),
     (False, 2, 1.5, False)],
)  # fmt: skip
def test_growth_is_held_against_its_limit(
    more_is_better: bool, ratio: float, limit: float, holds: bool
) -> None:
    fact = {
        "question": "growth", "of": "planner", "grown": 1.0, "small": 1.0, "jobs": 10, "runs": 10,
        "ratio": ratio, "limit": limit, "more_is_better": more_is_better,
    }  # fmt: skip
    (row,) = rows_of(fact)
    assert row.holds is holds


@pytest.mark.parametrize("question", ["drain: round 1", "burst: WAL", "something else"])
def test_a_single_round_is_no_row(question: str) -> None:
    assert rows_of({**DRAIN, "question": question}) == []


def test_the_columns_of_a_table_stand_below_each_other() -> None:
    lines = table([Row("plan", "12", "limit 13", "≥ 0.5", True), Row("a longer name", "1")]).split(
        "\n"
    )
    assert lines[0].split() == ["question", "answer", "beside", "target"]
    assert len({line.find("1") for line in lines[2:]}) == 1
    assert lines[2].endswith("holds")
    assert lines[3] == "a longer name  1"
