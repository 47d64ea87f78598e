"""Webhooks through the API: strict input, no secrets in passing, and a log that can be acted on."""

import socket
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from runs.api import webhook_examples as examples
from runs.models import NotificationDelivery, OutboxMessage, WebhookEndpoint
from runs.notifications import fan_out_once
from runs.webhook_delivery import claim_deliveries, deliver
from tenants.models import IdempotencyKey, Tenant
from tests.api.test_jobs_examples import assert_alike
from tests.support.api_client import ApiClient, assert_problem
from tests.support.webhooks import answering, receiver

URL = "https://hooks.acme.example/scheduler"


@pytest.fixture(autouse=True)
def no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a resolver outside."""
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        if host == "inside.acme.example":
            return real("10.0.0.5", *args, **options)
        if str(host).endswith(".example"):
            raise socket.gaierror("no such name")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def register(client: ApiClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/webhooks", {"url": URL, "events": ["run.failed"]} | fields)
    assert answer.status_code == 201, answer.content
    body: dict[str, Any] = answer.json()
    assert answer["Location"] == f"/v1/webhooks/{body['webhook_id']}"
    return body


def test_the_examples_are_taken_and_given(alice: ApiClient, acme: Tenant) -> None:
    made = alice.post("/v1/webhooks", examples.NEW_WEBHOOK).json()
    assert_alike(examples.WEBHOOK, made)
    path = f"/v1/webhooks/{made['webhook_id']}"
    assert_alike(examples.WEBHOOK_PAGE, alice.get("/v1/webhooks").json())
    assert_alike(examples.CHANGED_WEBHOOK, alice.patch(path, examples.CHANGE).json())
    assert_alike(examples.SECRET, alice.post(f"{path}/secret").json())
    assert_alike(examples.ROTATED_WEBHOOK, alice.post(f"{path}/secret/rotate").json())
    assert_alike(examples.PING, alice.post(f"{path}/ping", {}).json())
    fan_out_once()
    page = alice.get(f"{path}/deliveries").json()
    assert_alike(examples.DELIVERY_PAGE, page)
    delivery = f"{path}/deliveries/{page['deliveries'][0]['delivery_id']}"
    detail = alice.get(delivery).json()
    assert list(detail) == list(examples.DELIVERY_DETAIL)
    assert_problem(alice.post(f"{delivery}/redeliver"), 409, "delivery_pending")


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"url": "http://hooks.acme.example/"}, "url", "invalid_webhook_url"),
        ({"url": "https://169.254.169.254/"}, "url", "invalid_webhook_url"),
        ({"url": "https://inside.acme.example/"}, "url", "invalid_webhook_url"),
        ({"url": "https://hooks.acme.example:6379/"}, "url", "invalid_webhook_url"),
        ({"url": 1}, "url", "wrong_type"),
        ({"events": []}, "events", "too_short"),
        ({"events": ["run.everything"]}, "events[0]", "invalid_choice"),
        ({"secret": "whsec_mine"}, "secret", "unknown_field"),
    ],
)
def test_what_is_wrong_is_said(
    alice: ApiClient, fields: dict[str, Any], field: str, code: str
) -> None:
    answer = alice.post("/v1/webhooks", {"url": URL, "events": ["run.failed"]} | fields)
    body = assert_problem(answer, 400, "invalid_request")
    assert (body["errors"][0]["field"], body["errors"][0]["code"]) == (field, code)
    assert not WebhookEndpoint.objects.exists()


def test_a_secret_is_in_no_answer_but_its_own_and_in_no_row(
    alice: ApiClient, carol: ApiClient
) -> None:
    made = alice.post(
        "/v1/webhooks", {"url": URL, "events": ["run.failed"]}, Idempotency_Key="k"
    ).json()
    path = f"/v1/webhooks/{made['webhook_id']}"
    assert_problem(carol.post(f"{path}/secret"), 403, "insufficient_scope")
    secret = alice.post(f"{path}/secret").json()["secret"]
    assert secret.startswith("whsec_")
    alice.post(f"{path}/secret/rotate", Idempotency_Key="r")
    new = alice.post(f"{path}/secret").json()["secret"]
    assert new != secret
    kept = [*IdempotencyKey.objects.values_list("body", flat=True)]
    kept += [str(row) for row in WebhookEndpoint.objects.values()]
    assert len(kept) == 3
    for text in (*kept, str(alice.get(path).json()), str(alice.get("/v1/webhooks").json())):
        assert secret not in text
        assert new not in text


def test_a_limit_of_webhooks(alice: ApiClient, settings: Any) -> None:
    settings.WEBHOOK_MAX_ENDPOINTS = 1
    made = register(alice)
    answer = alice.post("/v1/webhooks", {"url": URL, "events": ["run.failed"]})
    assert_problem(answer, 403, "quota_exceeded")
    assert alice.delete(f"/v1/webhooks/{made['webhook_id']}").status_code == 204
    register(alice)


def test_an_old_version_changes_nothing(alice: ApiClient) -> None:
    path = f"/v1/webhooks/{register(alice)['webhook_id']}"
    assert alice.patch(path, {"description": "a"}, If_Match='"1"').json()["version"] == 2
    answer = alice.patch(path, {"description": "b"}, If_Match='"1"')
    assert_problem(answer, 412, "version_mismatch")
    assert_problem(alice.patch(path, {"description": "b"}, If_Match=""), 400, "invalid_if_match")
    assert alice.patch(path, {"description": "a"}).json()["version"] == 2


def test_off_it_is_owed_nothing_and_on_again_it_begins_anew(alice: ApiClient, acme: Tenant) -> None:
    path = f"/v1/webhooks/{register(alice)['webhook_id']}"
    OutboxMessage.objects.create(tenant=acme, event="run.failed", payload={})
    fan_out_once()
    WebhookEndpoint.objects.update(failing_since=Now())
    off = alice.patch(path, {"enabled": False}).json()
    assert off["enabled"] is False
    (row,) = alice.get(f"{path}/deliveries?status=cancelled").json()["deliveries"]
    answer = alice.post(f"{path}/deliveries/{row['delivery_id']}/redeliver")
    assert_problem(answer, 409, "webhook_off")
    on = alice.patch(path, {"enabled": True}).json()
    assert on["failing_since"] is None
    assert alice.post(f"{path}/deliveries/{row['delivery_id']}/redeliver").status_code == 202


def test_a_ping_and_a_redelivery_arrive_under_one_id(alice: ApiClient, settings: Any) -> None:
    settings.WEBHOOK_ALLOW_PRIVATE = settings.WEBHOOK_ALLOW_HTTP = True
    with receiver() as hook:
        path = f"/v1/webhooks/{register(alice, url=hook.url, enabled=False)['webhook_id']}"
        secret = alice.post(f"{path}/secret").json()["secret"]
        message_id = alice.post(f"{path}/ping").json()["message_id"]
        fan_out_once()
        assert [deliver(row.delivery_id, row.claim) for row in claim_deliveries()] == ["delivered"]
        hook.received[0].verify(secret)
        assert hook.received[0].message_id == message_id
        assert hook.received[0].body["type"] == "webhook.ping"
        alice.patch(path, {"enabled": True})
        (row,) = alice.get(f"{path}/deliveries").json()["deliveries"]
        hook.answer = answering(500, b"not now")
        again = alice.post(f"{path}/deliveries/{row['delivery_id']}/redeliver").json()
        assert again["status"] == "pending"
        # Everything here is one transaction, whose now() was before the redelivery.
        NotificationDelivery.objects.update(next_attempt_at=Now() - timedelta(minutes=1))
        assert [deliver(r.delivery_id, r.claim) for r in claim_deliveries()] == ["pending: status"]
        assert hook.received[1].message_id == message_id
        detail = alice.get(f"{path}/deliveries/{row['delivery_id']}").json()
        assert_alike(examples.DELIVERY_DETAIL["attempt_log"], detail["attempt_log"])
        assert [one["status_code"] for one in detail["attempt_log"]] == [204, 500]
        assert detail["attempt_log"][1]["answer"] == "not now"


def test_a_strangers_webhook_and_a_delivery_of_another_one_are_not_found(
    alice: ApiClient, bob: ApiClient, acme: Tenant
) -> None:
    theirs, mine = register(bob)["webhook_id"], register(alice)["webhook_id"]
    second = register(alice)["webhook_id"]
    bob.post(f"/v1/webhooks/{theirs}/ping")
    alice.post(f"/v1/webhooks/{second}/ping")
    fan_out_once()
    NotificationDelivery.objects.update(status="failed", next_attempt_at=None, finished_at=Now())
    of_theirs = NotificationDelivery.objects.get(webhook=theirs).pk
    of_second = NotificationDelivery.objects.get(webhook=second).pk
    before = list(WebhookEndpoint.objects.order_by("pk").values())
    calls = [
        alice.get(f"/v1/webhooks/{theirs}"),
        alice.patch(f"/v1/webhooks/{theirs}", {"url": "https://mine.example/"}),
        alice.delete(f"/v1/webhooks/{theirs}"),
        alice.post(f"/v1/webhooks/{theirs}/secret"),
        alice.post(f"/v1/webhooks/{theirs}/secret/rotate"),
        alice.post(f"/v1/webhooks/{theirs}/ping"),
        alice.get(f"/v1/webhooks/{theirs}/deliveries"),
        alice.get(f"/v1/webhooks/{theirs}/deliveries/{of_theirs}"),
        alice.post(f"/v1/webhooks/{theirs}/deliveries/{of_theirs}/redeliver"),
        alice.get(f"/v1/webhooks/{mine}/deliveries/{of_theirs}"),
        alice.post(f"/v1/webhooks/{mine}/deliveries/{of_theirs}/redeliver"),
        alice.get(f"/v1/webhooks/{mine}/deliveries/{of_second}"),
        alice.post(f"/v1/webhooks/{mine}/deliveries/{of_second}/redeliver"),
    ]
    for answer in calls:
        assert_problem(answer, 404, "not_found")
    assert list(WebhookEndpoint.objects.order_by("pk").values()) == before
    assert set(NotificationDelivery.objects.values_list("status", flat=True)) == {"failed"}


def test_a_change_of_the_url_is_judged_as_a_new_one(alice: ApiClient) -> None:
    path = f"/v1/webhooks/{register(alice)['webhook_id']}"
    answer = alice.patch(path, {"url": "https://inside.acme.example/"})
    assert_problem(answer, 400, "invalid_request")
    assert alice.get(path).json()["url"] == URL


def test_a_redelivery_begins_its_waits_anew(alice: ApiClient, settings: Any) -> None:
    settings.WEBHOOK_ALLOW_PRIVATE = settings.WEBHOOK_ALLOW_HTTP = True
    with receiver() as hook:
        hook.answer = answering(500)
        path = f"/v1/webhooks/{register(alice, url=hook.url)['webhook_id']}"
        alice.post(f"{path}/ping")
        fan_out_once()
        NotificationDelivery.objects.update(
            status="failed", attempts=20, next_attempt_at=None, finished_at=Now()
        )
        pk = NotificationDelivery.objects.get().pk
        alice.post(f"{path}/deliveries/{pk}/redeliver")
        NotificationDelivery.objects.update(next_attempt_at=Now() - timedelta(minutes=1))
        assert [deliver(r.delivery_id, r.claim) for r in claim_deliveries()] == ["pending: status"]
    row = NotificationDelivery.objects.get()
    assert row.attempts == 21
    assert row.next_attempt_at is not None
    assert (row.next_attempt_at - row.try_until).total_seconds() + 86_400 < 10


def test_a_deleted_webhook_is_gone_with_its_secret(alice: ApiClient) -> None:
    path = f"/v1/webhooks/{register(alice)['webhook_id']}"
    alice.post(f"{path}/ping")
    fan_out_once()
    assert alice.delete(path).status_code == 204
    assert_problem(alice.get(path), 404, "not_found")
    assert_problem(alice.get(f"{path}/deliveries"), 404, "not_found")
    assert alice.get("/v1/webhooks").json()["webhooks"] == []
    assert WebhookEndpoint.objects.get().secret == ""
    assert NotificationDelivery.objects.get().status == "cancelled"


def test_a_job_says_when_a_run_is_late_and_after_how_many_failures_it_rests(
    alice: ApiClient,
) -> None:
    body = {
        "schedule": {"cron": "0 9 * * *", "time_zone": "UTC"},
        "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
    }
    plain = alice.post("/v1/jobs", body).json()
    assert (plain["late_after_s"], plain["auto_pause_after"]) == (None, None)
    path = f"/v1/jobs/{plain['job_id']}"
    change = {"late_after_s": 60, "auto_pause_after": 3}
    changed = alice.patch(path, change, If_Match="*").json()
    assert {name: changed[name] for name in change} == change
    assert changed["version"] == 2
    assert changed["next_run_at"] == plain["next_run_at"]
    cleared = alice.patch(path, {"late_after_s": None}, If_Match="*").json()
    assert (cleared["late_after_s"], cleared["auto_pause_after"]) == (None, 3)
    assert_problem(alice.patch(path, {"late_after_s": 0}, If_Match="*"), 400, "invalid_request")
