"""Errors as RFC 9457 problems; its rule: every error answer of the API has a code and no secrets.

Code raises `Problem("code", "what happened")`; whatever else is raised is translated here: an input
error is never a 5xx, a database that is away is a 503 with Retry-After, and SQL, tracebacks and
HTML never reach a caller.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg
import psycopg_pool
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpResponse
from django.http.request import UnreadablePostError
from psycopg import errors as pg_errors
from rest_framework import exceptions as drf

from scheduler_project.lib.problem_catalogue import PROBLEMS, ProblemType
from scheduler_project.lib.request_id import HEADER, current_request_id

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/problem+json"
# How long a caller should wait for a database that is away, or for a contended row; seconds.
DATABASE_RETRY_AFTER_S: Final = 5
BUSY_RETRY_AFTER_S: Final = 1
# An error list longer than this helps nobody and would echo a large body back.
MAX_ERRORS: Final = 50

_DATABASE_AWAY: Final = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg_pool.PoolTimeout,
    psycopg_pool.PoolClosed,
    pg_errors.ReadOnlySqlTransaction,  # we still talk to the old primary of a fail-over
)
# The database is there and refuses to wait longer or to go on: trying again helps.
_DATABASE_BUSY: Final = (
    pg_errors.LockNotAvailable,
    pg_errors.QueryCanceled,
    pg_errors.DeadlockDetected,
    pg_errors.SerializationFailure,
    pg_errors.IdleInTransactionSessionTimeout,
)


@dataclass(frozen=True)
class FieldProblem:
    """One field that is wrong: its path (`task.args[2]`), a stable code, a message, a hint."""

    field: str
    code: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value or name != "hint"}


class Problem(drf.APIException):
    """An error for the caller, with a `code` of the catalogue; status and title come from there.

    `detail` says what happened this time (default: the catalogue's meaning), `errors` the fields,
    `headers` what the answer carries besides (Retry-After, Allow…).
    """

    def __init__(
        self,
        code: str,
        detail: str | None = None,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.type: ProblemType = PROBLEMS[code]
        self.code = code
        self.status_code = self.type.status
        self.message = detail or self.type.meaning
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        if self.status_code == 401:
            self.headers.setdefault("WWW-Authenticate", 'Bearer realm="api"')
        if self.status_code == 415:
            self.headers.setdefault("Accept", "application/json")
        super().__init__(self.message, code)

    def as_json(self, request_id: str) -> dict[str, Any]:
        """Return the members of RFC 9457 and ours; `errors` only when there are any."""
        body: dict[str, Any] = {
            "type": f"/docs/errors#{self.code}",
            "title": self.type.title,
            "status": self.status_code,
            "code": self.code,
            "detail": self.message,
            "request_id": request_id,
        }
        if self.errors:
            body["errors"] = [error.as_json() for error in self.errors[:MAX_ERRORS]]
        return body


def invalid(field: str, code: str, message: str, hint: str = "") -> Problem:
    """Return an `invalid_request` problem about one field."""
    return invalid_fields([FieldProblem(field, code, message, hint)])


def invalid_fields(errors: Sequence[FieldProblem]) -> Problem:
    """Return an `invalid_request` problem about several fields; `errors` must not be empty."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem("invalid_request", f"{first.field}: {first.message}{more}", errors=errors)


def problem_response(problem: Problem, request_id: str | None = None) -> HttpResponse:
    """Return the HTTP answer to `problem`."""
    text = json.dumps(
        problem.as_json(request_id or current_request_id.get()), ensure_ascii=False
    ).encode("utf-8", errors="replace")  # a lone surrogate in a message must not fail the answer
    response = HttpResponse(text, status=problem.status_code, content_type=CONTENT_TYPE)
    for name, value in problem.headers.items():
        response[name] = value
    # An error says how things are now; a cache that kept it would go on refusing.
    response["Cache-Control"] = "no-store"
    if request_id:
        response[HEADER] = request_id
    return response


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Return the answer to any exception of an API view (Django REST framework's hook)."""
    return problem_response(problem_of(error))


def problem_of(error: BaseException) -> Problem:
    """Return the problem that tells `error` to a caller; logs what is our fault."""
    if isinstance(error, Problem):
        return error
    known = _of_framework(error) if isinstance(error, drf.APIException) else None
    known = known or _of_database(error) or _of_django(error)
    if known:
        return known
    logger.error("Request %s failed unexpectedly", current_request_id.get(), exc_info=error)
    return Problem("internal_error")


def _of_framework(error: drf.APIException) -> Problem | None:
    match error:
        case drf.ValidationError():
            return invalid_fields(flatten(error.detail))
        case drf.ParseError():
            return Problem("invalid_json")
        case drf.NotAuthenticated():
            return Problem("authentication_required")
        case drf.AuthenticationFailed():
            return Problem("invalid_key")
        case drf.PermissionDenied():
            return Problem("insufficient_scope")
        case drf.NotFound():
            return Problem("not_found")
        case drf.MethodNotAllowed():
            return Problem("method_not_allowed")
        case drf.NotAcceptable():
            return Problem("not_acceptable")
        case drf.UnsupportedMediaType():
            return Problem("unsupported_media_type")
        case drf.Throttled():
            seconds = max(1, round(getattr(error, "wait", None) or 1))
            return Problem("rate_limited", headers={"Retry-After": str(seconds)})
    return None


def _of_database(error: BaseException) -> Problem | None:
    if isinstance(error, DataError | psycopg.DataError):
        # The last net under the validation: a value that a column can't hold is the caller's.
        logger.error("A value passed validation and the database refused it", exc_info=error)
        return Problem("invalid_request", "A value is outside what can be stored.")
    # Django wraps the driver's error and keeps it as the cause.
    kinds = (error, error.__cause__)
    if not any(isinstance(kind, _DATABASE_AWAY) for kind in kinds):
        return None
    if any(isinstance(kind, _DATABASE_BUSY) for kind in kinds):
        logger.warning("A request gave up waiting in the database: %s", type(error.__cause__))
        return Problem("busy", headers={"Retry-After": str(BUSY_RETRY_AFTER_S)})
    logger.warning("The database is unavailable: %s", type(error).__name__)
    return Problem("database_unavailable", headers={"Retry-After": str(DATABASE_RETRY_AFTER_S)})


def _of_django(error: BaseException) -> Problem | None:
    match error:
        case Http404():
            return Problem("not_found")
        case DjangoPermissionDenied():
            return Problem("insufficient_scope")
        case RequestDataTooBig():
            return Problem("body_too_large")
        case UnreadablePostError():
            return Problem("bad_request", "The body ended before the length it was announced with.")
        case SuspiciousOperation():
            return Problem("bad_request")
    return None


def path_of(parent: str, key: str | int) -> str:
    """Return the path of `key` below `parent`: `task`, `args[2]`, `labels["a.b"]`."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    shown = key if len(key) <= 100 else key[:99] + "…"
    if not shown.isidentifier():
        return f"{parent}[{json.dumps(shown)}]" if parent else shown
    return f"{parent}.{shown}" if parent else shown


def flatten(detail: Any, path: str = "") -> list[FieldProblem]:
    """Return the fields of a serializer's nested error detail, in its order.

    A hint travels on the code (see `fields.coded`), because the framework rebuilds every message
    on its way up and keeps the code alone.
    """
    if isinstance(detail, Mapping):
        return [
            problem
            for key, value in detail.items()
            for problem in flatten(value, path if key == "non_field_errors" else path_of(path, key))
        ]
    if isinstance(detail, list | tuple):
        # A list of messages belongs to one field; a list of objects is a field of many items.
        return [
            problem
            for index, value in enumerate(detail)
            for problem in flatten(
                value, path_of(path, index) if isinstance(value, Mapping | list) else path
            )
            if value
        ]
    code = getattr(detail, "code", None) or "invalid"
    return [FieldProblem(path, str(code), str(detail), getattr(code, "hint", ""))]
