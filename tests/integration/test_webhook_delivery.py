"""Deliveries to a real receiver: signed, tried again, bounded, claimed once, and logged."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core import mail

from runs import transport, webhook_client
from runs.domain.delivery import TRY_FOR, DeliveryStatus
from runs.domain.webhook_address import AddressPolicy
from runs.models import DeliveryAttempt, NotificationDelivery, OutboxMessage, WebhookEndpoint
from runs.notifications import fan_out_once
from runs.webhook_delivery import claim_deliveries, deliver, notify_once
from scheduler_project.lib.sealing import seal
from scheduler_project.stack.ports import first_free, is_free
from tenants.models import Tenant
from tests.support.factories import database_now, make_tenant
from tests.support.polling import poll
from tests.support.webhooks import (
    SECRET,
    Receiver,
    answering,
    dripping,
    endless,
    make_endpoint,
    receiver,
)

pytestmark = pytest.mark.django_db

OTHER_SECRET = "whsec_" + "b2xkIHNlY3JldCBvZiAyNCBieXRlcw=="


@pytest.fixture(autouse=True)
def private_network(settings: Any) -> None:
    settings.WEBHOOK_ALLOW_PRIVATE = settings.WEBHOOK_ALLOW_HTTP = True


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as here:
        yield here


@pytest.fixture
def endpoint(hook: Receiver) -> WebhookEndpoint:
    return make_endpoint(make_tenant(), "run.failed", url=hook.url)


def message(tenant: Tenant, event: str = "run.failed", **fields: Any) -> OutboxMessage:
    values: dict[str, Any] = {"payload": {"run_id": str(uuid4())}}
    made = OutboxMessage.objects.create(tenant=tenant, event=event, **values | fields)
    made.refresh_from_db()
    return made


def attempt() -> list[str]:
    """Fan out, and make each attempt that is due now."""
    fan_out_once()
    return [deliver(row.delivery_id, row.claim) for row in claim_deliveries()]


def due_now() -> None:
    """Let the waits be over."""
    NotificationDelivery.objects.filter(status="pending").update(
        next_attempt_at=database_now() - timedelta(minutes=1), claim=None, claim_used=False
    )


def the_delivery() -> NotificationDelivery:
    return NotificationDelivery.objects.get()


def test_a_message_arrives_signed_and_says_what_happened(
    hook: Receiver, endpoint: WebhookEndpoint
) -> None:
    owed = message(endpoint.tenant)
    assert attempt() == ["delivered"]
    (got,) = hook.received
    got.verify()
    assert got.body["type"] == "run.failed"
    assert got.body["data"] == owed.payload
    assert got.body["version"] == 1
    assert got.message_id == f"msg_{owed.message_id.hex}"
    assert got.headers["content-type"] == "application/json"
    assert the_delivery().status == "delivered"
    endpoint.refresh_from_db()
    assert endpoint.last_success_at is not None


def test_only_what_an_endpoint_wants_is_sent_and_only_to_its_tenant(hook: Receiver) -> None:
    acme, globex = make_tenant(), make_tenant()
    make_endpoint(acme, "run.failed", url=hook.url)
    make_endpoint(acme, "run.skipped", "run.failed", url=hook.url)
    make_endpoint(acme, "run.succeeded", url=hook.url)
    make_endpoint(acme, "run.failed", url=hook.url, enabled=False)
    make_endpoint(globex, "run.failed", url=hook.url)
    message(acme)
    assert attempt() == ["delivered"] * 2
    assert fan_out_once() == {"messages": 0, "fanned_out": 0}


def test_a_failure_is_tried_again_under_the_same_id_until_it_succeeds(
    hook: Receiver, endpoint: WebhookEndpoint
) -> None:
    message(endpoint.tenant)
    hook.answer = answering(500, b"out of order")
    assert attempt() == ["pending: status"]
    assert attempt() == []  # not before its wait is over
    due_at = the_delivery().next_attempt_at
    assert due_at is not None
    wait_s = (due_at - database_now()).total_seconds()
    assert 2 < wait_s < 7
    endpoint.refresh_from_db()
    assert endpoint.failing_since is not None
    due_now()
    hook.answer = answering(200)
    assert attempt() == ["delivered"]
    first, second = hook.received
    assert first.message_id == second.message_id
    assert first.raw == second.raw
    log = DeliveryAttempt.objects.order_by("attempt")
    assert [(one.attempt, one.status_code, one.answer) for one in log] == [
        (1, 500, "out of order"),
        (2, 200, ""),
    ]
    endpoint.refresh_from_db()
    assert endpoint.failing_since is None


def test_after_24_hours_it_is_given_up(hook: Receiver, endpoint: WebhookEndpoint) -> None:
    message(endpoint.tenant)
    fan_out_once()
    row = the_delivery()
    assert timedelta(0) < row.try_until - row.created_at <= TRY_FOR + timedelta(seconds=5)
    NotificationDelivery.objects.update(try_until=database_now() - timedelta(seconds=1))
    hook.answer = answering(503)
    assert attempt() == ["failed: status"]
    assert the_delivery().finished_at is not None
    due_now()
    assert attempt() == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answering(302, Location="http://127.0.0.1:9/elsewhere"), "redirect"),
        (answering(199 + 200), "redirect"),
        (answering(404), "status"),
        (lambda handler: handler.wfile.write(b"HTTP/9 nonsense\r\n\r\n"), "connection"),
        (lambda handler: handler.connection.close(), "connection"),
    ],
)
def test_whatever_is_not_2xx_is_a_failure(
    hook: Receiver, endpoint: WebhookEndpoint, answer: Any, error: str
) -> None:
    message(endpoint.tenant)
    hook.answer = answer
    assert attempt() == [f"pending: {error}"]
    assert len(hook.received) == 1


def test_a_dripping_answer_is_cut_off_at_the_deadline(
    hook: Receiver, endpoint: WebhookEndpoint, settings: Any
) -> None:
    settings.WEBHOOK_TIMEOUT_S = 1
    message(endpoint.tenant)
    hook.answer = dripping(20)
    began = time.monotonic()
    assert attempt() == ["pending: timeout"]
    assert 0.9 < time.monotonic() - began < 4


def test_an_endless_answer_is_read_to_its_bound_and_1_KiB_is_kept(
    hook: Receiver, endpoint: WebhookEndpoint
) -> None:
    message(endpoint.tenant)
    hook.answer = endless
    began = time.monotonic()
    assert attempt() == ["delivered"]
    assert time.monotonic() - began < 5
    assert len(DeliveryAttempt.objects.get().answer) == 1_024


def test_nobody_at_home(endpoint: WebhookEndpoint) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        WebhookEndpoint.objects.update(url=f"http://127.0.0.1:{closed.getsockname()[1]}/")
        message(endpoint.tenant)
        assert attempt() == ["pending: connection"]
    assert "ConnectionRefusedError" in DeliveryAttempt.objects.get().detail


# --- addresses ----------------------------------------------------------------------------------


def test_an_inner_address_is_refused_at_the_connection(
    hook: Receiver, endpoint: WebhookEndpoint, settings: Any
) -> None:
    """Registered while it was public, or in development: what counts is where it leads now."""
    settings.WEBHOOK_ALLOW_PRIVATE = False
    message(endpoint.tenant)
    assert attempt() == ["pending: invalid_url"]
    assert hook.received == []


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"])
def test_a_name_that_leads_inside_is_refused(hook: Receiver, address: str) -> None:
    sent = webhook_client.send(
        f"http://rebound.example:{hook.port}/",
        b"{}",
        {},
        policy=AddressPolicy(allow_http=True, ports=frozenset({hook.port})),
        timeout_s=2,
        resolve=lambda *_: ["8.8.8.8", address],
    )
    assert sent.result.error == "address_refused"
    assert hook.received == []


def test_the_connection_goes_to_the_address_that_was_judged(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that would answer differently the second time is never asked a second time."""
    asked: list[str] = []

    def resolve(host: str, port: int, timeout_s: float) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the name was looked up again")

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: never() if "rebind" in host else real(host, *a)
    )
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    sent = webhook_client.send(
        f"http://rebind.example:{hook.port}/x?y=1",
        b"{}",
        {},
        policy=AddressPolicy(allow_http=True, allow_private=True),
        timeout_s=5,
        resolve=resolve,
    )
    assert sent.result.succeeded, sent
    assert asked == ["rebind.example"]
    assert hook.received[0].headers["host"] == f"rebind.example:{hook.port}"


def test_a_certificate_must_be_good(hook: Receiver) -> None:
    """A receiver without TLS behind https is no receiver."""
    sent = webhook_client.send(
        f"https://127.0.0.1:{hook.port}/",
        b"{}",
        {},
        policy=AddressPolicy(allow_private=True),
        timeout_s=3,
    )
    assert sent.result.error == "connection"
    assert hook.received == []


# --- secrets ------------------------------------------------------------------------------------


def test_the_old_secret_signs_beside_the_new_one_until_its_end(
    hook: Receiver, endpoint: WebhookEndpoint
) -> None:
    until = database_now() + timedelta(hours=1)
    WebhookEndpoint.objects.update(old_secret=seal(OTHER_SECRET), old_secret_until=until)
    message(endpoint.tenant)
    attempt()
    hook.received[0].verify(SECRET)
    hook.received[0].verify(OTHER_SECRET)
    WebhookEndpoint.objects.update(old_secret_until=database_now())
    message(endpoint.tenant)
    attempt()
    hook.received[1].verify(SECRET)
    assert len(hook.received[1].headers["webhook-signature"].split(" ")) == 1


def test_a_database_without_its_keys_gives_no_secret_away(
    endpoint: WebhookEndpoint, settings: Any
) -> None:
    assert "whsec" not in endpoint.secret
    settings.ENCRYPTION_KEYS = ["a new one", *settings.ENCRYPTION_KEYS]
    message(endpoint.tenant)
    assert attempt() == ["delivered"]
    settings.ENCRYPTION_KEYS = ["a new one"]
    message(endpoint.tenant)
    assert attempt() == ["pending: secret"]


# --- claims -------------------------------------------------------------------------------------


def test_a_claim_allows_one_attempt(hook: Receiver, endpoint: WebhookEndpoint) -> None:
    message(endpoint.tenant)
    fan_out_once()
    (row,) = claim_deliveries()
    assert claim_deliveries() == []
    assert deliver(row.delivery_id, uuid4()) == "taken"
    assert deliver(row.delivery_id, row.claim) == "delivered"
    assert deliver(row.delivery_id, row.claim) == "taken"  # the broker delivered it twice
    assert len(hook.received) == 1


def test_a_task_that_dies_leaves_its_delivery_due_again(
    hook: Receiver, endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    message(endpoint.tenant)
    fan_out_once()
    (row,) = claim_deliveries()
    with monkeypatch.context() as patch:

        def die(*_: Any, **__: Any) -> Any:
            raise SystemExit

        patch.setattr("runs.webhook_delivery._report", die)
        with pytest.raises(SystemExit):
            deliver(row.delivery_id, row.claim)
    assert the_delivery().status == "pending"
    assert claim_deliveries() == []
    NotificationDelivery.objects.update(next_attempt_at=database_now() - timedelta(seconds=1))
    assert attempt() == ["delivered"]
    assert [got.message_id for got in hook.received] == [hook.received[0].message_id] * 2
    assert the_delivery().attempts == 2


def test_an_attempt_that_outlives_its_claim_changes_nothing(
    hook: Receiver, endpoint: WebhookEndpoint
) -> None:
    message(endpoint.tenant)
    fan_out_once()
    (row,) = claim_deliveries()
    real = webhook_client.send

    def slow(*args: Any, **options: Any) -> Any:
        NotificationDelivery.objects.update(claim=uuid4())  # another claim follows it
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhook_client, "send", slow)
        assert deliver(row.delivery_id, row.claim) == "too late"
    assert the_delivery().status == "pending"


def test_a_broker_that_is_away_costs_nothing_but_time(
    hook: Receiver, endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    message(endpoint.tenant)
    monkeypatch.setattr(transport, "_silent_until", time.monotonic() + 60)
    counts = notify_once()
    assert (counts["sent"], counts["unsent"]) == (0, 1)
    assert the_delivery().claim is None
    due_now()
    assert attempt() == ["delivered"]


def test_a_slow_receiver_starves_nobody(settings: Any) -> None:
    settings.NOTIFICATION_SLOTS, settings.WEBHOOK_CONCURRENCY = 8, 3
    slow, quick = make_endpoint(make_tenant()), make_endpoint(make_tenant())
    failing = make_endpoint(make_tenant(), failing_since=database_now())
    for each, number in ((slow, 50), (quick, 2), (failing, 50)):
        for _ in range(number):
            message(each.tenant)
    fan_out_once()
    claimed = NotificationDelivery.objects.filter(
        delivery_id__in=[row.delivery_id for row in claim_deliveries()]
    )
    counts = {
        each.webhook_id: claimed.filter(webhook=each).count() for each in (slow, quick, failing)
    }
    assert counts == {slow.webhook_id: 3, quick.webhook_id: 2, failing.webhook_id: 1}
    assert claim_deliveries() == []  # each has what it may have under way


def test_the_slots_of_all_are_a_bound(settings: Any) -> None:
    settings.NOTIFICATION_SLOTS = 4
    for _ in range(3):
        each = make_endpoint(make_tenant())
        for _ in range(5):
            message(each.tenant)
    for _ in range(5):
        message(make_endpoint(make_tenant(), failing_since=database_now()).tenant)
    fan_out_once()
    assert len(claim_deliveries()) == 4
    assert claim_deliveries() == []


def test_failing_receivers_get_half_of_the_slots_at_most(settings: Any) -> None:
    settings.NOTIFICATION_SLOTS = 4
    for _ in range(6):
        message(make_endpoint(make_tenant(), failing_since=database_now()).tenant)
    fan_out_once()
    assert len(claim_deliveries()) == 2


# --- endpoints that are switched off --------------------------------------------------------------


def test_an_endpoint_that_failed_for_three_days_is_switched_off_and_its_tenant_written_to(
    hook: Receiver,
) -> None:
    tenant = make_tenant(contact_email="ops@acme.example")
    since = database_now() - timedelta(days=3, seconds=1)
    endpoint = make_endpoint(tenant, url=hook.url, failing_since=since)
    message(tenant)
    message(tenant)
    hook.answer = answering(500)
    fan_out_once()
    NotificationDelivery.objects.update(attempts=4)
    assert attempt() == ["pending: status"]
    endpoint.refresh_from_db()
    assert (endpoint.enabled, endpoint.off_reason) == (False, "failing")
    owed = NotificationDelivery.objects.filter(webhook=endpoint)
    assert {row.status for row in owed} == {DeliveryStatus.CANCELLED}
    assert attempt() == ["delivered"]
    (letter,) = mail.outbox
    assert letter.to == ["ops@acme.example"]
    assert endpoint.url in letter.body
    assert "whsec" not in letter.body


def test_410_switches_an_endpoint_off_at_once(hook: Receiver, endpoint: WebhookEndpoint) -> None:
    message(endpoint.tenant)
    hook.answer = answering(410)
    assert attempt() == ["failed: gone"]
    endpoint.refresh_from_db()
    assert (endpoint.enabled, endpoint.off_reason) == (False, "gone")
    assert attempt() == []  # no contact_email: nobody to write to


def test_an_e_mail_that_is_refused_is_tried_again(hook: Receiver, settings: Any) -> None:
    tenant = make_tenant(contact_email="ops@acme.example")
    message(
        tenant,
        "job.auto_paused",
        payload={"job_id": "j", "job_name": "a\nBcc: b@example.com", "failures": 3},
    )
    settings.EMAIL_BACKEND = "django.core.mail.backends.nowhere"
    assert attempt() == ["pending: email"]
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    due_now()
    assert attempt() == ["delivered"]
    assert mail.outbox[0].subject == "Job paused after 3 failures: a Bcc: b@example.com"


# --- the page -------------------------------------------------------------------------------------


def test_the_receiver_of_the_page_takes_what_is_sent_and_refuses_what_is_not(
    settings: Any, tmp_path: Path
) -> None:
    """Its code, as it stands there, in a process of its own."""
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    program = tmp_path / "receiver.py"
    program.write_text(code)
    port = first_free(29_000)
    environment = {**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    tenant = make_tenant()
    make_endpoint(tenant, url=f"http://127.0.0.1:{port}/")
    with (
        (tmp_path / "printed").open("w") as printed,
        subprocess.Popen([sys.executable, program], env=environment, stdout=printed,
                         stderr=subprocess.DEVNULL) as process,
    ):  # fmt: skip
        try:
            poll(lambda: not is_free(port), 20, "the receiver listens")
            owed = message(tenant)
            assert attempt() == ["delivered"]
            NotificationDelivery.objects.update(
                status="pending",
                next_attempt_at=database_now() - timedelta(minutes=1),
                finished_at=None,
            )
            assert attempt() == ["delivered"]  # the second time it does nothing
            WebhookEndpoint.objects.update(secret=seal(OTHER_SECRET))
            message(tenant)
            assert attempt() == ["pending: status"]
        finally:
            process.terminate()
    assert (tmp_path / "printed").read_text() == f"run.failed {owed.payload['run_id']}\n"
    assert DeliveryAttempt.objects.latest("pk").status_code == 401
