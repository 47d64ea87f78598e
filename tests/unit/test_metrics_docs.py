"""docs/metrics.md lists every metric as the table in the code has it, and the code uses each."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.domain.state import FINAL
from scheduler_project.lib.metrics import FINAL_STATUSES, METRICS, TABLE, Metric

CHECKOUT = Path(__file__).parents[2]
APPS = ("scheduler_project", "tenants", "jobs", "runs", "workers")
PAGE = (CHECKOUT / "docs" / "metrics.md").read_text()


def _documented() -> dict[str, list[str]]:
    """The cells of each metric's line, by name."""
    text = PAGE.split("\n## All of them\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def _used() -> Iterator[str]:
    """Names that the code counts, observes, sets or shows, outside of the table."""
    for app in APPS:
        for path in sorted((CHECKOUT / app).rglob("*.py")):
            if path.name == "metrics.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                if isinstance(node, ast.Constant) and node.value in TABLE:
                    yield str(node.value)


def test_every_metric_is_listed_and_no_other() -> None:
    assert list(_documented()) == [metric.name for metric in METRICS]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_listed_as_it_is(metric: Metric) -> None:
    kind, labels, shown_by, meaning = _documented()[metric.name]
    assert kind == metric.kind
    assert tuple(re.findall(r"`(\w+)`", labels)) == metric.labels
    assert shown_by
    assert meaning == metric.meaning


def test_every_metric_is_used_by_the_code() -> None:
    assert set(_used()) == set(TABLE)


def test_no_metric_has_a_label_for_a_tenant_or_anything_that_grows() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels <= {"status", "region", "tier", "reason", "role", "state"}


def test_every_final_status_is_counted_from_the_start() -> None:
    assert set(FINAL_STATUSES) == {str(status) for status in FINAL}
