"""Every route, with every method, as everybody: nobody gets what isn't theirs.

Driven by the URL resolver: a new route is walked without a change here, and one with a new kind of
id fails until `ids` says what it means.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.models.functions import Now
from django.urls import URLPattern, URLResolver, get_resolver

from jobs.models import Job
from runs.models import NotificationDelivery, OutboxMessage, Run, WebhookEndpoint
from scheduler_project.lib.api_view import ApiView
from tenants.api.authentication import ApiKeyAuthentication
from tenants.models import ApiKey, Tenant
from tests.support.api_client import Answer, ApiClient, assert_problem, client_of
from tests.support.factories import make_run
from tests.support.webhooks import make_endpoint

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass(frozen=True)
class Route:
    """An address below /v1 with the names in its path, and the view behind it."""

    path: str
    view: type[ApiView]

    @property
    def names(self) -> list[str]:
        return re.findall(r"<(?:\w+:)?(\w+)>", self.path)

    @property
    def methods(self) -> set[str]:
        has = {method for method in METHODS if hasattr(self.view, method.lower())}
        has &= {name.upper() for name in self.view.http_method_names}
        return has | ({"HEAD"} if "GET" in has else set())

    @property
    def needs_key(self) -> bool:
        return ApiKeyAuthentication in self.view.authentication_classes

    def at(self, ids: dict[str, str]) -> str:
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: ids[match[1]], self.path)


def walk(patterns: list[URLPattern | URLResolver], prefix: str = "/") -> Iterator[Route]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, path)
        elif path.startswith("/v1/"):
            view: type[ApiView] = pattern.callback.view_class  # type: ignore[attr-defined]
            yield Route(path, view)


ROUTES = list(walk(get_resolver().url_patterns))
CALLS = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in ROUTES
    for method in METHODS
    if method in route.methods and route.needs_key
]
# The same, with only those that name an object.
CALLS_ON_OBJECTS = [call for call in CALLS if call.values[0].names]  # type: ignore[union-attr]


@pytest.fixture
def run(acme: Tenant) -> Run:
    """A run of Alice's that has not started, of a job as the API makes it."""
    job = {
        "schedule": {"cron": "0 9 * * *", "time_zone": "UTC"},
        "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
    }
    answer = client_of(acme, "write").post("/v1/jobs", job)
    return make_run(Job.objects.get(job_id=answer.json()["job_id"]), due_in_s=3_600)


@pytest.fixture
def ids(run: Run) -> dict[str, str]:
    """Alice's objects, by the names that paths use."""
    webhook = make_endpoint(run.tenant)
    message = OutboxMessage.objects.create(tenant=run.tenant, event="run.failed", payload={})
    delivery = NotificationDelivery.objects.create(
        tenant=run.tenant,
        webhook=webhook,
        target_id=webhook.webhook_id,
        message=message,
        try_until=Now() + timedelta(days=1),
    )
    return {
        "job_id": str(run.job_id),
        "run_id": str(run.run_id),
        "webhook_id": str(webhook.webhook_id),
        "delivery_id": str(delivery.delivery_id),
    }


def facts_of(tenant: Tenant) -> list[object]:
    """All that a stranger must not be able to change."""
    return [
        list(Job.objects.filter(tenant=tenant).order_by("job_id").values()),
        list(Run.objects.filter(tenant=tenant).order_by("run_id").values()),
        list(WebhookEndpoint.objects.filter(tenant=tenant).order_by("webhook_id").values()),
        list(NotificationDelivery.objects.filter(tenant=tenant).values()),
        list(OutboxMessage.objects.filter(tenant=tenant).order_by("id").values()),
    ]


def call(client: ApiClient, method: str, path: str, **headers: str) -> Answer:
    body: dict[str, object] | None = {} if method in ("POST", "PUT", "PATCH") else None
    return client.send(method, path, body, **{"If_Match": '"1"'} | headers)


def test_the_walk_knows_the_whole_api() -> None:
    paths = {route.path for route in ROUTES}
    assert {"/v1/jobs", "/v1/jobs/<uuid:job_id>", "/v1/me", "/v1/openapi.json"} <= paths
    assert [route.path for route in ROUTES if not route.needs_key] == ["/v1/openapi.json"]
    names = {name for route in ROUTES for name in route.names}
    assert names <= {"job_id", "run_id", "webhook_id", "delivery_id"}, (
        "say in `ids` what the new name stands for"
    )


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_without_a_key_nothing_is_answered(
    route: Route, method: str, ids: dict[str, str], acme: Tenant
) -> None:
    before = facts_of(acme)
    answer = call(ApiClient(None), method, route.at(ids))
    assert answer.status_code == 401
    assert facts_of(acme) == before


@pytest.mark.parametrize("state", ["revoked", "expired", "suspended"])
@pytest.mark.parametrize(("route", "method"), CALLS)
def test_a_key_that_no_longer_counts_gets_nothing(
    route: Route, method: str, ids: dict[str, str], acme: Tenant, state: str
) -> None:
    client = client_of(acme, "admin")
    if state == "revoked":
        ApiKey.objects.update(revoked_at=Now())
    elif state == "expired":
        ApiKey.objects.update(expires_at=Now() - timedelta(seconds=1))
    else:
        Tenant.objects.filter(pk=acme.pk).update(suspended_at=Now())
    before = facts_of(acme)
    answer = call(client, method, route.at(ids))
    assert answer.status_code == (403 if state == "suspended" else 401)
    assert facts_of(acme) == before


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_a_reading_key_reads_and_does_no_more(
    route: Route, method: str, ids: dict[str, str], carol: ApiClient, acme: Tenant
) -> None:
    before = facts_of(acme)
    answer = call(carol, method, route.at(ids))
    if method in ("GET", "HEAD"):
        assert answer.status_code == 200
    elif route.view.required_scope == "read":  # a question that needs a body: stores nothing
        assert answer.status_code in (200, 400)
    else:
        assert_problem(answer, 403, "insufficient_scope")
    assert facts_of(acme) == before


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_the_owner_gets_through_and_never_a_5xx(
    route: Route, method: str, ids: dict[str, str], alice: ApiClient
) -> None:
    answer = call(alice, method, route.at(ids))
    assert answer.status_code in (200, 201, 202, 204, 400, 409, 412)


@pytest.mark.parametrize(("route", "method"), CALLS_ON_OBJECTS)
@pytest.mark.parametrize("scope", ["read", "admin"])
def test_another_tenant_cannot_tell_an_object_from_one_that_is_not_there(
    route: Route, method: str, ids: dict[str, str], globex: Tenant, acme: Tenant, scope: str
) -> None:
    stranger = client_of(globex, scope)
    before = facts_of(acme)
    nowhere = {name: str(uuid4()) for name in ids}
    for headers in ({}, {"If_Match": "garbage"}, {"Idempotency_Key": "k"}):
        theirs = call(stranger, method, route.at(ids), X_Request_Id="same", **headers)
        absent = call(stranger, method, route.at(nowhere), X_Request_Id="same", **headers)
        assert theirs.status_code == absent.status_code
        assert theirs.content == absent.content
        # What no caller with this scope could do is refused before the object is looked for.
        may_not = scope == "read" and method not in ("GET", "HEAD")
        assert theirs.status_code == (403 if may_not else 404)
    assert facts_of(acme) == before


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.names and "GET" in route.methods]
)
def test_another_tenant_s_lists_show_nothing_of_it(
    route: Route, ids: dict[str, str], bob: ApiClient, acme: Tenant
) -> None:
    answer = bob.get(route.path)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert not [known for known in (*ids.values(), str(acme.pk)) if known in text]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_method_that_is_not_there_is_a_405_with_allow(
    route: Route, ids: dict[str, str], alice: ApiClient
) -> None:
    for method in set(METHODS) - route.methods:
        answer = call(alice, method, route.at(ids))
        assert answer.status_code == 405
        if method != "HEAD":
            assert_problem(answer, 405, "method_not_allowed")
        allowed = set(answer["Allow"].split(", "))
        assert allowed == route.methods


@pytest.mark.parametrize("route", [route for route in ROUTES if route.names])
@pytest.mark.parametrize("odd", ["abc", "-1", "1" * 30, "%00", "..%2F", "1%20OR%201=1", "é", "*"])
def test_an_id_that_is_none_is_a_404(route: Route, alice: ApiClient, odd: str) -> None:
    path = re.sub(r"<[^>]+>", odd, route.path)
    for method in ("GET", "POST", "PATCH", "DELETE"):
        answer = call(alice, method, path)
        assert answer.status_code in (404, 405)


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_every_answer_names_its_request_and_the_rates(
    route: Route, method: str, ids: dict[str, str], alice: ApiClient
) -> None:
    answer = call(alice, method, route.at(ids), X_Request_Id="mine")
    headers = answer.headers
    assert headers["X-Request-Id"] == "mine"
    assert headers["RateLimit-Policy"]
    assert headers["RateLimit"]
    assert headers["Cache-Control"] in ("private, no-cache", "no-store")
    if answer.content:
        assert headers["Content-Type"] in ("application/json", "application/problem+json")
        json.loads(answer.content)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_refuses_parameters_it_does_not_know(
    route: Route, ids: dict[str, str], alice: ApiClient
) -> None:
    for method in route.methods - {"HEAD"}:
        answer = call(alice, method, route.at(ids) + "?nonsense=1")
        body = assert_problem(answer, 400, "invalid_request")
        assert body["errors"][0]["field"] == "nonsense"
