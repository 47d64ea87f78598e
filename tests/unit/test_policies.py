"""What a job may ask for: each bound, at it and just beyond it."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.domain import policies
from jobs.domain.exit_codes import ExitCodes
from jobs.domain.policies import (
    Ceilings,
    FieldProblem,
    Retry,
    Task,
    label_problems,
    overlap_problems,
    retry_problems,
    task_problems,
)

CEILINGS = Ceilings(timeout_s=3_600, cpu=2, memory_mb=1_024)
TASK = Task(image="registry.example/acme/report:3", timeout_s=60)


def problems(**changes: Any) -> list[FieldProblem]:
    return list(task_problems(replace(TASK, **changes), CEILINGS))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"timeout_s": 1},
        {"timeout_s": 3_600},
        {"cpu": 0.01},
        {"cpu": 2},
        {"memory_mb": 16},
        {"memory_mb": 1_024},
        {"args": ("",) * 1_000},
        {"args": ("a" * 32_768, "b" * 32_768)},
        {"env": {"A": "x==", "_": "", "PATH": "", "a1_B": "multi\nline"}},
        {"env": {f"V{n}": "" for n in range(500)}},
        {"env": {"A": "v" * 32_768}},
    ],
)
def test_a_task_at_its_bounds_is_fine(changes: dict[str, Any]) -> None:
    assert problems(**changes) == []


@pytest.mark.parametrize(
    ("changes", "path", "code"),
    [
        ({"timeout_s": 0}, ("task", "timeout_s"), "too_small"),
        ({"timeout_s": 3_601}, ("task", "timeout_s"), "too_large"),
        ({"cpu": 0.001}, ("task", "resources", "cpu"), "too_small"),
        ({"cpu": 2.01}, ("task", "resources", "cpu"), "too_large"),
        ({"cpu": float("nan")}, ("task", "resources", "cpu"), "too_large"),
        ({"memory_mb": 15}, ("task", "resources", "memory_mb"), "too_small"),
        ({"memory_mb": 1_025}, ("task", "resources", "memory_mb"), "too_large"),
        ({"args": ("",) * 1_001}, ("task", "args"), "too_long"),
        ({"args": ("a", "b" * 32_769)}, ("task", "args", 1), "too_long"),
        ({"args": ("a" * 30_000,) * 3}, ("task", "args"), "too_long"),
        ({"args": ("é" * 20_000,)}, ("task", "args", 0), "too_long"),  # bytes, not characters
        ({"env": {"": "x"}}, ("task", "env", ""), "invalid_env_name"),
        ({"env": {"A=B": "x"}}, ("task", "env", "A=B"), "invalid_env_name"),
        ({"env": {"1A": "x"}}, ("task", "env", "1A"), "invalid_env_name"),
        ({"env": {"A\n": "x"}}, ("task", "env", "A\n"), "invalid_env_name"),
        ({"env": {"É": "x"}}, ("task", "env", "É"), "invalid_env_name"),
        ({"env": {"A" * 129: "x"}}, ("task", "env", "A" * 129), "invalid_env_name"),
        ({"env": {"A": "v" * 32_769}}, ("task", "env", "A"), "too_long"),
        ({"env": {"A": "v" * 30_000, "B": "v" * 30_000, "C": "v" * 30_000}},
         ("task", "env"), "too_long"),
        ({"env": {f"V{n}": "" for n in range(501)}}, ("task", "env"), "too_long"),
        ({"image": "a b"}, ("task", "image"), "invalid_image"),
    ],
)  # fmt: skip
def test_beyond_a_bound_the_member_is_named(
    changes: dict[str, Any], path: tuple[str | int, ...], code: str
) -> None:
    assert [(problem.path, problem.code) for problem in problems(**changes)] == [(path, code)]


@pytest.mark.parametrize("name", sorted(policies.RESERVED_VARIABLES))
def test_our_own_variables_can_t_be_set(name: str) -> None:
    (problem,) = problems(env={name: "x"})
    assert (problem.path, problem.code) == (("task", "env", name), "reserved_env_name")


def test_every_problem_is_told_at_once() -> None:
    found = problems(image="", timeout_s=0, cpu=9, env={"1": "", "RUN_ID": ""})
    assert len(found) == 5


def test_an_image_outside_the_allow_list_is_refused_with_the_list() -> None:
    ceilings = replace(CEILINGS, image_prefixes=("registry.example/other",))
    (problem,) = task_problems(TASK, ceilings)
    assert problem.code == "image_not_allowed"
    assert "registry.example/other" in problem.hint


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 21}, "max_attempts"),
        ({"base_s": -1}, "base_s"),
        ({"max_s": 86_401}, "max_s"),
        ({"base_s": 100, "max_s": 50}, "base_s"),
    ],
)
def test_a_retry_beyond_its_bounds_is_refused(changes: dict[str, Any], member: str) -> None:
    (problem,) = retry_problems(replace(Retry(), **changes))
    assert problem.path == ("retry", member)


def test_the_default_retry_is_one_attempt_and_valid() -> None:
    assert Retry().max_attempts == 1
    assert list(retry_problems(Retry())) == []


@pytest.mark.parametrize(
    ("codes", "paths"),
    [
        (ExitCodes(), []),
        (ExitCodes(fail=("1", "64-78"), ignore=("79-255",)), []),
        (ExitCodes(fail=("0",), ignore=("256",)), [("fail", 0), ("ignore", 0)]),
        (ExitCodes(fail=("78-64", "1-", "-1", "01", "1 - 2", "")), [("fail", n) for n in range(6)]),
        (ExitCodes(fail=("64-78",), ignore=("1", "70-80")), [("ignore", 1)]),
        (ExitCodes(fail=("²", "٣")), [("fail", 0), ("fail", 1)]),
    ],
)
def test_exit_codes_are_codes_or_ranges_and_in_one_list(
    codes: ExitCodes, paths: list[tuple[str, int]]
) -> None:
    found = list(retry_problems(Retry(exit_codes=codes)))
    assert [problem.path for problem in found] == [("retry", "exit_codes", *p) for p in paths]
    assert {problem.code for problem in found} <= {"invalid_exit_code"}


@pytest.mark.parametrize("overlap", ["replaced", "forbid", "", "SKIP"])
def test_only_the_overlaps_that_exist_are_offered(overlap: str) -> None:
    assert list(overlap_problems("skip")) == []
    (problem,) = overlap_problems(overlap)
    assert "skip, queue, allow" in problem.message


@pytest.mark.parametrize("name", ["a", "team", "app.example/name", "A-1_b", "x" * 63])
def test_a_label_has_a_name_that_a_filter_can_hold(name: str) -> None:
    assert list(label_problems({name: "any value: even this"})) == []


@pytest.mark.parametrize("name", ["", "a:b", "-a", "a-", "é", "a b", "a\n", "x" * 64])
def test_other_label_names_are_refused(name: str) -> None:
    (problem,) = label_problems({name: "x"})
    assert (problem.path, problem.code) == (("labels", name), "invalid_label_name")


def test_labels_are_bounded_in_number_and_length() -> None:
    assert [p.code for p in label_problems({f"l{n}": "" for n in range(33)})] == ["too_long"]
    assert [p.code for p in label_problems({"a": "v" * 201})] == ["too_long"]
