"""The outermost layer of the API; its rule: whatever happens inside, the caller gets our answer.

It names the request, makes chunked bodies readable, turns error pages of the framework (a route
that doesn't exist, a foreign host, a crash before or after the view) into problems, and adds the
headers that every answer has.
"""

import io
import logging
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from scheduler_project.lib.health import healthz, readyz
from scheduler_project.lib.metrics_http import metrics
from scheduler_project.lib.problems import CONTENT_TYPE, Problem, problem_response
from scheduler_project.lib.request_id import HEADER, current_request_id, request_id_from

logger = logging.getLogger(__name__)

# Pages for people keep their own error pages; all else is the API.
_PAGES: Final = ("/admin/", "/docs", "/static/")
_PROBES: Final = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
_CODE_OF_STATUS: Final = {
    400: "bad_request",
    403: "insufficient_scope",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    500: "internal_error",
}


class ApiMiddleware:
    """To be the first in MIDDLEWARE, so that it sees what the others answer."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = request_id_from(request.META.get("HTTP_X_REQUEST_ID"))
        token = current_request_id.set(request_id)
        try:
            response = self._answer(request)
        finally:
            current_request_id.reset(token)
        response[HEADER] = request_id
        return response

    def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith(_PAGES):
            return self.get_response(request)
        # Probes come by address, with a Host that is in no list: answered before it is judged.
        if request.path in _PROBES:
            return as_problem(_PROBES[request.path](request))
        try:
            read_chunked_body(request)
        except Problem as problem:
            return problem_response(problem)
        response = as_problem(self.get_response(request))
        for name, value in getattr(request, "rate_limit_headers", {}).items():
            response[name] = value
        # Answers belong to one key, and change: they may be kept only to be asked about.
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response


def as_problem(response: HttpResponse) -> HttpResponse:
    """Return `response`, or the problem in place of an error page that is not ours."""
    code = _CODE_OF_STATUS.get(response.status_code)
    if code is None or response.headers.get("Content-Type") == CONTENT_TYPE:
        return response
    if code == "internal_error":
        # Django has logged the traceback, without the id that the caller will report.
        logger.error("Request %s was answered with 500", current_request_id.get())
    allowed = response.headers.get("Allow")
    return problem_response(Problem(code, headers={"Allow": allowed} if allowed else None))


def read_chunked_body(request: HttpRequest) -> None:
    """Read a body that comes in chunks, as Django reads only bodies with a Content-Length.

    Without this a chunked body would be taken for an empty one. Raises Problem body_too_large,
    bad_request, or length_required when the server can't tell where the body ends.
    """
    if "chunked" not in request.META.get("HTTP_TRANSFER_ENCODING", "").lower():
        return
    if not request.META.get("wsgi.input_terminated"):
        raise Problem("length_required")
    limit = settings.API_MAX_BODY_BYTES
    try:
        body = request.META["wsgi.input"].read(limit + 1)
    except Exception as error:  # each server has its own errors for malformed chunks
        raise Problem("bad_request", "The chunks of the body are malformed.") from error
    if len(body) > limit:
        raise Problem("body_too_large", f"The body is larger than {limit} bytes.")
    request.META["CONTENT_LENGTH"] = str(len(body))
    request._stream = io.BytesIO(body)
