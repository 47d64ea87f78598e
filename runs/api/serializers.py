"""Runs as JSON; its rule: instants in UTC, durations in seconds, what isn't known is null."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from rest_framework import serializers

from runs.domain.backfill import MOST_RATE_PER_MINUTE
from runs.domain.outcome import FAILED_OUTCOMES
from runs.models import Run, RunAttempt
from runs.selectors import Output, RunDetail
from scheduler_project.lib.fields import (
    FlagField,
    IdField,
    InstantField,
    OneOfField,
    StrictSerializer,
    WholeNumberField,
)
from scheduler_project.lib.instants import format_instant


class RunOutput(serializers.Serializer[Any]):
    """A run as lists show it."""

    run_id = serializers.UUIDField()
    job_id = serializers.UUIDField()
    job_version = serializers.IntegerField()
    trigger = serializers.CharField()
    replay_of = serializers.UUIDField(allow_null=True)
    replaced_by = serializers.UUIDField(allow_null=True)
    replayed_by = serializers.UUIDField(allow_null=True)
    status = serializers.CharField()
    scheduled_for = InstantField()
    due_at = InstantField()
    ready_at = InstantField()
    attempt = serializers.IntegerField()
    failures = serializers.IntegerField()
    lease_losses = serializers.IntegerField()
    created_at = InstantField()
    placed_at = InstantField(allow_null=True)
    leased_at = InstantField(allow_null=True)
    prepared_at = InstantField(allow_null=True)
    go_at = InstantField(allow_null=True)
    started_at = InstantField(allow_null=True)
    finished_at = InstantField(allow_null=True)
    cancel_requested_at = InstantField(allow_null=True)
    skip_reason = serializers.CharField(allow_null=True)
    outcome = serializers.CharField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)


class RunPageOutput(serializers.Serializer[Any]):
    """A page of runs; `next_cursor` is null on the last."""

    runs = RunOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class RunNowInput(StrictSerializer):
    """An empty object: running now has no options, and unknown ones are refused by name."""


class BackfillInput(StrictSerializer):
    """A stretch of the past, and how fast its missing occurrences are run."""

    to = InstantField()
    rate_per_minute = WholeNumberField(low=1, high=MOST_RATE_PER_MINUTE, required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The fields, with `from`, which is no name that a class can give."""
        return {"from": InstantField(), **super().get_fields()}


class BackfillOutput(serializers.Serializer[Any]):
    """What a backfill made."""

    created = serializers.IntegerField()
    existing = serializers.IntegerField()
    first_ready_at = InstantField(allow_null=True)
    last_ready_at = InstantField(allow_null=True)


class DeadLetterOutput(RunOutput):
    """A run that failed for good, with what became of its last attempt."""

    message = serializers.CharField(allow_null=True)


class DeadLetterPageOutput(serializers.Serializer[Any]):
    """A page of dead letters; `next_cursor` is null on the last."""

    dead_letters = DeadLetterOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class ReplayInput(StrictSerializer):
    """Which dead letters are replayed, and how fast; with `dry_run` it is only said which."""

    job_id = IdField(required=False)
    outcome = OneOfField(choices=FAILED_OUTCOMES, required=False)
    to = InstantField(required=False)
    rate_per_minute = WholeNumberField(low=1, high=MOST_RATE_PER_MINUTE, required=False)
    dry_run = FlagField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The fields, with `from`, which is no name that a class can give."""
        return {"from": InstantField(required=False), **super().get_fields()}


class ReplayedOutput(serializers.Serializer[Any]):
    """A dead letter and its new run; null in a dry run."""

    dead_letter = serializers.UUIDField()
    job_id = serializers.UUIDField()
    run_id = serializers.UUIDField(allow_null=True)


class ReplaysOutput(serializers.Serializer[Any]):
    """What was replayed, oldest first; `more`: further dead letters match."""

    dry_run = serializers.BooleanField()
    replayed = serializers.IntegerField()
    more = serializers.BooleanField()
    runs = ReplayedOutput(many=True)


class AttemptOutput(serializers.Serializer[Any]):
    """One try of a run on one worker, with the tail of what it printed."""

    attempt = serializers.IntegerField()
    fence = serializers.IntegerField()
    node = serializers.CharField()
    placed_at = InstantField(allow_null=True)
    leased_at = InstantField(allow_null=True)
    prepared_at = InstantField(allow_null=True)
    go_at = InstantField(allow_null=True)
    started_at = InstantField(allow_null=True)
    finished_at = InstantField(allow_null=True)
    outcome = serializers.CharField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    message = serializers.CharField(allow_null=True)
    image_digest = serializers.CharField(allow_null=True)
    output_tail = serializers.CharField(allow_null=True)
    output_truncated = serializers.BooleanField()


class LagStagesOutput(serializers.Serializer[Any]):
    """Seconds that each stage took after the due time; together they are the lag."""

    placed = serializers.FloatField()
    leased = serializers.FloatField()
    prepared = serializers.FloatField()
    go = serializers.FloatField()
    started = serializers.FloatField()


class LagOutput(serializers.Serializer[Any]):
    """How late the first attempt started."""

    total_s = serializers.FloatField()
    stages_s = LagStagesOutput()


class WaitingForOutput(serializers.Serializer[Any]):
    """What keeps the run from starting."""

    reason = serializers.CharField()
    until = InstantField(allow_null=True)
    run_id = serializers.UUIDField(allow_null=True)


class RunDetailOutput(RunOutput):
    """A run with everything around it, made from a selectors.RunDetail by `detail_json`."""

    message = serializers.CharField(allow_null=True)
    node = serializers.CharField(allow_null=True)
    lease_expires_at = InstantField(allow_null=True)
    waiting_for = WaitingForOutput(allow_null=True)
    lag = LagOutput(allow_null=True)
    output_tail = serializers.CharField(allow_null=True)
    output_truncated = serializers.BooleanField()
    attempts = AttemptOutput(many=True)


# Made once: a serializer copies all its fields when it is made, which costs more than its work.
# They keep nothing of a request, so threads may share them.
_DETAIL = RunDetailOutput()
RUN_NOW = RunNowInput()


def _instant(value: datetime | None) -> str | None:
    return None if value is None else format_instant(value)


def _id(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _as_it_is(value: Any) -> Any:
    # An empty reason or outcome means that there is nothing to say.
    return None if value == "" else value


def _formatter(field: object) -> Callable[[Any], Any]:
    if isinstance(field, InstantField):
        return _instant
    return _id if isinstance(field, serializers.UUIDField) else _as_it_is


# A page has a thousand fields: each is shown by one plain call.
_SHOWN = [(name, _formatter(field)) for name, field in RunOutput().fields.items()]


def shown_run(run: Run) -> dict[str, Any]:
    """A run as JSON-ready values, as RunOutput describes it."""
    return {name: show(getattr(run, name)) for name, show in _SHOWN}


def shown_dead_letter(run: Run, message: str) -> dict[str, Any]:
    """A dead letter as JSON-ready values, as DeadLetterOutput describes it."""
    return {**shown_run(run), "message": message or None}


def shown_detail(detail: RunDetail) -> dict[str, Any]:
    """A run with everything around it, as JSON-ready values."""
    last = detail.attempts[-1] if detail.attempts else None
    output = detail.outputs.get(last.attempt) if last else None
    around = {
        "message": (last.message or None) if last else None,
        "node": detail.node or (last.node if last else None),
        "lease_expires_at": detail.lease_expires_at,
        "waiting_for": detail.waiting_for and asdict(detail.waiting_for),
        "lag": detail.lag and asdict(detail.lag),
        "output_tail": output and output.text,
        "output_truncated": bool(output and output.truncated),
        "attempts": [_shown_attempt(attempt, detail.outputs) for attempt in detail.attempts],
    }
    return {**_DETAIL.to_representation({**vars(detail.run), **around}), **shown_run(detail.run)}


def _shown_attempt(attempt: RunAttempt, outputs: Mapping[int, Output]) -> dict[str, Any]:
    output = outputs.get(attempt.attempt)
    texts = {
        name: getattr(attempt, name) or None for name in ("outcome", "message", "image_digest")
    }
    return {
        **vars(attempt),
        **texts,
        "output_tail": output and output.text,
        "output_truncated": bool(output and output.truncated),
    }
