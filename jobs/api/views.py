"""The operations on jobs, a class each: read the request, call the service, show the job."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from jobs.api import examples
from jobs.api.problems import job_refusals
from jobs.api.serializers import (
    JOB_CHANGE,
    NEW_JOB,
    JobDetailOutput,
    JobInput,
    JobPageOutput,
    show_job,
    show_job_in_list,
)
from jobs.domain.spec import JobChanges
from jobs.models import Job
from jobs.selectors import ShownJob, job_find, jobs_of, shown_jobs
from jobs.services import job_create, job_delete, job_update
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.etags import etag_of, expected_version, is_unmodified
from scheduler_project.lib.openapi import (
    CURSOR,
    IDEMPOTENCY_KEY,
    IF_NONE_MATCH,
    LIMIT,
    if_match,
    operation,
)
from scheduler_project.lib.pagination import CursorScope, keyset_page, limit_of
from scheduler_project.lib.problems import Problem, invalid
from tenants.api.authentication import ApiRequest
from tenants.api.idempotency import idempotent


class JobCreate(ApiView):
    """Create a job."""

    @operation(
        "Create a job",
        status=201,
        response=JobDetailOutput,
        example=examples.JOB,
        request=JobInput,
        request_example=examples.NEW_JOB,
        parameters=[IDEMPOTENCY_KEY],
        problems=["quota_exceeded"],
    )
    @idempotent
    def post(self, request: ApiRequest) -> Response:
        """Stores the job; its first run is the first occurrence after now."""
        said = _said(NEW_JOB, request)
        with job_refusals():
            job = job_create(request.tenant, said, changed_by=_author(request))
        response = _show(job, status=201)
        response["Location"] = f"/v1/jobs/{job.job_id}"
        return response


class JobList(ApiView):
    """List jobs, newest first."""

    query_names = {"GET": ("enabled", "name", "label", "cursor", "limit")}
    repeatable = ("label",)

    @operation(
        "List jobs",
        response=JobPageOutput,
        example=examples.JOB_PAGE,
        parameters=[
            OpenApiParameter("enabled", bool, description="Only jobs that are on, or off."),
            OpenApiParameter("name", str, description="Only jobs of exactly this name."),
            OpenApiParameter(
                "label",
                str,
                many=True,
                description="`name:value`; given several times, a job must have all of them.",
            ),
            CURSOR,
            LIMIT,
        ],
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest) -> Response:
        """Newest first, without deleted ones."""
        labels = self.query.getlist("label")
        filters = {name: self.query.get(name, "") for name in ("enabled", "name")}
        filters["label"] = "\n".join(sorted(labels))
        page = keyset_page(
            jobs_of(
                request.tenant,
                enabled=_flag("enabled", self.query.get("enabled")),
                name=_name(self.query.get("name")),
                labels=_labels(labels),
            ),
            {"created_at": datetime, "job_id": UUID},
            CursorScope("jobs", request.tenant.pk, filters),
            self.query.get("cursor"),
            limit_of(self.query.get("limit")),
        )
        jobs = [show_job_in_list(shown) for shown in shown_jobs(page.rows)]
        return Response({"jobs": jobs, "next_cursor": page.next_cursor})


class JobGet(ApiView):
    """Read a job with its next times."""

    @operation(
        "Read a job",
        response=JobDetailOutput,
        example=examples.JOB,
        parameters=[IF_NONE_MATCH],
        also={304: "Nothing has changed since the ETag in If-None-Match."},
    )
    def get(self, request: ApiRequest, job_id: UUID) -> Response:
        """With the next five times that it will run."""
        job = job_find(request.tenant, job_id)
        if job is None:
            raise Problem("not_found")
        response = _show(job)
        if is_unmodified(request, response["ETag"]):
            return Response(status=304, headers={"ETag": response["ETag"]})
        return response


class JobUpdate(ApiView):
    """Change a job."""

    @operation(
        "Change a job",
        response=JobDetailOutput,
        example=examples.CHANGED_JOB,
        request=JobInput(partial=True),
        request_example=examples.CHANGE,
        parameters=[if_match(is_required=True)],
        problems=["precondition_required"],
    )
    def patch(self, request: ApiRequest, job_id: UUID) -> Response:
        """Changes what is given; members of `task` and `retry` that aren't given stay.

        A new schedule, and switching on, count from now: nothing is run for times gone by.
        """
        _require_job(request, job_id)
        version = expected_version(request, is_required=True)
        said = _said(JOB_CHANGE, request)
        with job_refusals():
            job = job_update(
                request.tenant,
                job_id,
                said,
                expected_version=version,
                changed_by=_author(request),
            )
        return _show(job)


class JobDelete(ApiView):
    """Delete a job."""

    query_names = {"DELETE": ("cancel_running",)}

    @operation(
        "Delete a job",
        status=204,
        parameters=[
            if_match(is_required=False),
            OpenApiParameter(
                "cancel_running",
                bool,
                description="true: a running run is cancelled, too; else it goes on to its end.",
            ),
        ],
    )
    def delete(self, request: ApiRequest, job_id: UUID) -> Response:
        """Nothing of it starts any more; its runs stay readable."""
        _require_job(request, job_id)
        with job_refusals():
            job_delete(
                request.tenant,
                job_id,
                expected_version=expected_version(request, is_required=False),
                cancel_running=bool(_flag("cancel_running", self.query.get("cancel_running"))),
                changed_by=_author(request),
            )
        return Response(status=204)


def _require_job(request: ApiRequest, job_id: UUID) -> None:
    """Raise not_found for a job that isn't the tenant's, before anything else is said about it.

    A malformed header or body must not tell a stranger's job from one that doesn't exist.
    """
    if job_find(request.tenant, job_id) is None:
        raise Problem("not_found")


def _said(read: JobInput, request: ApiRequest) -> JobChanges:
    if request.META.get("CONTENT_LENGTH") in (None, "", "0"):
        # The framework reads nothing as an empty object: a change to nothing would be a success.
        raise Problem("body_required")
    return JobChanges(**read.run_validation(request.data))


def _show(job: Job, *, status: int = 200) -> Response:
    (shown,) = shown_jobs([job])
    body = show_job(shown)
    return Response(body, status=status, headers={"ETag": _etag(shown)})


def _etag(shown: ShownJob) -> str:
    """The version; and the next time, too, once that is another than when the version was made."""
    if shown.next_run_at == shown.first_run_at():
        return etag_of(shown.job.version)
    return etag_of(shown.job.version, shown.next_run_at)


def _author(request: ApiRequest) -> str:
    """Who changed a job, as its versions record it."""
    return f"key {request.auth.prefix}"


def _flag(name: str, text: str | None) -> bool | None:
    if text not in (None, "true", "false"):
        raise invalid(name, "invalid_choice", "This must be true or false.")
    return None if text is None else text == "true"


def _name(text: str | None) -> str | None:
    # Names are stored in this form: what looks equal is found.
    return None if text is None else unicodedata.normalize("NFC", text)


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise invalid("label", "invalid", "This must be name:value.")
        if labels.setdefault(name, value) != value:
            # No job has two values of one label: an empty list would hide the mistake.
            raise invalid("label", "repeated", f"{name} is asked to have two values.")
    return labels
