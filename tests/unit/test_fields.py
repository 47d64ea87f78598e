"""Input fields: the right JSON type or a refusal, never a conversion."""

import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework import serializers

from scheduler_project.lib.fields import (
    MOST_UNKNOWN_TOLD,
    FlagField,
    IdField,
    InstantField,
    ItemsField,
    MappingField,
    NumberField,
    OneOfField,
    StrictSerializer,
    TextField,
    WholeNumberField,
)
from scheduler_project.lib.instants import format_instant, parse_instant
from scheduler_project.lib.problem_catalogue import FIELD_CODES
from scheduler_project.lib.problems import FieldProblem, flatten


class Task(StrictSerializer):
    image = TextField(min_length=1, max_length=20)
    args = ItemsField(most=3, child=TextField(max_length=5, raw=True), required=False)
    env = MappingField(
        most=2,
        check_name=lambda name: None if name.isidentifier() else "This is no name.",
        child=TextField(max_length=5, raw=True),
        required=False,
    )
    timeout_s = WholeNumberField(low=1, high=86_400)
    cpu = NumberField(low=0.1, high=2, places=2, required=False)


class Input(StrictSerializer):
    name = TextField(max_length=10, max_bytes=20, nfc=True, required=False)
    notes = TextField(max_length=50, lines=True, required=False)
    enabled = FlagField(required=False)
    overlap = OneOfField(choices=["skip", "allow"], required=False)
    at = InstantField(required=False)
    run_id = IdField(required=False)
    task = Task(required=False)


def read(data: Any) -> dict[str, Any]:
    serializer = Input(data=data)
    serializer.is_valid(raise_exception=True)
    value: dict[str, Any] = serializer.validated_data
    return value


def errors_of(data: Any) -> list[FieldProblem]:
    with pytest.raises(serializers.ValidationError) as caught:
        read(data)
    return flatten(caught.value.detail)


def problems_with(data: Any) -> list[FieldProblem]:
    try:
        read(data)
    except serializers.ValidationError as error:
        return flatten(error.detail)
    return []


def the_error(data: Any) -> tuple[str, str]:
    (error,) = errors_of(data)
    assert error.code in FIELD_CODES, f"{error.code} is not in the catalogue"
    return error.field, error.code


TASK = {"image": "a/b:1", "timeout_s": 60}


@pytest.mark.parametrize(
    ("data", "field", "code"),
    [
        (None, "", "null"),
        ([], "", "wrong_type"),
        ("x", "", "wrong_type"),
        ({"nmae": "x"}, "nmae", "unknown_field"),
        ({"task": None}, "task", "null"),
        ({"task": []}, "task", "wrong_type"),
        ({"task": {**TASK, "imgae": 1}}, "task.imgae", "unknown_field"),
        ({"task": {"timeout_s": 1}}, "task.image", "required"),
        ({"task": {**TASK, "image": ""}}, "task.image", "blank"),
        ({"task": {**TASK, "image": 5}}, "task.image", "wrong_type"),
        ({"task": {**TASK, "image": True}}, "task.image", "wrong_type"),
        ({"task": {**TASK, "image": None}}, "task.image", "null"),
        ({"task": {**TASK, "image": "a" * 21}}, "task.image", "too_long"),
        ({"task": {**TASK, "image": "a\nb"}}, "task.image", "invalid_character"),
        ({"task": {**TASK, "timeout_s": True}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": "60"}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": 60.0}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": 1e3}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": 1.5}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": None}}, "task.timeout_s", "null"),
        ({"task": {**TASK, "timeout_s": [1]}}, "task.timeout_s", "wrong_type"),
        ({"task": {**TASK, "timeout_s": 0}}, "task.timeout_s", "too_small"),
        ({"task": {**TASK, "timeout_s": -1}}, "task.timeout_s", "too_small"),
        ({"task": {**TASK, "timeout_s": 86_401}}, "task.timeout_s", "too_large"),
        ({"task": {**TASK, "timeout_s": 2**31}}, "task.timeout_s", "too_large"),
        ({"task": {**TASK, "timeout_s": 10**30}}, "task.timeout_s", "too_large"),
        ({"task": {**TASK, "cpu": "1"}}, "task.cpu", "wrong_type"),
        ({"task": {**TASK, "cpu": False}}, "task.cpu", "wrong_type"),
        ({"task": {**TASK, "cpu": 0}}, "task.cpu", "too_small"),
        ({"task": {**TASK, "cpu": 2.01}}, "task.cpu", "too_large"),
        ({"task": {**TASK, "cpu": 0.123}}, "task.cpu", "invalid"),
        ({"task": {**TASK, "args": "ls"}}, "task.args", "wrong_type"),
        ({"task": {**TASK, "args": {"0": "ls"}}}, "task.args", "wrong_type"),
        ({"task": {**TASK, "args": ["a", 1]}}, "task.args[1]", "wrong_type"),
        ({"task": {**TASK, "args": ["a", None]}}, "task.args[1]", "null"),
        ({"task": {**TASK, "args": ["a"] * 4}}, "task.args", "too_long"),
        ({"task": {**TASK, "env": []}}, "task.env", "wrong_type"),
        ({"task": {**TASK, "env": {"A": {}}}}, "task.env.A", "wrong_type"),
        ({"task": {**TASK, "env": {"A": 1}}}, "task.env.A", "wrong_type"),
        ({"task": {**TASK, "env": {"A B": "1"}}}, 'task.env["A B"]', "invalid"),
        ({"task": {**TASK, "env": {"": "1"}}}, 'task.env[""]', "invalid"),
        ({"task": {**TASK, "env": {"A": "1", "B": "2", "C": "3"}}}, "task.env", "too_long"),
        ({"enabled": "false"}, "enabled", "wrong_type"),
        ({"enabled": 0}, "enabled", "wrong_type"),
        ({"enabled": None}, "enabled", "null"),
        ({"overlap": "forbid"}, "overlap", "invalid_choice"),
        ({"overlap": "SKIP"}, "overlap", "invalid_choice"),
        ({"overlap": ""}, "overlap", "invalid_choice"),
        ({"overlap": 5}, "overlap", "wrong_type"),
        ({"overlap": ["skip"]}, "overlap", "wrong_type"),
        ({"name": "x" * 11}, "name", "too_long"),
        ({"name": "日" * 7}, "name", "too_long"),
        ({"name": "x" * 100_000}, "name", "too_long"),
        ({"name": "a\tb"}, "name", "invalid_character"),
        ({"name": "a\x7f"}, "name", "invalid_character"),
        ({"name": "a\u2028b"}, "name", "invalid_character"),
        ({"notes": "a\x1bb"}, "notes", "invalid_character"),
        ({"run_id": "abc"}, "run_id", "invalid_uuid"),
        ({"run_id": 5}, "run_id", "wrong_type"),
        ({"at": "2027-03-01"}, "at", "invalid_instant"),
        ({"at": 1_800_000_000}, "at", "wrong_type"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(data: Any, field: str, code: str) -> None:
    assert the_error(data) == (field, code)


def test_all_that_is_wrong_is_said_at_once() -> None:
    errors = errors_of({"nmae": 1, "enabled": 1, "task": {"timeout_s": 0, "args": [1, 2]}})
    assert {error.field for error in errors} == {
        "nmae",
        "enabled",
        "task.image",
        "task.timeout_s",
        "task.args[0]",
        "task.args[1]",
    }


def test_an_unknown_field_comes_with_the_nearest_known_one() -> None:
    (error,) = errors_of({"overlapp": "skip"})
    assert error.hint == "Did you mean overlap?"


def test_a_field_like_no_other_comes_with_all_that_there_are() -> None:
    (error,) = errors_of({"zzz": 1})
    assert error.hint == "Known here: at, enabled, name, notes, overlap, run_id, task."


def test_a_number_out_of_bounds_comes_with_the_bounds() -> None:
    (error,) = errors_of({"task": {**TASK, "timeout_s": 10**30}})
    assert "from 1 to 86400" in error.message


def test_a_huge_unknown_name_is_not_echoed_whole() -> None:
    (error,) = errors_of({"x" * 100_000: 1})
    assert len(error.field) <= 110


@pytest.mark.parametrize("name", ["नाम – Büro", "日本語 🕘", " spaces ", "‮rtl", "q\u0307"])
def test_text_in_nfc_is_kept_to_the_byte(name: str) -> None:
    assert read({"name": name})["name"] == name


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("e\u0301" * 10, True),  # ten letters, each written as two characters
        ("e\u0301" * 11, False),
        ("\u0958" * 5, True),  # five characters, whose stored form has ten
        ("\u0958" * 6, False),
        ("\u1f82" * 3, True),
        (unicodedata.normalize("NFD", "\u1f82" * 3), True),
    ],
)
def test_the_length_of_a_name_is_that_of_its_stored_form(name: str, accepted: bool) -> None:
    class Named(StrictSerializer):
        name = TextField(max_length=10, nfc=True)

    serializer = Named(data={"name": name})
    assert serializer.is_valid() == accepted
    if not accepted:
        assert serializer.errors["name"][0].code == "too_long"


def test_of_twenty_thousand_unknown_fields_some_are_told() -> None:
    told = errors_of({f"x{n}": 1 for n in range(20_000)})
    assert {error.code for error in told} == {"unknown_field"}
    assert len(told) == MOST_UNKNOWN_TOLD


def test_a_name_in_another_form_is_stored_in_nfc() -> None:
    assert read({"name": "Bu\u0308ro"})["name"] == "B\u00fcro"


def test_arguments_and_variables_are_never_touched() -> None:
    said = {**TASK, "args": ["u\u0308", "", "\n\x1b"], "env": {"A": "=\r\n"}}
    assert read({"task": said})["task"] == said


def test_lines_are_kept_where_they_are_allowed() -> None:
    assert read({"notes": "a\r\n\tb"})["notes"] == "a\r\n\tb"


@given(st.text(max_size=10).filter(lambda t: unicodedata.normalize("NFC", t) == t))
def test_a_name_is_stored_as_sent_or_refused(name: str) -> None:
    try:
        assert read({"name": name})["name"] == name
    except serializers.ValidationError as error:
        (problem,) = flatten(error.detail)
        assert problem.field == "name"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_no_value_breaks_a_field(value: Any) -> None:
    for name in map(str, Input().fields):
        assert all(problem.field.startswith(name) for problem in problems_with({name: value}))


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-03-01T15:00:00Z", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2027-03-01t15:00:00z", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2027-03-01T15:00:00+05:30", datetime(2027, 3, 1, 9, 30, tzinfo=UTC)),
        ("2027-03-01T15:00:00-00:00", datetime(2027, 3, 1, 15, tzinfo=UTC)),
        ("2027-03-01T15:00:00.75Z", datetime(2027, 3, 1, 15, 0, 0, 750_000, tzinfo=UTC)),
        ("2027-03-01T15:00:00.000001Z", datetime(2027, 3, 1, 15, 0, 0, 1, tzinfo=UTC)),
        ("2028-02-29T00:00:00Z", datetime(2028, 2, 29, tzinfo=UTC)),
    ],
)
def test_instants_of_rfc_3339_are_read_to_the_microsecond(text: str, instant: datetime) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2027-03-01",
        "2027-03-01T15:00:00",
        "2027-03-01 15:00:00Z",
        "2027-03-01T24:00:00Z",
        "2027-03-01T23:59:60Z",
        "2027-02-29T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "0000-01-01T00:00:00Z",
        "2027-03-01T15:00:00+25:00",
        "2027-03-01T15:00:00+05:60",
        "2027-03-01T15:00:00.Z",
        "2027-03-01T15:00:00.1234567Z",
        "2027-03-01T15:00Z",
        "2027-W09-1T15:00:00Z",
        "20270301T150000Z",
        "+2027-03-01T15:00:00Z",
        "2027-03-01T15:00:00Z ",
        "2027-03-01T15:00:00Z\n",
        "２０２７-03-01T15:00:00Z",
        "1772377200",
        "now",
    ],
)
def test_what_is_not_an_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_instant(text)


@given(st.datetimes(timezones=st.just(UTC)))
def test_what_is_written_as_an_instant_is_read_back(instant: datetime) -> None:
    assert parse_instant(format_instant(instant)) == instant
