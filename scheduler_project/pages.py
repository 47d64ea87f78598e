"""The API's own documentation as it serves it: the OpenAPI document, and pages to read it."""

import json
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from scheduler_project.lib import openapi_fields  # noqa: F401 – importing registers
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.problem_catalogue import FIELD_CODES, PROBLEMS


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document; made once per process, as it changes with the code only."""
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    document: dict[str, Any] = generator.get_schema(public=True)  # type: ignore[no-untyped-call]
    return document


@cache
def _openapi_text() -> bytes:
    return json.dumps(openapi_document(), ensure_ascii=False).encode()


class OpenApiGet(ApiView):
    """Read the OpenAPI document; needs no key."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        response = HttpResponse(_openapi_text(), content_type="application/json")
        response["Cache-Control"] = "public, max-age=60"
        return response


@require_safe
def errors_page(request: HttpRequest) -> HttpResponse:
    """Show every problem and field code: where `type` of a problem leads."""
    facts = {"problems": PROBLEMS.values(), "field_codes": FIELD_CODES}
    return render(request, "errors.html", facts)
