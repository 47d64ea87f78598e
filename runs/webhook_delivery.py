"""Delivers what the outbox owes: claims, attempts, and what follows each.

A scheduler's duty claims deliveries and sends a Celery task for each; a task uses the claim once,
makes the attempt outside any transaction, and reports under the claim. Whatever is lost in between
(the message, the task, its process), the claim ends and the delivery is due again: at least once,
under the same `webhook-id`. No order is promised.
"""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import connection, transaction
from standardwebhooks import Webhook

from runs import store, transport, webhook_client
from runs.domain.delivery import (
    AttemptResult,
    DeliveryStatus,
    next_of_delivery,
    switch_off,
)
from runs.domain.notification import ENDPOINT_DISABLED, PING, message_body
from runs.domain.notification_email import email_of
from runs.domain.webhook_address import AddressPolicy
from runs.models import DeliveryAttempt, OutboxMessage, WebhookEndpoint
from runs.notifications import fan_out_once
from runs.webhook_client import Sent
from scheduler_project.lib.events import emit
from scheduler_project.lib.metrics import count
from scheduler_project.lib.sealing import UnreadableSecretError, unseal
from tenants.models import Tenant

_USER_AGENT = "scheduler-webhooks/1"
# After the broker didn't take a claim's message.
_BROKER_AWAY_WAIT_S = 5.0


def address_policy() -> AddressPolicy:
    """Where webhooks may go in this installation."""
    return AddressPolicy(
        allow_http=settings.WEBHOOK_ALLOW_HTTP,
        allow_private=settings.WEBHOOK_ALLOW_PRIVATE,
        ports=frozenset(settings.WEBHOOK_PORTS),
        refused=tuple(settings.WEBHOOK_REFUSED_NETWORKS),
    )


# --- duty -------------------------------------------------------------------------------------


def notify_once() -> dict[str, int]:
    """Fan out new messages and send tasks for what is due; returns the counts."""
    counts = fan_out_once()
    claimed = claim_deliveries()
    sent = transport.send_deliveries([(row.delivery_id, row.claim) for row in claimed])
    unsent = claimed[sent:]
    if unsent:
        store.execute(
            "unclaim_deliveries",
            wait_s=_BROKER_AWAY_WAIT_S,
            **store.columns(unsent, "delivery_id", "claim"),
        )
    return counts | {"sent": sent, "unsent": len(unsent)}


def is_behind(counts: Mapping[str, int]) -> bool:
    """Return whether the round did something, so that more may be due or have room now."""
    return counts["sent"] > 0 or counts["messages"] > 0


def claim_deliveries() -> Sequence[Any]:
    """Claim what is due and has room; returns (`delivery_id`, `claim`) of each."""
    with transaction.atomic():
        (lock,) = store.fetch("try_notifier_lock")
        if not lock.is_ours:
            return []
        return store.fetch(
            "claim_deliveries",
            slots=settings.NOTIFICATION_SLOTS,
            concurrency=settings.WEBHOOK_CONCURRENCY,
            claim_s=settings.NOTIFICATION_CLAIM_S,
        )


# --- one attempt ------------------------------------------------------------------------------


def deliver(delivery_id: UUID, claim: UUID) -> str:
    """Make the attempt that a claim allows; returns in a word how it went, for the task's result.

    `taken`: somebody else has used the claim, it is over, or the delivery needs no attempt.
    """
    rows = store.fetch(
        "use_claim", delivery_id=delivery_id, claim=claim, claim_s=settings.NOTIFICATION_CLAIM_S
    )
    if not rows:
        return "taken"
    (row,) = rows
    if row.webhook_id is None:
        sent = _send_email(row)
        return _report(row, claim, sent, None)
    endpoint = WebhookEndpoint.objects.get(pk=row.webhook_id)
    # Switched off after the fan-out, which may have seen it on.
    if endpoint.deleted_at is not None or not (endpoint.enabled or row.event == PING):
        store.execute("cancel_deliveries", webhook_id=endpoint.webhook_id)
        return "cancelled"
    return _report(row, claim, _send_webhook(row, endpoint), endpoint)


def _send_webhook(row: Any, endpoint: WebhookEndpoint) -> Sent:
    body = json.dumps(
        message_body(row.event, row.created_at, row.payload), separators=(",", ":")
    ).encode()
    message_id = message_name(row.message_id)
    at = datetime.now(UTC)
    try:
        secrets = _secrets(endpoint)
    except UnreadableSecretError:
        emit("webhook.unreadable_secret", "A webhook's secret can't be read any more.",
             webhook_id=endpoint.webhook_id)  # fmt: skip
        return Sent(AttemptResult(error="secret", detail="rotate the secret"), 0)
    signatures = [Webhook(secret).sign(message_id, at, body.decode()) for secret in secrets]
    headers = {
        "Content-Type": "application/json",
        "User-Agent": _USER_AGENT,
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return webhook_client.send(
        endpoint.url,
        body,
        headers,
        policy=address_policy(),
        timeout_s=settings.WEBHOOK_TIMEOUT_S,
    )


def message_name(message_id: UUID) -> str:
    """What receivers know a message by (`webhook-id`)."""
    return f"msg_{message_id.hex}"


def _secrets(endpoint: WebhookEndpoint) -> list[str]:
    """The secrets that sign now, the new one first."""
    secrets = [unseal(endpoint.secret)]
    until = endpoint.old_secret_until
    if endpoint.old_secret and until is not None and until > database_now():
        secrets.append(unseal(endpoint.old_secret))
    return secrets


def _send_email(row: Any) -> Sent:
    tenant = Tenant.objects.get(pk=row.tenant_id)
    if not tenant.contact_email:
        return Sent(AttemptResult(error="no_address", detail="the tenant has no contact_email"), 0)
    subject, text = email_of(row.event, row.payload, tenant.name)
    message = EmailMessage(
        subject,
        text,
        to=[tenant.contact_email],
        headers={"Message-ID": f"<{message_name(row.message_id)}@{settings.INSTANCE}>"},
    )
    try:
        message.send()
    except Exception as error:  # backends raise what they like: SMTP, sockets, API clients
        detail = f"{type(error).__name__}: {error}"
        return Sent(AttemptResult(error="email", detail=detail[:300]), 0)
    return Sent(AttemptResult(), 0)


def _report(row: Any, claim: UUID, sent: Sent, endpoint: WebhookEndpoint | None) -> str:
    result, attempts = sent.result, row.attempts - row.attempts_before
    with transaction.atomic():
        now = database_now()
        following = next_of_delivery(
            result,
            attempts=attempts,
            now=now,
            try_until=row.try_until,
            random_unit=random.random(),
        )
        DeliveryAttempt.objects.create(
            delivery_id=row.delivery_id,
            attempt=row.attempts,
            duration_ms=sent.duration_ms,
            status_code=result.status_code,
            error=result.error,
            detail=_storable(result.detail)[:300],
            answer=_storable(sent.answer),
        )
        written = store.fetch(
            "report_delivery",
            delivery_id=row.delivery_id,
            claim=claim,
            status=following.status.value,
            wait_s=following.wait_s,
            status_code=result.status_code,
            error=result.error,
        )
        if endpoint is not None:
            _note_health(endpoint, result, attempts, now)
    count("notification_attempts_total", status="delivered" if result.succeeded else "failed")
    if not written:
        return "too late"
    count("notifications_given_up_total", following.status is DeliveryStatus.FAILED)
    if following.status is DeliveryStatus.FAILED:
        emit("notification.given_up", "A message could not be delivered and is given up.",
             delivery_id=row.delivery_id, error=result.error)  # fmt: skip
    return following.status.value if result.succeeded else f"{following.status}: {result.error}"


def _note_health(
    endpoint: WebhookEndpoint, result: AttemptResult, attempts: int, now: datetime
) -> None:
    webhook_id = endpoint.webhook_id
    if result.succeeded:
        store.execute("note_endpoint_success", webhook_id=webhook_id)
        return
    store.execute("note_endpoint_failure", webhook_id=webhook_id)
    endpoint.refresh_from_db(fields=["failing_since"])
    reason = switch_off(result, attempts=attempts, failing_since=endpoint.failing_since, now=now)
    if reason is None:
        return
    rows = store.fetch(
        "switch_endpoint_off", webhook_id=webhook_id, reason=reason.value, url=endpoint.url
    )
    if not rows:
        return
    store.execute("cancel_deliveries", webhook_id=webhook_id)
    OutboxMessage.objects.create(
        tenant_id=endpoint.tenant_id,
        event=ENDPOINT_DISABLED,
        payload={"webhook_id": str(webhook_id), "url": endpoint.url, "reason": reason.value},
    )
    transaction.on_commit(partial(count, "webhooks_switched_off_total"))
    emit("webhook.switched_off", "A webhook was switched off and its tenant is told by e-mail.",
         webhook_id=webhook_id, reason=reason.value)  # fmt: skip


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def database_now() -> datetime:
    """The database's clock at this moment."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now
