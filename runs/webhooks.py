"""Registers and changes webhooks, their secrets and deliveries: the one path for API and admin."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from runs import store, webhook_client
from runs.domain.delivery import TRY_FOR, DeliveryStatus
from runs.domain.notification import PING, known_events
from runs.domain.webhook_address import UrlError, parse_target, refused_among
from runs.models import NotificationDelivery, OutboxMessage, WebhookEndpoint
from runs.webhook_delivery import address_policy
from scheduler_project.lib.sealing import seal, unseal
from scheduler_project.lib.transactions import one_transaction
from tenants.models import Tenant

# Bytes of a secret: what Standard Webhooks recommends at most 64, at least 24.
_SECRET_BYTES = 32
_LOOK_UP_S = 2.0


class WebhookNotFoundError(Exception):
    """The tenant has no such webhook, or no such delivery of it."""


class WebhookQuotaError(Exception):
    """The tenant has as many webhooks as it may; `args[0]` is the limit."""


class StaleWebhookError(Exception):
    """The webhook has another version; `args[0]` is the current one."""


class WebhookOffError(Exception):
    """The webhook is switched off."""


class DeliveryPendingError(Exception):
    """The delivery is still being tried by itself."""


class WebhookUrlError(ValueError):
    """The URL can't be a webhook's; the message says why."""


@dataclass(frozen=True)
class WebhookChanges:
    """What a request says about a webhook; None is what it doesn't mention."""

    url: str | None = None
    events: Sequence[str] | None = None
    description: str | None = None
    enabled: bool | None = None


def webhooks_of(tenant: Tenant) -> QuerySet[WebhookEndpoint]:
    """The tenant's webhooks."""
    return WebhookEndpoint.objects.filter(tenant=tenant, deleted_at=None)


def webhook_find(tenant: Tenant, webhook_id: UUID) -> WebhookEndpoint:
    """The tenant's webhook; raises WebhookNotFoundError."""
    found = webhooks_of(tenant).filter(pk=webhook_id).first()
    if found is None:
        raise WebhookNotFoundError
    return found


def check_url(url: str) -> None:
    """Raise WebhookUrlError unless requests may go there, as far as can be told now.

    A name that can't be looked up at the moment is taken: each delivery looks again, and judges
    again what it finds.
    """
    policy = address_policy()
    try:
        target = parse_target(url, policy)
    except UrlError as error:
        raise WebhookUrlError(str(error)) from error
    try:
        addresses = webhook_client.look_up(target.host, target.port, _LOOK_UP_S)
    except webhook_client.LookUpError:
        return
    if refused := refused_among(addresses, policy):
        raise WebhookUrlError(f"leads to {refused[0]}, which is not public: {refused[1]}")


def webhook_create(tenant: Tenant, said: WebhookChanges) -> WebhookEndpoint:
    """Register a webhook with a new secret; `said` has a checked `url` and `events`.

    Raises WebhookQuotaError.
    """
    with one_transaction():
        # Creations take turns, so that two at once can't pass the limit.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        limit = settings.WEBHOOK_MAX_ENDPOINTS
        if webhooks_of(tenant).count() >= limit:
            raise WebhookQuotaError(limit)
        made = WebhookEndpoint.objects.create(
            tenant=tenant,
            url=said.url or "",
            events=known_events(said.events or ()),
            description=said.description or "",
            enabled=said.enabled is not False,
            secret=seal(_new_secret()),
        )
        made.refresh_from_db()
    return made


def webhook_update(
    tenant: Tenant, webhook_id: UUID, changes: WebhookChanges, *, expected_version: int | None
) -> WebhookEndpoint:
    """Change a webhook and return it. Switched off, what it is still owed is cancelled; switched
    on, it begins with what happens from now on.

    Raises WebhookNotFoundError and StaleWebhookError.
    """
    with transaction.atomic():
        found = _lock(tenant, webhook_id, expected_version)
        before = (found.url, found.events, found.description, found.enabled)
        if changes.url is not None:
            found.url = changes.url
        if changes.events is not None:
            found.events = known_events(changes.events)
        if changes.description is not None:
            found.description = changes.description
        if changes.enabled is not None:
            found.enabled = changes.enabled
        if before == (found.url, found.events, found.description, found.enabled):
            return found
        if (found.enabled and not before[3]) or found.url != before[0]:
            # A new chance: what failed before says nothing about it.
            found.off_reason, found.off_at, found.failing_since = "", None, None
        if not found.enabled:
            store.execute("cancel_deliveries", webhook_id=webhook_id)
        _save(found)
    return found


def webhook_delete(tenant: Tenant, webhook_id: UUID, *, expected_version: int | None) -> None:
    """Forget a webhook and its secrets; its log goes with the retention.

    Raises WebhookNotFoundError and StaleWebhookError.
    """
    with transaction.atomic():
        found = _lock(tenant, webhook_id, expected_version)
        found.enabled, found.off_reason = False, ""
        found.secret = found.old_secret = ""
        found.old_secret_until = None
        store.execute("cancel_deliveries", webhook_id=webhook_id)
        _save(found)
        WebhookEndpoint.objects.filter(pk=webhook_id).update(deleted_at=Now())


def secret_of(found: WebhookEndpoint) -> str:
    """The secret that signs what the webhook gets (`whsec_…`)."""
    return unseal(found.secret)


def secret_rotate(tenant: Tenant, webhook_id: UUID) -> WebhookEndpoint:
    """Give a webhook a new secret; the one it had signs beside it for a while.

    Rotated again within that while, the older one of the two no longer signs: two is what a
    receiver has to try. Raises WebhookNotFoundError.
    """
    with one_transaction():
        found = _lock(tenant, webhook_id, None)
        overlap = timedelta(seconds=settings.WEBHOOK_SECRET_OVERLAP_S)
        WebhookEndpoint.objects.filter(pk=webhook_id).update(
            secret=seal(_new_secret()),
            old_secret=found.secret,
            old_secret_until=Now() + overlap,
            version=F("version") + 1,
            updated_at=Now(),
        )
        found.refresh_from_db()
    return found


def webhook_ping(tenant: Tenant, webhook_id: UUID) -> OutboxMessage:
    """Owe the webhook a `webhook.ping`, off or on; raises WebhookNotFoundError."""
    with one_transaction():
        found = webhook_find(tenant, webhook_id)
        made = OutboxMessage.objects.create(
            tenant=tenant,
            event=PING,
            webhook_id=found.webhook_id,
            payload={"webhook_id": str(found.webhook_id)},
        )
        made.refresh_from_db()
    return made


def deliveries_of(found: WebhookEndpoint) -> QuerySet[NotificationDelivery]:
    """What the webhook was and is owed, with the messages."""
    return NotificationDelivery.objects.filter(webhook=found).select_related("message")


def delivery_find(found: WebhookEndpoint, delivery_id: UUID) -> NotificationDelivery:
    """One delivery of the webhook; raises WebhookNotFoundError."""
    delivery = deliveries_of(found).filter(pk=delivery_id).first()
    if delivery is None:
        raise WebhookNotFoundError
    return delivery


def delivery_redeliver(tenant: Tenant, webhook_id: UUID, delivery_id: UUID) -> NotificationDelivery:
    """Deliver again what was delivered, given up or cancelled: the same message under the same id.

    It is tried for 24 hours from now. Raises WebhookNotFoundError, WebhookOffError, and
    DeliveryPendingError while it is tried by itself.
    """
    with one_transaction():
        found = webhook_find(tenant, webhook_id)
        if not found.enabled:
            raise WebhookOffError
        delivery_find(found, delivery_id)
        rows = NotificationDelivery.objects.filter(pk=delivery_id).exclude(
            status=DeliveryStatus.PENDING
        )
        if not rows.update(
            status=DeliveryStatus.PENDING,
            finished_at=None,
            attempts_before=F("attempts"),
            next_attempt_at=Now(),
            try_until=Now() + TRY_FOR,
        ):
            raise DeliveryPendingError
        return delivery_find(found, delivery_id)


def _lock(tenant: Tenant, webhook_id: UUID, expected_version: int | None) -> WebhookEndpoint:
    found = webhooks_of(tenant).select_for_update().filter(pk=webhook_id).first()
    if found is None:
        raise WebhookNotFoundError
    if expected_version is not None and found.version != expected_version:
        raise StaleWebhookError(found.version)
    return found


def _save(found: WebhookEndpoint) -> None:
    """Write a row that this transaction has locked, as its next version."""
    names = (
        "url", "events", "description", "enabled", "off_reason", "off_at", "failing_since",
        "secret", "old_secret", "old_secret_until",
    )  # fmt: skip
    values = {name: getattr(found, name) for name in names}
    WebhookEndpoint.objects.filter(pk=found.pk).update(
        **values, version=found.version + 1, updated_at=Now()
    )
    found.refresh_from_db()


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()
