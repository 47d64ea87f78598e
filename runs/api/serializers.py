"""Runs as JSON; its rule: instants in UTC, durations in seconds, what isn't known is null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from runs.models import Run, RunAttempt
from runs.selectors import Output, RunDetail
from scheduler_project.lib.fields import InstantField, StrictSerializer


class RunOutput(serializers.Serializer[Any]):
    """A run as lists show it."""

    run_id = serializers.UUIDField()
    job_id = serializers.UUIDField()
    job_version = serializers.IntegerField()
    trigger = serializers.CharField()
    replay_of = serializers.UUIDField(allow_null=True)
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

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """The fields; empty texts mean "nothing to say" and are shown as null."""
        shown: dict[str, Any] = super().to_representation(instance)
        for name in ("skip_reason", "outcome"):
            shown[name] = shown[name] or None
        return shown


class RunPageOutput(serializers.Serializer[Any]):
    """A page of runs; `next_cursor` is null on the last."""

    runs = RunOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class RunNowInput(StrictSerializer):
    """An empty object: running now has no options, and unknown ones are refused by name."""


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


def shown_run(run: Run) -> dict[str, Any]:
    """A run as JSON-ready values for a list."""
    return dict(RunOutput(run).data)


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
    return dict(RunDetailOutput({**vars(detail.run), **around}).data)


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
