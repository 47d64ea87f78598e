"""What a job says about its times, as JSON: clock changes, lateness, pauses; and the preview."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.domain import timing
from jobs.domain.misfire import MissedPolicy
from jobs.domain.preview import Occurrence
from jobs.domain.timing import CatchUp, Pause
from scheduler_project.lib.fields import (
    InstantField,
    OneOfField,
    StrictSerializer,
    TextField,
    WholeNumberField,
)
from scheduler_project.lib.instants import format_instant

# The most occurrences that a preview shows, and those it shows unasked.
MOST_PREVIEWED: Final = 100
PREVIEWED: Final = 10


class DstInput(StrictSerializer):
    """What a fixed-time cron schedule does when the clock changes."""

    gap = OneOfField(choices=["next_valid", "skip"], required=False)
    fold = OneOfField(choices=["first", "second", "both"], required=False)


class MisfireInput(StrictSerializer):
    """What becomes of an occurrence that is late (seconds)."""

    policy = OneOfField(choices=[policy.value for policy in MissedPolicy], required=False)
    grace_s = WholeNumberField(low=0, high=timing.LONGEST_GRACE_S, required=False)
    deadline_s = WholeNumberField(
        low=1, high=timing.LONGEST_DEADLINE_S, required=False, allow_null=True
    )
    max_catch_up = WholeNumberField(low=0, high=timing.MOST_CATCH_UP, required=False)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The members given, by the names of misfire.Misfire."""
        return timing.misfire_members(super().to_internal_value(data))


class PauseInput(StrictSerializer):
    """A rest until an instant, or until somebody ends it (`pause: null`)."""

    until = InstantField(required=False, allow_null=True)
    reason = TextField(max_length=timing.PAUSE_REASON_LENGTH, nfc=True, required=False)

    def to_internal_value(self, data: Any) -> Any:
        """The pause."""
        return Pause(**super().to_internal_value(data))


class ResumeInput(StrictSerializer):
    """What runs of the occurrences that the pause held back, when it ends."""

    catch_up = OneOfField(choices=[catch_up.value for catch_up in CatchUp], required=False)

    def to_internal_value(self, data: Any) -> Any:
        """The word, as a CatchUp."""
        return CatchUp(super().to_internal_value(data).get("catch_up", CatchUp.NONE))


class DstOutput(serializers.Serializer[Any]):
    gap = serializers.CharField()
    fold = serializers.CharField()


class MisfireOutput(serializers.Serializer[Any]):
    policy = serializers.CharField()
    grace_s = serializers.IntegerField()
    deadline_s = serializers.IntegerField(allow_null=True)
    max_catch_up = serializers.IntegerField()


class PauseOutput(serializers.Serializer[Any]):
    until = InstantField(allow_null=True)
    reason = serializers.CharField()
    since = InstantField(allow_null=True)
    by = serializers.CharField()


class ResumeOutput(serializers.Serializer[Any]):
    catch_up = serializers.CharField()


class _AsItIs(serializers.Field[Any, Any, Any, Any]):
    """A value that is JSON already: nested serializers would cost more than the job's own row."""

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(DstOutput)
class DstField(_AsItIs):
    """A job's `dst`."""


@extend_schema_field(MisfireOutput)
class MisfireField(_AsItIs):
    """A job's `misfire`."""


@extend_schema_field(PauseOutput)
class PauseField(_AsItIs):
    """A job's `pause`."""


@extend_schema_field(ResumeOutput)
class ResumeField(_AsItIs):
    """A job's `resume`."""


class OccurrenceOutput(serializers.Serializer[Any]):
    """One occurrence: the instant, and what the wall shows then."""

    scheduled_for = InstantField()
    local = serializers.CharField(help_text="The wall clock's time, without its offset.")
    offset = serializers.CharField(help_text="The wall clock's distance from UTC.")
    notes = serializers.ListField(
        child=serializers.CharField(),
        help_text="`dst_shifted`, `fold_first`, `fold_second`: see docs/time-zones.md.",
    )


class ScheduleWarningOutput(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()


class PreviewOutput(serializers.Serializer[Any]):
    """What a schedule will do."""

    occurrences = OccurrenceOutput(many=True)
    description = serializers.CharField()
    warnings = ScheduleWarningOutput(many=True)


def shown_occurrence(occurrence: Occurrence) -> dict[str, Any]:
    """An occurrence as JSON-ready values."""
    return {
        "scheduled_for": format_instant(occurrence.scheduled_for),
        "local": occurrence.local.isoformat(timespec="auto"),
        "offset": occurrence.offset,
        "notes": list(occurrence.notes),
    }
