"""docs/events.md explains every logged action and every kind of run event, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
APPS = ("scheduler_project", "tenants", "jobs", "runs", "workers")
PAGE = (CHECKOUT / "docs" / "events.md").read_text()


def _trees() -> Iterator[ast.AST]:
    for app in APPS:
        for path in sorted((CHECKOUT / app).rglob("*.py")):
            yield ast.parse(path.read_text(), str(path))


def _calls(name: str) -> Iterator[ast.Call]:
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                yield node


def _text(node: ast.expr) -> str:
    """A string as written; the parts of an f-string that vary become `<duty>`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "<duty>" for part in node.values
        )
    assert isinstance(node, ast.Constant), ast.dump(node)
    return str(node.value)


def _section(title: str) -> set[str]:
    """The keys in the first column of a section's table."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.M))


def test_every_logged_action_is_explained_and_no_other() -> None:
    assert {_text(call.args[0]) for call in _calls("emit")} == _section("Log lines")


def test_every_duty_is_explained_and_no_other() -> None:
    assert {_text(call.args[0]) for call in _calls("Duty")} == _section("Duties")


def test_every_kind_of_run_event_is_explained_and_no_other() -> None:
    assert {_text(call.args[1]) for call in _calls("_event")} == _section("Events of a run")


@pytest.mark.parametrize("title", ["Log lines", "Duties", "Events of a run"])
def test_no_explanation_is_empty(title: str) -> None:
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    assert rows
    assert all(cell.strip() for row in rows for cell in row)
