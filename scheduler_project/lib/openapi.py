"""The OpenAPI document; its rule: every answer is described, and has an example.

A view says what is its own with `@operation`; what all operations share (problems, request id,
rate headers) is added here, once, from the catalogue.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)

from scheduler_project.lib import idempotency, problems
from scheduler_project.lib.problem_catalogue import FIELD_CODES, PROBLEMS

F = TypeVar("F", bound=Callable[..., Any])

_SAMPLE_REQUEST_ID: Final = "req_0b7c1e0f6a5d4f2f9a54c0a1e5c1d2aa"
_ALWAYS: Final = (
    "bad_request",
    "invalid_request",
    "not_acceptable",
    "internal_error",
    "database_unavailable",
    "busy",
)
_WITH_KEY: Final = (
    "authentication_required",
    "invalid_key",
    "key_expired",
    "key_revoked",
    "tenant_suspended",
    "insufficient_scope",
    "rate_limited",
    "too_many_failed_authentications",
)
_WITH_BODY: Final = (
    "invalid_json",
    "body_not_object",
    "length_required",
    "body_too_large",
    "unsupported_media_type",
)
_IDEMPOTENT: Final = (
    "invalid_idempotency_key",
    "idempotency_in_progress",
    "idempotency_key_reused",
)
_IF_MATCH: Final = ("invalid_if_match", "version_mismatch")

IDEMPOTENCY_KEY: Final = OpenApiParameter(
    idempotency.HEADER,
    str,
    OpenApiParameter.HEADER,
    description="1 to 255 printable ASCII characters, best a UUID. A request sent again "
    "with the same key, address and body within 24 hours gets the first one's answer, with "
    f"`{idempotency.REPLAYED_HEADER}: true`, and is not carried out again.",
)
IF_NONE_MATCH: Final = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="ETags of answers you have: 304 when one of them is still right.",
)
CURSOR: Final = OpenApiParameter(
    "cursor", str, description="`next_cursor` of the page before; the filters must be the same."
)
LIMIT: Final = OpenApiParameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": 200, "default": 50},
    description="The most rows of a page.",
)


def if_match(*, is_required: bool) -> OpenApiParameter:
    """Return the If-Match header of a change."""
    return OpenApiParameter(
        "If-Match",
        str,
        OpenApiParameter.HEADER,
        required=is_required,
        description='The ETag of your last read, its version alone (`"3"`), or `*` for any.',
    )


def operation(
    summary: str,
    *,
    status: int = 200,
    response: Any = None,
    example: Any = None,
    request: Any = None,
    request_example: Any = None,
    parameters: Sequence[OpenApiParameter] = (),
    problems: Iterable[str] = (),
    also: Mapping[int, str] | None = None,
) -> Callable[[F], F]:
    """Describe a view's method: its good answer, its body, and the problems of its own.

    `problems` are codes beyond those every operation has; `also` further good answers without a
    body ({304: "Nothing has changed."}). Those of If-Match and Idempotency-Key follow from
    `parameters`. The operation's id is the view class's name.
    """
    names = {parameter.name for parameter in parameters}
    codes = [*problems]
    codes += _IDEMPOTENT if idempotency.HEADER in names else ()
    codes += _IF_MATCH if "If-Match" in names else ()
    examples = [OpenApiExample(summary, example, response_only=True, status_codes=[str(status)])]
    if request_example is not None:
        examples.append(OpenApiExample("Request", request_example, request_only=True))
    answers: dict[Any, Any] = {status: OpenApiResponse(response, summary)}
    answers |= {code: OpenApiResponse(None, text) for code, text in (also or {}).items()}

    def describe(method: F) -> F:
        described: F = extend_schema(
            operation_id=_snake_case(method.__qualname__.split(".")[0]),
            summary=summary,
            request=request,
            responses=answers,
            parameters=list(parameters),
            examples=[e for e in examples if e.value is not None],
            extensions={"x-problems": codes},
        )(method)
        return described

    return describe


def add_what_all_share(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the problems, their examples and the common headers (a hook of drf-spectacular)."""
    components = result.setdefault("components", {})
    components["schemas"] = _without_free_or_null(components.get("schemas", {}))
    components["schemas"]["Problem"] = _problem_schema()
    components["examples"] = {code: _problem_example(code) for code in PROBLEMS}
    components["headers"] = _headers()
    for path, methods in result["paths"].items():
        for described in methods.values():
            _add_answers(path, described)
    return result


def _without_free_or_null(schema: Any) -> Any:
    """Return the schema with `anything, or null` put right: null is both, which oneOf forbids."""
    if isinstance(schema, list):
        return [_without_free_or_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    if schema.get("oneOf") == [{}, {"type": "null"}]:
        return rest
    return {name: _without_free_or_null(value) for name, value in schema.items()}


def _add_answers(path: str, described: dict[str, Any]) -> None:
    has_key = bool(described.get("security"))
    codes = [*_ALWAYS, *described.get("x-problems", ())]
    codes += _WITH_KEY if has_key else ()
    codes += ["not_found"] if "{" in path else []
    if body := described.get("requestBody"):
        codes += _WITH_BODY
        codes += ["body_required"] if body.get("required") else []
    for answer in described["responses"].values():
        answer.setdefault("headers", {}).update(_common_headers(has_key))
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    for status, of_status in sorted(by_status.items()):
        described["responses"][str(status)] = _problem_answer(status, of_status, has_key)


def _problem_answer(status: int, codes: list[str], has_key: bool) -> dict[str, Any]:
    headers = _common_headers(has_key)
    if status in (409, 429, 503):
        headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
    return {
        "description": "; ".join(f"`{code}`: {PROBLEMS[code].title}" for code in codes),
        "headers": headers,
        "content": {
            problems.CONTENT_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
            }
        },
    }


def _common_headers(has_key: bool) -> dict[str, Any]:
    names = ["X-Request-Id", *(["RateLimit", "RateLimit-Policy"] if has_key else [])]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _headers() -> dict[str, Any]:
    texts = {
        "X-Request-Id": ("The request's id: yours, if you sent one, else ours.", "req_0b7c1e0f"),
        "RateLimit": (
            "What remains of the rate, and the seconds until it is full.",
            '"read";r=4;t=1',
        ),
        "RateLimit-Policy": ("The rate: calls at once, and seconds to refill.", '"read";q=5;w=1'),
        "Retry-After": ("Seconds to wait before the request is sent again.", "1"),
    }
    return {
        name: {"description": text, "schema": {"type": "string"}, "example": example}
        for name, (text, example) in texts.items()
    }


def _problem_schema() -> dict[str, Any]:
    text = {"type": "string"}
    error = {
        "type": "object",
        "properties": {
            "field": {
                **text,
                "description": "Path of the field: `task.args[2]`; empty: the whole.",
            },
            "code": {**text, "description": ", ".join(FIELD_CODES)},
            "message": text,
            "hint": {**text, "description": "The nearest accepted form, where there is one."},
        },
        "required": ["field", "code", "message"],
    }
    properties = {
        "type": {**text, "format": "uri-reference"},
        "title": text,
        "status": {"type": "integer"},
        "code": {**text, "description": "Stable; see docs/api-errors.md.", "enum": [*PROBLEMS]},
        "detail": text,
        "request_id": text,
        "errors": {"type": "array", "items": error},
    }
    required = [name for name in properties if name != "errors"]
    return {
        "type": "object",
        "description": "An error, as RFC 9457 describes it.",
        "properties": properties,
        "required": required,
    }


def _problem_example(code: str) -> dict[str, Any]:
    errors = []
    if code == "invalid_request":
        message = "This must be a whole number from 1 to 86400."
        errors = [problems.FieldProblem("task.timeout_s", "too_large", message)]
    value = problems.Problem(code, errors=errors).as_json(_SAMPLE_REQUEST_ID)
    return {"summary": PROBLEMS[code].title, "value": value}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
