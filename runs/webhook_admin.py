"""Webhooks and deliveries in the console: how each stands; off, on, and deliver again.

Its rule: a secret is on no page. Lists of deliveries go by age or by webhook, which have an index.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter

from runs.models import NotificationDelivery, WebhookEndpoint
from runs.webhook_delivery import message_name
from runs.webhooks import (
    DeliveryPendingError,
    WebhookChanges,
    WebhookNotFoundError,
    WebhookOffError,
    delivery_redeliver,
    webhook_update,
)
from scheduler_project.lib.admin_pages import (
    ReadOnlyAdmin,
    ask_first,
    code,
    instant_column,
    instant_text,
    label_column,
    link,
    page_action,
    tell,
)

_COLOURS = {
    "pending": "info",
    "delivered": "success",
    "failed": "danger",
    "cancelled": "warning",
}
_OFF_ON = {
    False: "It is told nothing any more, also of what it is still owed.",
    True: "It is told of what happens from now on; what failed before is forgiven.",
}


class WebhookFilter(SimpleListFilter):
    """The webhook that a link named; there is no list of all to choose from."""

    title = "webhook"
    parameter_name = "webhook"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        text = request.GET.get("webhook", "")
        return [(text, text)] if text else []

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[NotificationDelivery]
    ) -> QuerySet[NotificationDelivery]:
        if not self.value():
            return queryset
        webhook_id = _uuid(self.value() or "")
        return queryset.filter(webhook_id=webhook_id) if webhook_id else queryset.none()


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ReadOnlyAdmin):
    """Who is told of what, and whether it works."""

    list_display = ("url", "tenant", "event_list", "state", "failing", "success", "created")
    list_filter = (("tenant", AutocompleteSelectFilter),)
    list_select_related = ("tenant",)
    ordering = ("-created_at", "-webhook_id")
    search_fields = ("webhook_id",)
    search_help_text = "The id of a webhook"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("id_text", "state"),
                    ("tenant", "url"),
                    ("event_list", "description"),
                    "deliveries",
                )
            },
        ),
        (
            "Health",
            {"fields": (("failing", "success"), ("off_reason", "off"), "old_secret_end")},
        ),
        ("Times", {"fields": (("created", "updated"), ("deleted", "version"))}),
    )
    actions_detail = ("enable", "disable")
    failing = instant_column("failing_since", "failing since")
    success = instant_column("last_success_at", "last success")
    off = instant_column("off_at", "switched off")
    old_secret_end = instant_column("old_secret_until", "old secret signs until")
    created = instant_column("created_at", "created")
    updated = instant_column("updated_at", "updated")
    deleted = instant_column("deleted_at", "deleted")

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookEndpoint]:
        """Without the secrets, so that no page, form or export can show them."""
        webhooks: QuerySet[WebhookEndpoint] = super().get_queryset(request)
        return webhooks.defer("secret", "old_secret")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint], search_term: str
    ) -> tuple[QuerySet[WebhookEndpoint], bool]:
        """By id."""
        if not search_term:
            return queryset, False
        webhook_id = _uuid(search_term)
        return (queryset.filter(pk=webhook_id) if webhook_id else queryset.none()), False

    @page_action("Switch on", "enable", "act")
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the webhook of this page on."""
        return self._switch(request, object_id, True)

    @page_action("Switch off", "disable", "act")
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the webhook of this page off."""
        return self._switch(request, object_id, False)

    def _switch(self, request: HttpRequest, object_id: str, enabled: bool) -> HttpResponse:
        webhook = self.get_object(request, object_id)
        if webhook is None:
            raise Http404
        word = "on" if enabled else "off"
        back = reverse("admin:runs_webhookendpoint_change", args=[object_id])
        question = ask_first(
            request,
            self,
            title=f"Switch {word}",
            sentence=_OFF_ON[enabled],
            back=back,
            rows=[webhook],
        )
        if question is not None:
            return question
        try:
            changes = WebhookChanges(enabled=enabled)
            webhook_update(webhook.tenant, webhook.pk, changes, expected_version=None)
        except WebhookNotFoundError:
            return tell(request, [], [f"{webhook} is deleted"], back)
        self.log_change(request, webhook, f"Switched {word}")
        return tell(request, [f"{webhook} is {word}"], [], back)

    @admin.display(description="webhook id")
    def id_text(self, webhook: WebhookEndpoint) -> SafeString:
        return code(webhook.webhook_id)

    @admin.display(description="events")
    def event_list(self, webhook: WebhookEndpoint) -> str:
        return ", ".join(webhook.events)

    @label_column(
        "state", {"on": "success", "failing": "warning", "off": "warning", "deleted": "danger"}
    )
    def state(self, webhook: WebhookEndpoint) -> str:
        if webhook.deleted_at:
            return "deleted"
        if not webhook.enabled:
            return "off"
        return "failing" if webhook.failing_since else "on"

    @admin.display(description="deliveries")
    def deliveries(self, webhook: WebhookEndpoint) -> SafeString:
        query = {"webhook": str(webhook.pk)}
        return link(reverse("admin:runs_notificationdelivery_changelist", query=query), "Its log")


@admin.register(NotificationDelivery)
class NotificationDeliveryAdmin(ReadOnlyAdmin):
    """What was and is owed to whom, newest first; a delivery's page shows its attempts."""

    list_display = (
        "message_text", "event", "tenant", "receiver", "state", "attempts", "result", "next_try",
        "created",
    )  # fmt: skip
    list_filter = (WebhookFilter,)
    list_select_related = ("tenant", "webhook", "message")
    search_fields = ("delivery_id",)
    search_help_text = "The id of a delivery"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("message_text", "state"),
                    ("event", "tenant"),
                    ("receiver", "attempts"),
                    ("result", "next_try"),
                    ("created", "finished"),
                    ("tried_until", "payload_text"),
                )
            },
        ),
    )
    actions = ("redeliver_selected",)
    actions_detail = ("redeliver",)
    change_form_outer_after_template = "admin/runs_delivery_attempts.html"
    created = instant_column("created_at", "created")
    next_try = instant_column("next_attempt_at", "next attempt")
    finished = instant_column("finished_at", "finished")
    tried_until = instant_column("try_until", "tried until")

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Newest first, as one of two indexes has it."""
        if request.GET.get("webhook"):
            return ("-created_at", "-delivery_id")
        return ("-created_at",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[NotificationDelivery], search_term: str
    ) -> tuple[QuerySet[NotificationDelivery], bool]:
        """By id."""
        if not search_term:
            return queryset, False
        delivery_id = _uuid(search_term)
        return (queryset.filter(pk=delivery_id) if delivery_id else queryset.none()), False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """The delivery's page, with its attempts."""
        delivery = self.get_object(request, object_id) if object_id else None
        context = {"attempts": _attempts(delivery)} if delivery else {}
        return super().changeform_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    @admin.action(description="Deliver again", permissions=["act"])
    def redeliver_selected(
        self, request: HttpRequest, queryset: QuerySet[NotificationDelivery]
    ) -> HttpResponse:
        """Deliver the chosen ones again."""
        return self._redeliver(
            request, list(queryset), request.get_full_path(), "redeliver_selected"
        )

    @page_action("Deliver again", "redeliver", "act")
    def redeliver(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Deliver the one of this page again."""
        delivery = self.get_object(request, object_id)
        if delivery is None:
            raise Http404
        back = reverse("admin:runs_notificationdelivery_change", args=[object_id])
        return self._redeliver(request, [delivery], back)

    def _redeliver(
        self,
        request: HttpRequest,
        deliveries: Sequence[NotificationDelivery],
        back: str,
        name: str = "",
    ) -> HttpResponse:
        question = ask_first(
            request,
            self,
            title="Deliver again",
            sentence="The same messages are sent under the same ids, for 24 hours from now.",
            back=back,
            rows=deliveries,
            action=name,
        )
        if question is not None:
            return question
        done, refused = [], []
        for delivery in deliveries:
            if delivery.webhook_id is None:
                refused.append(f"{delivery} is an e-mail")
                continue
            try:
                delivery_redeliver(delivery.tenant, delivery.webhook_id, delivery.pk)
            except WebhookNotFoundError:
                refused.append(f"The webhook of {delivery} is deleted")
            except WebhookOffError:
                refused.append(f"The webhook of {delivery} is switched off")
            except DeliveryPendingError:
                refused.append(f"{delivery} is still being tried")
            else:
                self.log_change(request, delivery, "Delivered again")
                done.append(f"{delivery} is on its way")
        return tell(request, done, refused, back)

    @admin.display(description="message")
    def message_text(self, delivery: NotificationDelivery) -> SafeString:
        return code(message_name(delivery.message.message_id))

    @admin.display(description="event")
    def event(self, delivery: NotificationDelivery) -> str:
        return delivery.message.event

    @admin.display(description="receiver")
    def receiver(self, delivery: NotificationDelivery) -> SafeString | str:
        if delivery.webhook is None:
            return "e-mail"
        url = reverse("admin:runs_webhookendpoint_change", args=[delivery.webhook_id])
        return link(url, delivery.webhook.url)

    @label_column("status", _COLOURS)
    def state(self, delivery: NotificationDelivery) -> str:
        return delivery.status

    @admin.display(description="last result")
    def result(self, delivery: NotificationDelivery) -> str:
        return " ".join(
            str(part) for part in (delivery.last_status_code, delivery.last_error) if part
        )

    @admin.display(description="payload")
    def payload_text(self, delivery: NotificationDelivery) -> SafeString:
        return code(delivery.message.payload)


def _attempts(delivery: NotificationDelivery) -> dict[str, Any]:
    return {
        "headers": ["Attempt", "At", "Took", "Status", "Error", "Detail", "Answer"],
        "rows": [
            (
                one.attempt,
                instant_text(one.at),
                f"{one.duration_ms} ms",
                one.status_code,
                one.error,
                one.detail,
                one.answer,
            )
            for one in delivery.attempt_log.order_by("attempt")
        ],
    }


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
