"""Plain output shows what the serializer would show."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from rest_framework import serializers

from scheduler_project.lib.fields import InstantField
from scheduler_project.lib.plain_output import plain_output


class _LimitsOutput(serializers.Serializer[Any]):
    cpu = serializers.FloatField()
    note = serializers.CharField(allow_null=True)


class _ThingOutput(serializers.Serializer[Any]):
    thing_id = serializers.UUIDField(source="row.thing_id")
    made_at = InstantField()
    ended_at = InstantField(allow_null=True)
    count = serializers.IntegerField(source="row.count")
    labels = serializers.DictField(child=serializers.CharField())
    limits = _LimitsOutput(source="row.limits_json")
    twice = serializers.SerializerMethodField()

    def get_twice(self, thing: "_Thing") -> int:
        return 2 * thing.row.count


@dataclass(frozen=True)
class _Row:
    thing_id: UUID
    count: int

    def limits_json(self) -> dict[str, Any]:
        return {"cpu": 1, "note": None}


@dataclass(frozen=True)
class _Thing:
    row: _Row
    made_at: datetime
    ended_at: datetime | None
    labels: dict[str, str]


THING = _Thing(_Row(UUID(int=7), 3), datetime(2026, 1, 2, tzinfo=UTC), None, {"team": "billing"})


def test_an_object_is_shown_as_its_serializer_shows_it() -> None:
    serializer = _ThingOutput()
    assert plain_output(serializer)(THING) == serializer.to_representation(THING)


def test_a_whole_number_of_a_float_field_is_shown_as_a_float() -> None:
    limits = plain_output(_ThingOutput())(THING)["limits"]
    assert type(limits["cpu"]) is float
