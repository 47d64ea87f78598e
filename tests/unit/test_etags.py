"""Versions in headers: If-Match guards a change, If-None-Match saves an answer."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from scheduler_project.lib.etags import (
    NO_VERSION,
    etag_of,
    expected_version,
    is_unmodified,
    parse_if_match,
)
from scheduler_project.lib.problems import Problem


def request_with(**headers: str) -> Request:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(APIRequestFactory().get("/", headers=names))


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ('"3"', 3),
        ("3", 3),
        (' "3" ', 3),
        ('"3.0123456789ab"', 3),
        ('"3", "3"', 3),
        ('"3",', 3),
        ("*", None),
        (" * ", None),
        # None of these is a version that an object can have: the guard finds nothing (412).
        ('"abc"', NO_VERSION),
        ('"03"', NO_VERSION),
        ('"0"', NO_VERSION),
        ('"-1"', NO_VERSION),
        ('W/"3"', NO_VERSION),
        ('""', NO_VERSION),
        ("99999999999999999999", NO_VERSION),
        ('"99999999999999999999"', NO_VERSION),
        ('"2147483648"', NO_VERSION),
        ('"3.xyz"', NO_VERSION),
    ],
)
def test_if_match_names_a_version_or_none_that_exists(header: str, version: int | None) -> None:
    assert expected_version(request_with(If_Match=header), is_required=True) == version


@pytest.mark.parametrize(
    "header",
    [
        "abc",
        "3x",
        "-1",
        "1.0",
        '"3',
        '3"',
        "'3'",
        "W/3",
        '"1" "2"',
        "*, 3",
        ",",
        '"3 "',
        '"٣"',
        "1" * 2_000,
    ],
)
def test_an_if_match_that_is_no_list_of_tags_is_refused(header: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_if_match(header)
    assert caught.value.code == "invalid_if_match"


def test_several_versions_are_refused_because_a_change_starts_from_one() -> None:
    with pytest.raises(Problem) as caught:
        expected_version(request_with(If_Match='"1", "2"'), is_required=True)
    assert caught.value.code == "invalid_if_match"


@pytest.mark.parametrize("header", [None, "", "  "])
def test_a_change_without_if_match_is_a_428(header: str | None) -> None:
    with pytest.raises(Problem) as caught:
        parse_if_match(header)
    assert caught.value.code == "precondition_required"


def test_where_if_match_is_not_required_any_version_will_do_without_it() -> None:
    assert expected_version(request_with(), is_required=False) is None
    assert expected_version(request_with(If_Match="2"), is_required=False) == 2


def test_a_tag_changes_with_what_is_shown_and_still_names_its_version() -> None:
    first, second = etag_of(3, "2026-01-01"), etag_of(3, "2026-01-02")
    assert first != second
    assert parse_if_match(first).versions == parse_if_match(second).versions == {3}


@pytest.mark.parametrize(
    ("header", "unmodified"),
    [
        ('"3"', True),
        ('W/"3"', True),
        ('"1", "3"', True),
        ("3", True),
        ("*", True),
        ('"4"', False),
        ('"3.0123456789ab"', False),
        ("", False),
        ('"3', False),
        ("\x7f", False),
    ],
)
def test_if_none_match_saves_an_answer_only_for_the_same_tag(header: str, unmodified: bool) -> None:
    assert is_unmodified(request_with(If_None_Match=header), etag_of(3)) is unmodified


@given(st.text(max_size=50))
def test_no_header_raises_anything_but_a_problem(header: str) -> None:
    with contextlib.suppress(Problem):
        parse_if_match(header)


@given(st.integers(1, 2**31 - 1))
def test_every_version_s_own_tag_names_it(version: int) -> None:
    assert parse_if_match(etag_of(version)).accepts(version)
    assert parse_if_match(etag_of(version, "x")).accepts(version)
    assert not parse_if_match(etag_of(version)).accepts(version + 1)
