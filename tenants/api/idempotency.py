"""`@idempotent` for POST views; its rule: copies of a request get the first one's answer.

Only answers to work that was done are kept: an error leaves the key free.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.db import transaction
from django.http import HttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from scheduler_project.lib import idempotency as rules
from scheduler_project.lib.transactions import one_transaction
from tenants.api.authentication import ApiRequest
from tenants.idempotency import Answer, claim, keep

V = TypeVar("V")
P = ParamSpec("P")


def idempotent(
    method: Callable[Concatenate[V, ApiRequest, P], Response],
) -> Callable[Concatenate[V, ApiRequest, P], HttpResponse]:
    """Wrap a view's `post(self, request, …) -> Response`: with an Idempotency-Key it acts once.

    The method runs inside a transaction, of which its services' `one_transaction` is a part. What
    it raises, and any status from 300 on, undoes the work and frees the key.
    Without the header it is called as it is.
    """

    @wraps(method)
    def once(view: V, request: ApiRequest, /, *args: P.args, **options: P.kwargs) -> HttpResponse:
        header = request.META.get("HTTP_IDEMPOTENCY_KEY")
        if header is None:
            return method(view, request, *args, **options)
        key = rules.parse_key(header)
        # Read before the key is taken: a body that can't be read must not hold a transaction open.
        body = rules.body_hash(cast(dict[str, Any], request.data))
        route = rules.route_hash(
            request.method or "", request.path, request.META.get("QUERY_STRING", "")
        )
        tenant_id = request.tenant.tenant_id
        with one_transaction():
            kept = claim(tenant_id, key, route, body)
            if kept is not None:
                return _response(kept, replayed=True)
            response = method(view, request, *args, **options)
            if response.status_code >= 300:
                transaction.set_rollback(True)
                return response
            answer = _answer(response)
            keep(tenant_id, key, answer)
        return _response(answer, replayed=False)

    return once


def _answer(response: Response) -> Answer:
    data: Any = response.data
    body = "" if data is None else JSONRenderer().render(data).decode()
    # Without the content type of a response that isn't rendered yet (text/html).
    headers = {name: value for name, value in response.items() if name != "Content-Type"}
    return Answer(response.status_code, headers, body)


def _response(answer: Answer, *, replayed: bool) -> HttpResponse:
    """Return the answer in the same way for the first request and for its copies."""
    response = HttpResponse(
        answer.body, status=answer.status, content_type="application/json", headers=answer.headers
    )
    if replayed:
        response[rules.REPLAYED_HEADER] = "true"
    return response
