"""Cursors: signed, of one list only, exact to the microsecond; page sizes are bounded."""

import base64
import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_project.lib import pagination
from scheduler_project.lib.pagination import (
    CursorScope,
    decode_cursor,
    encode_cursor,
    limit_of,
)
from scheduler_project.lib.problems import Problem

TENANT = uuid.UUID("6f7f5a2e-6a0f-4d0e-9c58-0f6a3d9b7b11")
SCOPE = CursorScope("runs", TENANT, {"job": "1", "status": "failed"})
TYPES = (datetime, uuid.UUID)
VALUES = (datetime(2027, 3, 1, 15, 0, 0, 123_457, tzinfo=UTC), uuid.UUID(int=7))


def why_refused(cursor: str, scope: CursorScope = SCOPE) -> str:
    with pytest.raises(Problem) as caught:
        decode_cursor(cursor, scope, TYPES)
    assert caught.value.code == "invalid_cursor"
    return caught.value.message


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_keeps_its_values_exactly(instant: datetime, run_id: uuid.UUID) -> None:
    assert decode_cursor(encode_cursor(SCOPE, (instant, run_id)), SCOPE, TYPES) == (instant, run_id)


@pytest.mark.parametrize(
    "scope",
    [
        CursorScope("jobs", TENANT, SCOPE.filters),
        CursorScope("runs", uuid.UUID(int=1), SCOPE.filters),
        CursorScope("runs", TENANT, {**SCOPE.filters, "job": "2"}),
        CursorScope("runs", TENANT, {**SCOPE.filters, "status": ""}),
        CursorScope("runs", TENANT, {"job": "1"}),
        # The same letters, cut elsewhere.
        CursorScope("runs", TENANT, {"job": "1status", "": "failed"}),
    ],
)
def test_a_cursor_of_another_list_is_refused_and_told_so(scope: CursorScope) -> None:
    assert "another list" in why_refused(encode_cursor(SCOPE, VALUES), scope)


def test_the_order_in_which_filters_are_given_does_not_matter() -> None:
    turned = CursorScope("runs", TENANT, dict(reversed(list(SCOPE.filters.items()))))
    assert decode_cursor(encode_cursor(SCOPE, VALUES), turned, TYPES) == VALUES


@pytest.mark.parametrize(
    "cursor",
    ["", "abc", "\0", "a" * 5_000, "é", "====", "AAAA", "A" * 100, "null", "../x", "-1", "%00"],
)
def test_what_was_never_a_cursor_is_refused(cursor: str) -> None:
    assert "damaged" in why_refused(cursor)


def test_a_cursor_with_any_character_changed_is_refused() -> None:
    cursor = encode_cursor(SCOPE, VALUES)
    for position, character in enumerate(cursor):
        other = "A" if character != "A" else "B"
        assert "damaged" in why_refused(cursor[:position] + other + cursor[position + 1 :])
    for changed in (cursor[:-1], cursor + "A", cursor + "=", cursor + "\n", " " + cursor):
        assert "damaged" in why_refused(changed)


def test_a_cursor_signed_with_another_secret_is_refused(settings: Any) -> None:
    cursor = encode_cursor(SCOPE, VALUES)
    first, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert "damaged" in why_refused(cursor)
    # Unless the secret was only just replaced.
    settings.SECRET_KEY_FALLBACKS = [first]
    assert decode_cursor(cursor, SCOPE, TYPES) == VALUES


def test_a_cursor_of_an_older_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "CURSOR_VERSION", 0)
    cursor = encode_cursor(SCOPE, VALUES)
    monkeypatch.undo()
    assert "older version" in why_refused(cursor)


def test_a_cursor_older_than_a_month_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    then = time.time() - 32 * 86_400
    monkeypatch.setattr(time, "time", lambda: then)
    cursor = encode_cursor(SCOPE, VALUES)
    monkeypatch.undo()
    assert "30 days" in why_refused(cursor)


def test_a_cursor_tells_nothing_of_the_tenant() -> None:
    raw = base64.urlsafe_b64decode(encode_cursor(SCOPE, VALUES) + "==")
    facts = json.loads(raw[16:])
    assert TENANT.hex not in json.dumps(facts).replace("-", "")


@pytest.mark.parametrize(("text", "limit"), [(None, 50), ("1", 1), ("200", 200), ("007", 7)])
def test_a_page_size_within_bounds_is_taken(text: str | None, limit: int) -> None:
    assert limit_of(text) == limit


@pytest.mark.parametrize(
    "text", ["0", "-1", "201", "ten", "", " 5", "5 ", "+5", "1e2", "5.0", "٥", "9" * 5_000, "\0"]
)
def test_any_other_page_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(Problem) as caught:
        limit_of(text)
    assert caught.value.errors[0].field == "limit"
