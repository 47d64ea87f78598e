"""One insert and one page as a tutorial would write them: no key, no checks, no second statement.

The row is a job's own, the page the product's own: the same columns, by the same index.
"""

import json
from uuid import UUID

from django.http import HttpRequest, JsonResponse
from django.urls import path

from jobs.models import Job
from runs.models import Run

_JOB_COLUMNS = [field.attname for field in Job._meta.concrete_fields]
_RUN_COLUMNS = [
    "run_id",
    "job_id",
    "job_version",
    "trigger",
    "replay_of",
    "status",
    "scheduled_for",
    "due_at",
    "ready_at",
    "attempt",
    "failures",
    "lease_losses",
    "created_at",
    "placed_at",
    "leased_at",
    "prepared_at",
    "go_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
    "skip_reason",
    "outcome",
    "exit_code",
]


def insert(request: HttpRequest, tenant_id: UUID) -> JsonResponse:
    """Store the body as a row and show the row."""
    job = Job.objects.create(tenant_id=tenant_id, **json.loads(request.body))
    return JsonResponse({name: getattr(job, name) for name in _JOB_COLUMNS}, status=201)


def page(request: HttpRequest, tenant_id: UUID) -> JsonResponse:
    """The tenant's newest 50 runs."""
    runs = Run.objects.filter(tenant_id=tenant_id).order_by("-scheduled_for", "-run_id")
    return JsonResponse({"runs": list(runs.values(*_RUN_COLUMNS)[:50])})


urlpatterns = [
    path("bare/<uuid:tenant_id>/jobs", insert),
    path("bare/<uuid:tenant_id>/runs", page),
]
