"""Requests made up from the OpenAPI document: no 5xx, and no answer that it does not describe."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db.models.functions import Now
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from jobs.models import Job
from runs import webhook_client
from runs.models import NotificationDelivery, OutboxMessage, Run
from scheduler_project.pages import openapi_document
from tenants.models import Tenant
from tests.support.api_client import ApiClient, client_of
from tests.support.factories import make_run
from tests.support.webhooks import make_endpoint

# Real commits: a request through the whole server closes the transaction of a test around it.
pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = 60


@cache
def _handler() -> Any:
    return get_wsgi_application()


def application(environ: Any, start_response: Any) -> Any:
    """The API in this process; made at the first request, when the fixtures are there."""
    return _handler()(environ, start_response)


schema: Any = schemathesis.openapi.from_dict(openapi_document())
schema.app = application
OPERATIONS = [result.ok() for result in schema.get_all_operations()]
CHECKS: list[Any] = [
    checks.not_a_server_error,
    checks.CHECKS.get_one("status_code_conformance"),
    checks.CHECKS.get_one("content_type_conformance"),
    checks.CHECKS.get_one("response_headers_conformance"),
    checks.CHECKS.get_one("response_schema_conformance"),
]


@pytest.fixture
def run(acme: Tenant, alice: ApiClient) -> Run:
    body = {
        "schedule": {"cron": "0 9 * * *", "time_zone": "UTC"},
        "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
    }
    job_id = alice.post("/v1/jobs", body).json()["job_id"]
    return make_run(Job.objects.get(job_id=job_id), due_in_s=3_600)


@pytest.fixture
def known(run: Run) -> dict[str, str]:
    """Alice's objects, by the names that paths use."""
    webhook = make_endpoint(run.tenant)
    message = OutboxMessage.objects.create(tenant=run.tenant, event="run.failed", payload={})
    delivery = NotificationDelivery.objects.create(
        tenant=run.tenant,
        webhook=webhook,
        target_id=webhook.webhook_id,
        message=message,
        try_until=Now(),
    )
    return {
        "job_id": str(run.job_id),
        "run_id": str(run.run_id),
        "webhook_id": str(webhook.webhook_id),
        "delivery_id": str(delivery.delivery_id),
    }


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up names of webhooks are not looked up."""

    def look_up(host: str, port: int, timeout_s: float) -> list[str]:
        raise webhook_client.LookUpError("not here")

    monkeypatch.setattr(webhook_client, "look_up", look_up)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_no_request_gets_an_answer_that_the_document_does_not_describe(
    operation: Any, mode: GenerationMode, alice: ApiClient, known: dict[str, str]
) -> None:
    seen: Counter[int] = Counter()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {alice.key}"}
        # Every other request is about an object that exists; the others are about none.
        if case.path_parameters and sum(seen.values()) % 2:
            case.path_parameters = {name: known[name] for name in case.path_parameters}
        answer = case.call()
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    send()
    assert sum(seen.values()) >= EXAMPLES / 2


def test_a_stranger_s_requests_get_described_answers_too(
    acme: Tenant, known: dict[str, str]
) -> None:
    reader = client_of(acme, "read")
    for operation in OPERATIONS:
        for key in (reader.key, "sk_wrong", None):
            case = operation.Case(
                path_parameters=known,
                headers={"Authorization": f"Bearer {key}"} if key else {},
            )
            answer = case.call()
            case.validate_response(answer, checks=CHECKS)
