"""The addresses of runs."""

from django.urls import path

from runs.api.backfill import JobBackfill
from runs.api.dead_letters import DeadLetterList, DeadLettersReplay, RunReplay
from runs.api.views import JobRunList, RunCancel, RunGet, RunList, RunNow
from runs.api.webhooks import (
    DeliveryGet,
    DeliveryList,
    DeliveryRedeliver,
    WebhookCreate,
    WebhookDelete,
    WebhookGet,
    WebhookList,
    WebhookPing,
    WebhookSecret,
    WebhookSecretRotate,
    WebhookUpdate,
)
from scheduler_project.lib.routing import resource

_WEBHOOK = "webhooks/<uuid:webhook_id>"
_DELIVERY = f"{_WEBHOOK}/deliveries/<uuid:delivery_id>"

urlpatterns = [
    path("jobs/<uuid:job_id>/runs", resource(JobRunList, RunNow), name="job-runs"),
    path("jobs/<uuid:job_id>/backfill", resource(JobBackfill), name="job-backfill"),
    path("webhooks", resource(WebhookList, WebhookCreate), name="webhooks"),
    path(_WEBHOOK, resource(WebhookGet, WebhookUpdate, WebhookDelete), name="webhook"),
    path(f"{_WEBHOOK}/secret", resource(WebhookSecret), name="webhook-secret"),
    path(f"{_WEBHOOK}/secret/rotate", resource(WebhookSecretRotate), name="webhook-secret-rotate"),
    path(f"{_WEBHOOK}/ping", resource(WebhookPing), name="webhook-ping"),
    path(f"{_WEBHOOK}/deliveries", resource(DeliveryList), name="webhook-deliveries"),
    path(_DELIVERY, resource(DeliveryGet), name="webhook-delivery"),
    path(f"{_DELIVERY}/redeliver", resource(DeliveryRedeliver), name="webhook-redeliver"),
    path("runs", resource(RunList), name="runs"),
    path("runs/<uuid:run_id>", resource(RunGet), name="run"),
    path("runs/<uuid:run_id>/cancel", resource(RunCancel), name="run-cancel"),
    path("runs/<uuid:run_id>/replay", resource(RunReplay), name="run-replay"),
    path("dead-letters", resource(DeadLetterList), name="dead-letters"),
    path("dead-letters/replay", resource(DeadLettersReplay), name="dead-letters-replay"),
]
