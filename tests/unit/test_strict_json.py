"""Bodies: one reading, bounded, and the answer names the place."""

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_project.lib.problems import Problem
from scheduler_project.lib.strict_json import MAX_DEPTH, parse_object, read_bounded

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def refused(body: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        parse_object(body)
    return caught.value


def outcome(body: bytes) -> dict[str, Any] | Problem:
    try:
        return parse_object(body)
    except Problem as problem:
        return problem


def fields_of(problem: Problem) -> list[tuple[str, str]]:
    return [(error.field, error.code) for error in problem.errors]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "body_required"),
        (b" \r\n\t", "body_required"),
        (b"{", "invalid_json"),
        (b"{}{}", "invalid_json"),
        (b"{/*x*/}", "invalid_json"),
        (b"{'a':1}", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b'{"a":01}', "invalid_json"),
        (b'{"a":+1}', "invalid_json"),
        (b'{"a":.5}', "invalid_json"),
        (b'{"a":"\x01"}', "invalid_json"),
        (b'{"a":"\n"}', "invalid_json"),
        (b'{"a":"\\x41"}', "invalid_json"),
        (b'{"name":"\xff"}', "invalid_json"),
        (b'{"name":"\xed\xa0\x80"}', "invalid_json"),  # a surrogate in CESU-8
        (b'{"name":"\xc0\x80"}', "invalid_json"),  # an overlong NUL
        (b"\xef\xbb\xbf{}", "invalid_json"),
        ("{}".encode("utf-16"), "invalid_json"),
        ("{}".encode("utf-16-le"), "invalid_json"),
        (b"\xc2\xa0{}", "invalid_json"),  # a no-break space is no JSON white space
        (b"null", "body_not_object"),
        (b"[]", "body_not_object"),
        (b'"{}"', "body_not_object"),
        (b"1", "body_not_object"),
        (b"true", "body_not_object"),
        (b"NaN", "body_not_object"),
        (b'[{"a":1,"a":2}]', "body_not_object"),
    ],
)
def test_a_body_that_is_not_one_json_object_is_refused(body: bytes, code: str) -> None:
    assert refused(body).code == code


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"overlap":"skip","overlap":"allow"}', [("overlap", "duplicate_key")]),
        (b'{"overlap":"skip","\\u006fverlap":"allow"}', [("overlap", "duplicate_key")]),
        (b'{"task":{"env":{"A":1,"A":1}}}', [("task.env.A", "duplicate_key")]),
        (b'{"schedule":{"cron":"0 9 * * *\\u0000"}}', [("schedule.cron", "invalid_character")]),
        (b'{"task":{"args":["a","\\ud800"]}}', [("task.args[1]", "invalid_character")]),
        (b'{"task":{"args":["\\udc00\\ud800"]}}', [("task.args[0]", "invalid_character")]),
        (b'{"a":NaN,"b":-Infinity}', [("a", "not_finite"), ("b", "not_finite")]),
        (b'{"a":1e400}', [("a", "too_large")]),
        (b'{"a":-' + b"9" * 5_000 + b"}", [("a", "too_large")]),
        (b'{"a b":{"c.d":"\\u0000"}}', [('a b["c.d"]', "invalid_character")]),
        (b'{"labels":{"\\u0000":1}}', [('labels["\\\\x00"]', "invalid_character")]),
    ],
)
def test_a_value_that_no_two_servers_would_read_alike_is_named_by_its_path(
    body: bytes, fields: list[tuple[str, str]]
) -> None:
    problem = refused(body)
    assert problem.code == "invalid_request"
    assert fields_of(problem) == fields
    # Nothing that was refused may break the answer that says so.
    json.dumps(problem.as_json("id"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"env":' * 500 + b"1" + b"}" * 500,
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b'{"a":"]]]]","b":' + b"[" * 40 + b"]" * 40 + b"}",
    ],
)
def test_deep_nesting_is_refused_before_a_parser_sees_it(body: bytes) -> None:
    problem = refused(body)
    assert problem.code == "invalid_json"
    assert "deeper" in problem.message


def test_the_deepest_allowed_body_is_read() -> None:
    body = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert parse_object(body)["a"]


def test_brackets_inside_texts_do_not_count() -> None:
    text = "[{" * 200 + '\\"' + "[" * 200
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 131_000,
        b"[" * 33 + b'"\\' * 131_000,
        b"[" * 33 + b'"' * 262_000,
        b"[]" * 131_000,
        b'{"a":"' + b"\\u0000" * 40_000 + b'"}',
        b"{" + b'"a":1,' * 40_000 + b'"a":1}',
        b'{"a":[' + b'"\\u0000",' * 25_000 + b"1]}",
    ],
)
def test_hostile_bodies_of_the_largest_size_are_refused_at_once(body: bytes) -> None:
    started = time.process_time()
    refused(body)
    assert time.process_time() - started < 1


def test_a_thousand_wrong_values_are_not_echoed_back() -> None:
    body = b'{"a":[' + b'"\\u0000",' * 25_000 + b"1]}"
    assert len(refused(body).errors) <= 20


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_what_python_writes_is_read_back_or_refused_by_name(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    result = outcome(body)
    if isinstance(result, Problem):
        assert result.errors or "deeper" in result.message
    else:
        assert result == value


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_problem(body: bytes) -> None:
    result = outcome(body)
    assert isinstance(result, dict) or result.status_code == 400


def test_an_announced_length_beyond_the_bound_is_refused_unread() -> None:
    class Untouched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("the body was read")

    with pytest.raises(Problem) as caught:
        read_bounded(Untouched(), "1001", 1_000)
    assert caught.value.code == "body_too_large"


@pytest.mark.parametrize("announced", [None, "5", "", "x"])
def test_a_body_longer_than_announced_is_bounded_all_the_same(announced: str | None) -> None:
    with pytest.raises(Problem) as caught:
        read_bounded(io.BytesIO(b"x" * 5_000), announced, 1_000)
    assert caught.value.code == "body_too_large"


def test_a_body_that_ends_early_is_not_half_read() -> None:
    with pytest.raises(Problem) as caught:
        read_bounded(io.BytesIO(b"{}"), "10", 1_000)
    assert caught.value.code == "bad_request"


def test_a_body_of_exactly_the_bound_is_read() -> None:
    assert len(read_bounded(io.BytesIO(b"x" * 1_000), "1000", 1_000)) == 1_000
