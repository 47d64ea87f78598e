"""Webhooks and deliveries as JSON; their secrets have an answer of their own."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from runs.domain.notification import EVENTS
from runs.domain.webhook_address import URL_LENGTH
from runs.models import NotificationDelivery
from runs.webhook_delivery import message_name
from scheduler_project.lib.fields import (
    FlagField,
    InstantField,
    ItemsField,
    OneOfField,
    StrictSerializer,
    TextField,
)


class WebhookInput(StrictSerializer):
    """A new webhook, or (with `partial=True`) a change of one."""

    url = TextField(min_length=1, max_length=URL_LENGTH)
    events = ItemsField(least=1, most=len(EVENTS), child=OneOfField(choices=list(EVENTS)))
    description = TextField(max_length=200, nfc=True, required=False)
    enabled = FlagField(required=False)


class NothingInput(StrictSerializer):
    """An empty object: there are no options, and unknown ones are refused by name."""


class WebhookOutput(serializers.Serializer[Any]):
    """A webhook, without its secret."""

    webhook_id = serializers.UUIDField()
    url = serializers.CharField()
    description = serializers.CharField()
    events = serializers.ListField(child=serializers.CharField())
    enabled = serializers.BooleanField()
    off_reason = serializers.SerializerMethodField(
        help_text="`failing` or `gone` when it was switched off by itself."
    )
    off_at = InstantField(allow_null=True)
    failing_since = InstantField(allow_null=True)
    last_success_at = InstantField(allow_null=True)
    old_secret_until = InstantField(allow_null=True)
    version = serializers.IntegerField()
    created_at = InstantField()
    updated_at = InstantField()

    def get_off_reason(self, webhook: Any) -> str | None:
        return webhook.off_reason or None


class WebhookPageOutput(serializers.Serializer[Any]):
    """A page of webhooks; `next_cursor` is null on the last."""

    webhooks = WebhookOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class SecretOutput(serializers.Serializer[Any]):
    """The secret by which a receiver checks signatures."""

    secret = serializers.CharField()


class PingOutput(serializers.Serializer[Any]):
    """The message that was sent on its way, as its `webhook-id` will say."""

    message_id = serializers.CharField()


class DeliveryOutput(serializers.Serializer[Any]):
    """A message owed to a webhook, and how it stands."""

    delivery_id = serializers.UUIDField()
    message_id = serializers.SerializerMethodField(help_text="The header `webhook-id`.")
    event = serializers.CharField(source="message.event")
    status = serializers.CharField()
    attempts = serializers.IntegerField()
    created_at = InstantField()
    next_attempt_at = InstantField(allow_null=True)
    finished_at = InstantField(allow_null=True)
    last_status_code = serializers.IntegerField(allow_null=True)
    last_error = serializers.SerializerMethodField()

    def get_message_id(self, delivery: NotificationDelivery) -> str:
        return message_name(delivery.message.message_id)

    def get_last_error(self, delivery: NotificationDelivery) -> str | None:
        return delivery.last_error or None


class DeliveryAttemptOutput(serializers.Serializer[Any]):
    """One attempt, with the beginning of the answer (1 KiB at most)."""

    attempt = serializers.IntegerField()
    at = InstantField()
    duration_ms = serializers.IntegerField()
    status_code = serializers.IntegerField(allow_null=True)
    error = serializers.SerializerMethodField()
    detail = serializers.CharField()
    answer = serializers.CharField()

    def get_error(self, attempt: Any) -> str | None:
        return attempt.error or None


class DeliveryDetailOutput(DeliveryOutput):
    """A delivery with its payload and every attempt."""

    payload = serializers.DictField(source="message.payload")
    attempt_log = DeliveryAttemptOutput(many=True)


class DeliveryPageOutput(serializers.Serializer[Any]):
    """A page of deliveries; `next_cursor` is null on the last."""

    deliveries = DeliveryOutput(many=True)
    next_cursor = serializers.CharField(allow_null=True)


NEW_WEBHOOK = WebhookInput()
WEBHOOK_CHANGE = WebhookInput(partial=True)
NOTHING = NothingInput()
