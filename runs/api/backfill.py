"""Backfilling a job: its occurrences of a time that has passed, run now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from rest_framework.response import Response

from jobs.api.problems import job_refusals
from jobs.selectors import job_find
from runs.api import examples
from runs.api.serializers import BackfillInput, BackfillOutput
from runs.backfill import job_backfill
from runs.domain.backfill import DEFAULT_RATE_PER_MINUTE
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.openapi import IDEMPOTENCY_KEY, operation
from scheduler_project.lib.problems import Problem
from tenants.api.authentication import ApiRequest
from tenants.api.idempotency import idempotent

BACKFILL = BackfillInput()
BACKFILLED = BackfillOutput()


class JobBackfill(ApiView):
    """Backfill a job."""

    @operation(
        "Backfill a job",
        status=202,
        response=BackfillOutput,
        example=examples.BACKFILL,
        request=BackfillInput,
        request_example=examples.BACKFILL_REQUEST,
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent
    def post(self, request: ApiRequest, job_id: UUID) -> Response:
        """Makes a run for each occurrence in [from, to) that has none, also of a paused job.

        Which those are, the job's versions say: each by the schedule of its time. They run with
        the task as it is now, at `rate_per_minute` (60 if you don't say), behind all live work.
        """
        if job_find(request.tenant, job_id) is None:
            raise Problem("not_found")
        said: dict[str, Any] = BACKFILL.run_validation(request.data)
        with job_refusals():
            made = job_backfill(
                request.tenant,
                job_id,
                said["from"],
                said["to"],
                rate_per_minute=said.get("rate_per_minute", DEFAULT_RATE_PER_MINUTE),
            )
        return Response(BACKFILLED.to_representation(asdict(made)), status=202)
