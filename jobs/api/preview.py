"""What a schedule will do, asked without storing it: the planner's own code answers."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from jobs.api import examples
from jobs.api.problems import job_refusals
from jobs.api.serializers import ScheduleField
from jobs.api.timing import (
    MOST_PREVIEWED,
    PREVIEWED,
    DstInput,
    PreviewOutput,
    shown_occurrence,
)
from jobs.domain.preview import Preview
from jobs.domain.schedule import DstPolicy
from jobs.previews import schedule_preview
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.fields import InstantField, StrictSerializer, WholeNumberField
from scheduler_project.lib.openapi import operation
from tenants.api.authentication import ApiRequest


class PreviewInput(StrictSerializer):
    """A schedule with what decides its times, and how many of them to show."""

    schedule = ScheduleField()
    dst = DstInput(required=False)
    start_at = InstantField(required=False, allow_null=True)
    end_at = InstantField(required=False, allow_null=True)
    after = InstantField(required=False)
    count = WholeNumberField(low=1, high=MOST_PREVIEWED, required=False)


PREVIEW = PreviewInput()


class SchedulePreview(ApiView):
    """Preview a schedule."""

    # Nothing is stored: a key that may only read may ask.
    required_scope = "read"
    rate_classes = {"POST": "read"}

    @operation(
        "Preview a schedule",
        response=PreviewOutput,
        example=examples.PREVIEW,
        request=PreviewInput,
        request_example=examples.PREVIEW_REQUEST,
    )
    def post(self, request: ApiRequest) -> Response:
        """Shows the next times after `after` (left out: now), in words, and what may surprise.

        Made by the code that plans jobs; nothing is stored. An interval without `start_at` counts
        from `after`, as that of a job created then would.
        """
        said: dict[str, Any] = PREVIEW.run_validation(request.data)
        with job_refusals():
            shown = schedule_preview(
                said["schedule"],
                dst=DstPolicy(**said.get("dst", {})),
                after=said.get("after"),
                count=said.get("count", PREVIEWED),
                start_at=said.get("start_at"),
                end_at=said.get("end_at"),
            )
        return Response(_as_json(shown))


def _as_json(shown: Preview) -> dict[str, Any]:
    return {
        "occurrences": [shown_occurrence(occurrence) for occurrence in shown.occurrences],
        "description": shown.description,
        "warnings": [
            {"code": warning.code, "message": warning.message} for warning in shown.warnings
        ],
    }
