"""The list of codes: complete, in the docs, and the same everywhere."""

import ast
from collections.abc import Container
from pathlib import Path

import pytest

from jobs.domain import schedule_error
from scheduler_project.lib.problem_catalogue import FIELD_CODES, PROBLEMS
from scheduler_project.lib.problem_docs import as_markdown
from scheduler_project.lib.problems import FieldProblem, Problem, invalid_fields, path_of

CODE_DIRECTORIES = ("scheduler_project", "tenants", "jobs", "runs")
# Who raises, and which argument is the code.
RAISERS: dict[str, tuple[int, Container[str]]] = {
    "Problem": (0, PROBLEMS),
    "coded": (0, FIELD_CODES),
    "invalid": (1, FIELD_CODES),
}


def codes_in(source: Path) -> list[tuple[str, str, int]]:
    """Return (raiser, code, line) of each call whose code is written out."""
    found = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            position, _ = RAISERS.get(node.func.id, (len(node.args), ()))
            if len(node.args) > position:
                argument = node.args[position]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.append((node.func.id, argument.value, node.lineno))
    return found


def test_the_docs_list_every_code(checkout: Path) -> None:
    written = (checkout / "docs" / "api-errors.md").read_text()
    again = "python -m scheduler_project.lib.problem_docs > docs/api-errors.md"
    assert written == as_markdown(), f"write it anew: {again}"
    for code, problem in PROBLEMS.items():
        assert f"### {problem.status} `{code}`" in written
    for code in FIELD_CODES:
        assert f"| `{code}` |" in written


def test_every_code_that_is_raised_is_in_the_catalogue(checkout: Path) -> None:
    raised = 0
    for directory in CODE_DIRECTORIES:
        for source in (checkout / directory).rglob("*.py"):
            for raiser, code, line in codes_in(source):
                assert code in RAISERS[raiser][1], f"{source}:{line}: {code}"
                raised += 1
    assert raised > 50


def test_every_problem_of_the_catalogue_is_raised_somewhere(checkout: Path) -> None:
    sources = [p for d in CODE_DIRECTORIES for p in (checkout / d).rglob("*.py")]
    text = "\n".join(p.read_text() for p in sources if p.name != "problem_catalogue.py")
    assert [code for code in PROBLEMS if f'"{code}"' not in text] == []


def test_the_schedule_engine_s_codes_are_in_the_catalogue() -> None:
    codes = {value for name, value in vars(schedule_error).items() if name.isupper()}
    assert codes <= set(FIELD_CODES)


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_says_what_it_means_and_what_to_do(code: str) -> None:
    problem = PROBLEMS[code]
    assert problem.code == code
    assert 400 <= problem.status <= 599
    assert problem.title[0].isupper()
    assert not problem.title.endswith(".")
    assert problem.meaning.endswith(".")
    assert problem.mend.endswith(".")
    assert Problem(code).as_json("id")["detail"] == problem.meaning


def test_a_problem_without_entry_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        Problem("no_such_code")


@pytest.mark.parametrize(
    ("parent", "key", "path"),
    [
        ("", "task", "task"),
        ("task", "image", "task.image"),
        ("task.args", 2, "task.args[2]"),
        ("labels", "a.b", 'labels["a.b"]'),
        ("labels", 'a"b', 'labels["a\\"b"]'),
        ("labels", "", 'labels[""]'),
        ("labels", "नाम", "labels.नाम"),
    ],
)
def test_a_path_leads_to_one_field(parent: str, key: str | int, path: str) -> None:
    assert path_of(parent, key) == path


def test_an_answer_names_at_most_fifty_fields_and_says_how_many_there_are() -> None:
    problem = invalid_fields([FieldProblem(f"f{n}", "invalid", "x") for n in range(1_000)])
    assert len(problem.as_json("id")["errors"]) == 50
    assert "999 more" in problem.message


def test_a_hint_is_shown_only_where_there_is_one() -> None:
    assert "hint" not in FieldProblem("f", "invalid", "x").as_json()
    assert FieldProblem("f", "invalid", "x", "y").as_json()["hint"] == "y"
