"""The operations on webhooks, a class each: read the request, call the service, show the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from runs import webhooks
from runs.api import webhook_examples as examples
from runs.api.webhook_serializers import (
    NEW_WEBHOOK,
    NOTHING,
    WEBHOOK_CHANGE,
    DeliveryDetailOutput,
    DeliveryOutput,
    DeliveryPageOutput,
    NothingInput,
    PingOutput,
    SecretOutput,
    WebhookInput,
    WebhookOutput,
    WebhookPageOutput,
)
from runs.domain.delivery import DeliveryStatus
from runs.models import WebhookEndpoint
from runs.webhook_delivery import message_name
from runs.webhooks import WebhookChanges
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.etags import etag_of, expected_version
from scheduler_project.lib.openapi import CURSOR, IDEMPOTENCY_KEY, LIMIT, if_match, operation
from scheduler_project.lib.pagination import CursorScope, keyset_page, limit_of
from scheduler_project.lib.problems import Problem, invalid
from tenants.api.authentication import ApiRequest
from tenants.api.idempotency import idempotent

_STATUSES = [str(status) for status in DeliveryStatus]


class WebhookCreate(ApiView):
    """Register a webhook."""

    @operation(
        "Register a webhook",
        status=201,
        response=WebhookOutput,
        example=examples.WEBHOOK,
        request=WebhookInput,
        request_example=examples.NEW_WEBHOOK,
        parameters=[IDEMPOTENCY_KEY],
        problems=["quota_exceeded"],
    )
    @idempotent
    def post(self, request: ApiRequest) -> Response:
        """It is told of what happens from now on, in messages signed by a secret of its own."""
        said = WebhookChanges(**NEW_WEBHOOK.run_validation(_body(request)))
        with _refusals():
            webhooks.check_url(said.url or "")
            made = webhooks.webhook_create(request.tenant, said)
        return _show(made, status=201, Location=f"/v1/webhooks/{made.webhook_id}")


class WebhookList(ApiView):
    """List webhooks, newest first."""

    query_names = {"GET": ("cursor", "limit")}

    @operation(
        "List webhooks",
        response=WebhookPageOutput,
        example=examples.WEBHOOK_PAGE,
        parameters=[CURSOR, LIMIT],
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest) -> Response:
        """Newest first, those that are off included."""
        page = keyset_page(
            webhooks.webhooks_of(request.tenant),
            {"created_at": datetime, "webhook_id": UUID},
            CursorScope("webhooks", request.tenant.pk, {}),
            self.query.get("cursor"),
            limit_of(self.query.get("limit")),
        )
        shown = WebhookOutput(page.rows, many=True).data
        return Response({"webhooks": shown, "next_cursor": page.next_cursor})


class WebhookGet(ApiView):
    """Read a webhook."""

    @operation("Read a webhook", response=WebhookOutput, example=examples.WEBHOOK)
    def get(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """With how it is doing: since when it fails, and why it was switched off."""
        with _refusals():
            return _show(webhooks.webhook_find(request.tenant, webhook_id))


class WebhookUpdate(ApiView):
    """Change a webhook."""

    @operation(
        "Change a webhook",
        response=WebhookOutput,
        example=examples.CHANGED_WEBHOOK,
        request=WebhookInput(partial=True),
        request_example=examples.CHANGE,
        parameters=[if_match(is_required=False)],
    )
    def patch(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """Changes what is given. Off, it is told nothing, also of what it was still owed."""
        with _refusals():
            webhooks.webhook_find(request.tenant, webhook_id)
            version = expected_version(request, is_required=False)
            said = WebhookChanges(**WEBHOOK_CHANGE.run_validation(_body(request)))
            if said.url is not None:
                webhooks.check_url(said.url)
            changed = webhooks.webhook_update(
                request.tenant, webhook_id, said, expected_version=version
            )
        return _show(changed)


class WebhookDelete(ApiView):
    """Delete a webhook."""

    @operation("Delete a webhook", status=204, parameters=[if_match(is_required=False)])
    def delete(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """Nothing is sent to it any more, and its secret is forgotten."""
        with _refusals():
            webhooks.webhook_find(request.tenant, webhook_id)
            version = expected_version(request, is_required=False)
            webhooks.webhook_delete(request.tenant, webhook_id, expected_version=version)
        return Response(status=204)


class WebhookSecret(ApiView):
    """Show a webhook's secret."""

    @operation(
        "Show a webhook's secret",
        response=SecretOutput,
        example=examples.SECRET,
        request=NothingInput(required=False),
        request_example={},
    )
    def post(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """A POST, because keys that only read don't see it, and no cache keeps it."""
        with _refusals():
            found = webhooks.webhook_find(request.tenant, webhook_id)
        _no_body(request)
        return Response({"secret": webhooks.secret_of(found)})


class WebhookSecretRotate(ApiView):
    """Give a webhook a new secret."""

    @operation(
        "Rotate a webhook's secret",
        response=WebhookOutput,
        example=examples.ROTATED_WEBHOOK,
        request=NothingInput(required=False),
        request_example={},
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent
    def post(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """The old one signs beside the new one until `old_secret_until`."""
        with _refusals():
            webhooks.webhook_find(request.tenant, webhook_id)
            _no_body(request)
            return _show(webhooks.secret_rotate(request.tenant, webhook_id))


class WebhookPing(ApiView):
    """Send a webhook a test message."""

    @operation(
        "Send a test message",
        status=202,
        response=PingOutput,
        example=examples.PING,
        request=NothingInput(required=False),
        request_example={},
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent
    def post(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """Of type `webhook.ping`, also to one that is switched off; its log says how it went."""
        with _refusals():
            webhooks.webhook_find(request.tenant, webhook_id)
            _no_body(request)
            message = webhooks.webhook_ping(request.tenant, webhook_id)
        return Response({"message_id": message_name(message.message_id)}, status=202)


class DeliveryList(ApiView):
    """List a webhook's deliveries, newest first."""

    query_names = {"GET": ("status", "cursor", "limit")}

    @operation(
        "List a webhook's deliveries",
        response=DeliveryPageOutput,
        example=examples.DELIVERY_PAGE,
        parameters=[
            OpenApiParameter("status", str, enum=_STATUSES, description="Only in this status."),
            CURSOR,
            LIMIT,
        ],
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest, webhook_id: UUID) -> Response:
        """What it was and is owed, newest first."""
        with _refusals():
            found = webhooks.webhook_find(request.tenant, webhook_id)
        status = self.query.get("status")
        if status is not None and status not in _STATUSES:
            raise invalid(
                "status", "invalid_choice", f"This must be one of {', '.join(_STATUSES)}."
            )
        rows = webhooks.deliveries_of(found)
        page = keyset_page(
            rows if status is None else rows.filter(status=status),
            {"created_at": datetime, "delivery_id": UUID},
            CursorScope(
                "deliveries",
                request.tenant.pk,
                {"webhook": str(webhook_id), "status": status or ""},
            ),
            self.query.get("cursor"),
            limit_of(self.query.get("limit")),
        )
        shown = DeliveryOutput(page.rows, many=True).data
        return Response({"deliveries": shown, "next_cursor": page.next_cursor})


class DeliveryGet(ApiView):
    """Read a delivery."""

    @operation("Read a delivery", response=DeliveryDetailOutput, example=examples.DELIVERY_DETAIL)
    def get(self, request: ApiRequest, webhook_id: UUID, delivery_id: UUID) -> Response:
        """With what was sent, every attempt, and how the answer began."""
        with _refusals():
            found = webhooks.webhook_find(request.tenant, webhook_id)
            delivery = webhooks.delivery_find(found, delivery_id)
        shown = {
            **DeliveryDetailOutput(delivery).data,
            "attempt_log": DeliveryDetailOutput()
            .fields["attempt_log"]
            .to_representation(delivery.attempt_log.order_by("attempt")),
        }
        return Response(shown)


class DeliveryRedeliver(ApiView):
    """Deliver again."""

    @operation(
        "Deliver again",
        status=202,
        response=DeliveryOutput,
        example=examples.REDELIVERED,
        request=NothingInput(required=False),
        request_example={},
        parameters=[IDEMPOTENCY_KEY],
        problems=["webhook_off", "delivery_pending"],
    )
    @idempotent
    def post(self, request: ApiRequest, webhook_id: UUID, delivery_id: UUID) -> Response:
        """The same message under the same `webhook-id`, tried for 24 hours from now."""
        with _refusals():
            found = webhooks.webhook_find(request.tenant, webhook_id)
            webhooks.delivery_find(found, delivery_id)
            _no_body(request)
            delivery = webhooks.delivery_redeliver(request.tenant, webhook_id, delivery_id)
        return Response(DeliveryOutput(delivery).data, status=202)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what runs.webhooks raises into the Problem that a caller sees."""
    try:
        yield
    except webhooks.WebhookNotFoundError:
        raise Problem("not_found") from None
    except webhooks.WebhookUrlError as error:
        raise invalid("url", "invalid_webhook_url", f"The URL {error}.") from None
    except webhooks.WebhookQuotaError as error:
        raise Problem("quota_exceeded", f"The tenant has its {error} webhooks already.") from None
    except webhooks.StaleWebhookError as error:
        raise Problem("version_mismatch", f"The webhook's version is {error}.") from None
    except webhooks.WebhookOffError:
        raise Problem("webhook_off") from None
    except webhooks.DeliveryPendingError:
        raise Problem("delivery_pending") from None


def _body(request: ApiRequest) -> object:
    if request.META.get("CONTENT_LENGTH") in (None, "", "0"):
        raise Problem("body_required")
    return request.data


def _no_body(request: ApiRequest) -> None:
    if request.META.get("CONTENT_LENGTH") not in (None, "", "0"):
        NOTHING.run_validation(request.data)


def _show(webhook: WebhookEndpoint, *, status: int = 200, **headers: str) -> Response:
    return Response(
        WebhookOutput(webhook).data,
        status=status,
        headers={"ETag": etag_of(webhook.version), **headers},
    )
