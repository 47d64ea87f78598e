"""Jobs as JSON; its rule: what comes in is read strictly, what goes out shows every default."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.api.timing import (
    DstField,
    DstInput,
    MisfireField,
    MisfireInput,
    OccurrenceOutput,
    PauseField,
    PauseInput,
    ResumeField,
    ResumeInput,
    shown_occurrence,
)
from jobs.domain import policies
from jobs.domain.exit_codes import MOST_RANGES, ExitCodes
from jobs.domain.image import REFERENCE_LENGTH
from jobs.selectors import ShownJob
from scheduler_project.lib.fields import (
    FlagField,
    InstantField,
    ItemsField,
    MappingField,
    NumberField,
    OneOfField,
    StrictSerializer,
    TextField,
    WholeNumberField,
    wrong_type,
)
from scheduler_project.lib.instants import format_instant
from scheduler_project.lib.plain_output import plain_output

# How many next times a single job shows.
NEXT_RUNS = 5
NAME_LENGTH = 200
DESCRIPTION_LENGTH = 4_000


def _any_name(name: str) -> None:
    """Names are judged in jobs.domain.policies, which says what is wrong with each."""
    return


_SCHEDULE_SCHEMA = {
    "oneOf": [
        {
            "type": "object",
            "title": "Cron",
            "properties": {
                "cron": {"type": "string", "description": "Five fields, or a macro (@daily)."},
                "time_zone": {"type": "string", "description": "Exact name of an IANA zone."},
            },
            "required": ["cron", "time_zone"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "title": "Once",
            "properties": {
                "at": {
                    "type": "string",
                    "format": "date-time",
                    "description": "RFC 3339 with its offset, to the millisecond, in the future.",
                }
            },
            "required": ["at"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "title": "Interval",
            "properties": {
                "every": {
                    "type": "string",
                    "pattern": r"^([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
                    "description": "At least a minute, from `start_at` or the job's creation.",
                }
            },
            "required": ["every"],
            "additionalProperties": False,
        },
    ]
}


@extend_schema_field(_SCHEDULE_SCHEMA)
class ScheduleField(serializers.Field[Any, Any, Any, Any]):
    """The `schedule` object as sent: the schedule engine is its only reader."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field({"type": "integer", "minimum": 1, "maximum": 2**31 - 1})
class TenantBoundedField(serializers.Field[int, Any, int, Any]):
    """A whole number whose range is the tenant's: the service judges it and names that range."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise wrong_type("a whole number, written without . or e", data)
        return data

    def to_representation(self, value: int) -> int:
        return value


class ResourcesInput(StrictSerializer):
    """What a container may use; left out, the default or the tenant's ceiling if that is lower."""

    cpu = NumberField(low=policies.LEAST_CPU, high=1_000, places=2, required=False)
    memory_mb = WholeNumberField(low=policies.LEAST_MEMORY_MB, high=1_048_576, required=False)


class TaskInput(StrictSerializer):
    """What a run executes."""

    image = TextField(min_length=1, max_length=REFERENCE_LENGTH)
    args = ItemsField(
        most=policies.MOST_ARGS,
        child=TextField(max_length=policies.ARG_BYTES, max_bytes=policies.ARG_BYTES, raw=True),
        required=False,
    )
    env = MappingField(
        most=policies.MOST_VARIABLES,
        check_name=_any_name,
        child=TextField(
            max_length=policies.VARIABLE_BYTES, max_bytes=policies.VARIABLE_BYTES, raw=True
        ),
        required=False,
    )
    timeout_s = TenantBoundedField()
    resources = ResourcesInput(required=False)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The members given, by the names of policies.Task."""
        value = super().to_internal_value(data)
        resources = value.pop("resources", {})
        if "args" in value:
            value["args"] = tuple(value["args"])
        return {**value, **resources}


class ExitCodesInput(StrictSerializer):
    """What exit codes mean beyond success and failure: texts such as "2" and "64-78"."""

    ignore = ItemsField(most=MOST_RANGES, child=TextField(max_length=7), required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The fields, with `fail`, which is a method of every serializer."""
        fail = ItemsField(most=MOST_RANGES, child=TextField(max_length=7), required=False)
        return {"fail": fail, **super().get_fields()}

    def to_internal_value(self, data: Any) -> Any:
        """The whole, as the policy has it; what is left out is empty."""
        return ExitCodes.from_json(super().to_internal_value(data))


class RetryInput(StrictSerializer):
    """How often a run is tried, and how long it waits between tries (seconds)."""

    max_attempts = WholeNumberField(low=1, high=policies.MOST_ATTEMPTS, required=False)
    backoff = OneOfField(choices=["exponential", "fixed"], required=False)
    base_s = NumberField(low=0, high=policies.LONGEST_BACKOFF_S, places=3, required=False)
    max_s = NumberField(low=0, high=policies.LONGEST_BACKOFF_S, places=3, required=False)
    jitter = OneOfField(choices=["full", "none"], required=False)
    exit_codes = ExitCodesInput(required=False)


class JobInput(StrictSerializer):
    """A new job, or (with `partial=True`) a change of one."""

    name = TextField(max_length=NAME_LENGTH, nfc=True, required=False)
    description = TextField(max_length=DESCRIPTION_LENGTH, nfc=True, lines=True, required=False)
    labels = MappingField(
        most=policies.MOST_LABELS,
        check_name=_any_name,
        child=TextField(max_length=policies.LABEL_VALUE_LENGTH, nfc=True),
        required=False,
    )
    schedule = ScheduleField()
    task = TaskInput()
    retry = RetryInput(required=False)
    overlap = OneOfField(choices=list(policies.OVERLAPS), required=False)
    queue_limit = WholeNumberField(low=1, high=policies.LONGEST_QUEUE, required=False)
    enabled = FlagField(required=False)
    start_at = InstantField(required=False, allow_null=True)
    end_at = InstantField(required=False, allow_null=True)
    dst = DstInput(required=False)
    misfire = MisfireInput(required=False)
    pause = PauseInput(required=False, allow_null=True)
    resume = ResumeInput(required=False)
    late_after_s = WholeNumberField(
        low=1, high=policies.LONGEST_LATE_AFTER_S, required=False, allow_null=True
    )
    auto_pause_after = WholeNumberField(
        low=1, high=policies.MOST_FAILURES_TO_PAUSE, required=False, allow_null=True
    )


class ResourcesOutput(serializers.Serializer[Any]):
    cpu = serializers.FloatField()
    memory_mb = serializers.IntegerField()


class TaskOutput(serializers.Serializer[Any]):
    image = serializers.CharField()
    args = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    timeout_s = serializers.IntegerField()
    resources = ResourcesOutput()


class ExitCodesOutput(serializers.Serializer[Any]):
    ignore = serializers.ListField(child=serializers.CharField())

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The fields, with `fail`, which is a method of every serializer."""
        fail = serializers.ListField(child=serializers.CharField())
        return {"fail": fail, **super().get_fields()}


class RetryOutput(serializers.Serializer[Any]):
    max_attempts = serializers.IntegerField()
    backoff = serializers.CharField()
    base_s = serializers.FloatField()
    max_s = serializers.FloatField()
    jitter = serializers.CharField()
    exit_codes = ExitCodesOutput()


class JobOutput(serializers.Serializer[Any]):
    """A job as the API shows it, made from a selectors.ShownJob."""

    job_id = serializers.UUIDField(source="job.job_id")
    version = serializers.IntegerField(source="job.version")
    name = serializers.CharField(source="job.name")
    description = serializers.CharField(source="job.description")
    labels = serializers.DictField(source="job.labels", child=serializers.CharField())
    schedule = ScheduleField()
    task = TaskOutput(source="spec.task.to_json")
    retry = RetryOutput(source="spec.retry.to_json")
    overlap = serializers.CharField(source="job.overlap")
    queue_limit = serializers.IntegerField(source="job.queue_limit")
    enabled = serializers.BooleanField(source="job.enabled")
    start_at = InstantField(source="job.start_at", allow_null=True)
    end_at = InstantField(source="job.end_at", allow_null=True)
    dst = DstField()
    misfire = MisfireField()
    pause = PauseField(allow_null=True)
    resume = ResumeField()
    late_after_s = serializers.IntegerField(source="job.late_after_s", allow_null=True)
    auto_pause_after = serializers.IntegerField(source="job.auto_pause_after", allow_null=True)
    next_run_at = InstantField(allow_null=True)
    created_at = InstantField(source="job.created_at")
    updated_at = InstantField(source="job.updated_at")


class JobDetailOutput(JobOutput):
    """A single job, with its next times."""

    next_runs = serializers.SerializerMethodField()
    next_occurrences = serializers.SerializerMethodField()

    @extend_schema_field({"type": "array", "items": {"type": "string", "format": "date-time"}})
    def get_next_runs(self, shown: ShownJob) -> list[str]:
        """The next times, `next_run_at` first."""
        return [format_instant(instant) for instant in shown.next_runs(NEXT_RUNS)]

    @extend_schema_field(OccurrenceOutput(many=True))
    def get_next_occurrences(self, shown: ShownJob) -> list[dict[str, Any]]:
        """The same, each with what the wall shows, and the notes of a preview."""
        return [shown_occurrence(one) for one in shown.next_occurrences(NEXT_RUNS)]


class JobPageOutput(serializers.Serializer[Any]):
    """A page of jobs; `next_cursor` is null on the last."""

    jobs = JobOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


# Made once: a serializer copies all its fields when it is made, which costs more than its work.
# They keep nothing of a request, so threads may share them.
NEW_JOB = JobInput()
JOB_CHANGE = JobInput(partial=True)
show_job_in_list = plain_output(JobOutput())
show_job = plain_output(JobDetailOutput())
