"""The operations on runs, a class each: read the request, call the service, show the run."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from jobs.api.problems import job_refusals
from jobs.selectors import job_existed, job_find
from runs.api import examples
from runs.api.queries import instant_of, one_of
from runs.api.serializers import (
    RUN_NOW,
    RunDetailOutput,
    RunNowInput,
    RunOutput,
    RunPageOutput,
    shown_detail,
    shown_run,
)
from runs.domain.state import RunStatus, Trigger
from runs.errors import RunIsFinalError, RunNotFoundError
from runs.selectors import RunFilter, run_detail, runs_of
from runs.services import run_cancel, run_now
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.openapi import CURSOR, IDEMPOTENCY_KEY, LIMIT, operation
from scheduler_project.lib.pagination import CursorScope, keyset_page, limit_of
from scheduler_project.lib.problems import Problem
from tenants.api.authentication import ApiRequest
from tenants.api.idempotency import idempotent

_STATUSES = [str(status) for status in RunStatus]
_TRIGGERS = [str(trigger) for trigger in Trigger]
_FILTERS = ("status", "trigger", "from", "to")
_PARAMETERS = [
    OpenApiParameter("status", str, enum=_STATUSES, description="Only runs in this status."),
    OpenApiParameter("trigger", str, enum=_TRIGGERS, description="Only runs made by this."),
    OpenApiParameter("from", datetime, description="Only runs scheduled for this time or later."),
    OpenApiParameter("to", datetime, description="Only runs scheduled for before this time."),
    CURSOR,
    LIMIT,
]


class RunList(ApiView):
    """List the tenant's runs, newest first."""

    query_names = {"GET": (*_FILTERS, "cursor", "limit")}

    @operation(
        "List runs",
        response=RunPageOutput,
        example=examples.RUN_PAGE,
        parameters=_PARAMETERS,
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest) -> Response:
        """Of all the tenant's jobs, those scheduled last first."""
        return _page(self, request, None)


class JobRunList(ApiView):
    """List the runs of a job, newest first; of a deleted one, too."""

    query_names = {"GET": (*_FILTERS, "cursor", "limit")}

    @operation(
        "List the runs of a job",
        response=RunPageOutput,
        example=examples.RUN_PAGE,
        parameters=_PARAMETERS,
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest, job_id: UUID) -> Response:
        """Of one job, also of a deleted one; those scheduled last first."""
        if not job_existed(request.tenant, job_id):
            raise Problem("not_found")
        return _page(self, request, job_id)


class RunNow(ApiView):
    """Run a job now."""

    rate_classes = {"POST": "run_now"}

    @operation(
        "Run a job now",
        status=201,
        response=RunOutput,
        example=examples.NEW_RUN,
        request=RunNowInput(required=False),
        request_example={},
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent
    def post(self, request: ApiRequest, job_id: UUID) -> Response:
        """Makes a run that is due at once, also of a job that is switched off.

        It obeys the job's `overlap` when its turn comes: it may be `blocked` or `skipped` then.
        """
        if job_find(request.tenant, job_id) is None:
            raise Problem("not_found")
        if request.META.get("CONTENT_LENGTH") not in (None, "", "0"):
            RUN_NOW.run_validation(request.data)
        with job_refusals():
            run = run_now(request.tenant, job_id)
        return Response(shown_run(run), status=201, headers={"Location": f"/v1/runs/{run.run_id}"})


class RunGet(ApiView):
    """Read a run with its attempts, its lag, and what it waits for."""

    @operation("Read a run", response=RunDetailOutput, example=examples.RUN_DETAIL)
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        """With every attempt, the parts of its lag, what it waits for, and what it printed last."""
        detail = run_detail(request.tenant, run_id)
        if detail is None:
            raise Problem("not_found")
        return Response(shown_detail(detail))


class RunCancel(ApiView):
    """Cancel a run."""

    @operation(
        "Cancel a run",
        status=202,
        response=RunOutput,
        example=examples.CANCELLED_RUN,
        parameters=[IDEMPOTENCY_KEY],
        problems=["run_is_final"],
    )
    @idempotent
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        """One that hasn't started is `cancelled` at once; a running one when its container ended.

        Until then it is `running`, with `cancel_requested_at`.
        """
        try:
            run = run_cancel(request.tenant, run_id)
        except RunNotFoundError:
            raise Problem("not_found") from None
        except RunIsFinalError as error:
            raise Problem("run_is_final", f"The run is {error.status}.") from None
        return Response(shown_run(run), status=202)


def _page(view: ApiView, request: ApiRequest, job_id: UUID | None) -> Response:
    filters = {name: view.query.get(name) or "" for name in _FILTERS}
    page = keyset_page(
        runs_of(request.tenant, _narrowed(view, job_id)),
        {"scheduled_for": datetime, "run_id": UUID},
        CursorScope("runs", request.tenant.pk, {**filters, "job": str(job_id or "")}),
        view.query.get("cursor"),
        limit_of(view.query.get("limit")),
    )
    runs = [shown_run(run) for run in page.rows]
    return Response({"runs": runs, "next_cursor": page.next_cursor})


def _narrowed(view: ApiView, job_id: UUID | None) -> RunFilter:
    return RunFilter(
        job_id=job_id,
        status=one_of(view, "status", _STATUSES),
        trigger=one_of(view, "trigger", _TRIGGERS),
        since=instant_of(view, "from"),
        until=instant_of(view, "to"),
    )
