"""Whom a tenant wants told, what is owed to each, and how each attempt went."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from runs.domain.delivery import DeliveryStatus, EndpointOff
from runs.domain.webhook_address import URL_LENGTH


class WebhookEndpoint(models.Model):
    """An address of a tenant that is told of events. Secrets are sealed (lib/sealing.py)."""

    webhook_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # No index of the foreign keys' own here: those below begin with them, or nothing asks.
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    url = models.CharField(max_length=URL_LENGTH)
    description = models.CharField(max_length=200, blank=True, default="")
    events = ArrayField(models.CharField(max_length=64))
    enabled = models.BooleanField(default=True)
    # Why and when we switched it off; "" while it is on, or when the tenant did it.
    off_reason = models.CharField(max_length=16, default="", blank=True)
    off_at = models.DateTimeField(null=True)
    # The first failure after the last success; null while all is well.
    failing_since = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    secret = models.TextField(editable=False)
    # Signs beside the new one until then, so that a receiver can change over in its own time.
    old_secret = models.TextField(default="", editable=False)
    old_secret_until = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    # Off and without secrets from then on; the row goes when its last delivery has gone.
    deleted_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        db_table = "webhook_endpoints"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(off_reason__in=["", *sorted(EndpointOff)]),
                name="webhook_off_reason_known",
            ),
            models.CheckConstraint(
                condition=models.Q(enabled=False) | models.Q(off_reason=""),
                name="webhook_on_has_no_off_reason",
            ),
            models.CheckConstraint(
                condition=models.Q(deleted_at=None) | models.Q(enabled=False, secret=""),
                name="webhook_deleted_is_off",
            ),
            models.CheckConstraint(
                condition=models.Q(old_secret="") | models.Q(old_secret_until__isnull=False),
                name="webhook_old_secret_ends",
            ),
        ]
        indexes = [
            # Whether a tenant is to be told of an event; lists of a tenant's endpoints.
            models.Index(
                fields=["tenant", "-created_at", "-webhook_id"], name="webhooks_by_tenant"
            ),
        ]

    def __str__(self) -> str:
        return self.url


class NotificationDelivery(models.Model):
    """One message owed to one receiver: a webhook, or (`webhook` null) the tenant by e-mail."""

    delivery_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # What a fair share is counted by: the webhook's id, or the tenant's for e-mail.
    target_id = models.UUIDField()
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    webhook = models.ForeignKey(
        WebhookEndpoint,
        on_delete=models.CASCADE,
        null=True,
        related_name="deliveries",
        db_index=False,
    )
    message = models.ForeignKey(
        "runs.OutboxMessage", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    status = models.CharField(
        max_length=16,
        choices=[(s.value, s.name.title()) for s in DeliveryStatus],
        default=DeliveryStatus.PENDING,
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    # How many of them were made before somebody asked for a redelivery: its waits begin anew.
    attempts_before = models.PositiveSmallIntegerField(default=0, db_default=0)
    # When it is due; while a claim is held, when the claim ends.
    next_attempt_at = models.DateTimeField(db_default=Now(), null=True)
    try_until = models.DateTimeField()
    # Whoever holds this token may make the attempt; one claim is used by one task only.
    claim = models.UUIDField(null=True)
    claim_used = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    last_status_code = models.PositiveSmallIntegerField(null=True)
    last_error = models.CharField(max_length=32, default="")

    class Meta:
        db_table = "notification_deliveries"
        constraints = [
            # Fan-out after a crash finds what it did: a receiver is owed a message once.
            models.UniqueConstraint(fields=["message", "target_id"], name="delivery_once"),
            models.CheckConstraint(
                condition=models.Q(status__in=sorted(DeliveryStatus)), name="delivery_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(
                    status="pending", finished_at=None, next_attempt_at__isnull=False
                )
                | (~models.Q(status="pending") & models.Q(finished_at__isnull=False, claim=None)),
                name="delivery_final_is_finished",
            ),
        ]
        indexes = [
            # claim_deliveries: what is due, receiver by receiver.
            models.Index(
                fields=["target_id", "next_attempt_at"],
                name="deliveries_due",
                condition=models.Q(status="pending"),
            ),
            # The log of an endpoint, newest first.
            models.Index(
                fields=["webhook", "-created_at", "-delivery_id"], name="deliveries_by_webhook"
            ),
            # notifier_lag: what nobody has tried yet.
            models.Index(
                fields=["created_at"],
                name="deliveries_untried",
                condition=models.Q(status="pending", attempts=0),
            ),
            # purge_deliveries: the oldest first.
            models.Index(fields=["created_at"], name="deliveries_by_age"),
        ]

    def __str__(self) -> str:
        return str(self.delivery_id)


class DeliveryAttempt(models.Model):
    """How one attempt went; of an answer's body the beginning is kept."""

    delivery = models.ForeignKey(
        NotificationDelivery, on_delete=models.CASCADE, related_name="attempt_log", db_index=False
    )
    attempt = models.PositiveSmallIntegerField()
    at = models.DateTimeField(db_default=Now())
    duration_ms = models.PositiveIntegerField()
    status_code = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=32, default="")
    detail = models.CharField(max_length=300, default="")
    # At most 1 KiB, as text.
    answer = models.TextField(default="")

    class Meta:
        db_table = "delivery_attempts"
        constraints = [
            models.UniqueConstraint(fields=["delivery", "attempt"], name="delivery_attempt_once")
        ]
