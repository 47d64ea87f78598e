"""`GET /v1/usage`: what the tenant uses of its quotas, and how its runs fare."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.response import Response

from runs.usage import WINDOW_S, lag_of, waiting_of
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.openapi import operation
from tenants.api.authentication import ApiRequest
from tenants.api.serializers import QuotasOutput
from tenants.domain.quota import COUNTED, Quota

USAGE_EXAMPLE = {
    "quotas": {
        "max_jobs": {"limit": 10_000, "used": 12},
        "max_concurrent_runs": {"limit": 100, "used": 3},
        "max_runs_per_hour": {"limit": 100_000, "used": 340},
    },
    "lag": {
        "window_s": WINDOW_S,
        "runs": 338,
        "truncated": False,
        "p50_s": 0.21,
        "p95_s": 0.48,
        "p99_s": 1.3,
    },
    "waiting": {
        "total": 14,
        "truncated": False,
        "by_reason": {
            "time": 12,
            "retry_backoff": 1,
            "earlier_run": 0,
            "tenant_concurrency": 0,
            "slot": 0,
            "worker": 1,
        },
    },
}


class LagQuantilesOutput(serializers.Serializer[Any]):
    """How late runs of the last hour started: seconds from due to the first start."""

    window_s = serializers.IntegerField()
    runs = serializers.IntegerField(help_text="How many of them have started.")
    truncated = serializers.BooleanField(help_text="Only the latest 10,000 were looked at.")
    p50_s = serializers.FloatField(allow_null=True)
    p95_s = serializers.FloatField(allow_null=True)
    p99_s = serializers.FloatField(allow_null=True)


class WaitReasonsOutput(serializers.Serializer[Any]):
    """How many runs wait for each thing, as `waiting_for` of a run says it."""

    time = serializers.IntegerField()
    retry_backoff = serializers.IntegerField()
    earlier_run = serializers.IntegerField()
    tenant_concurrency = serializers.IntegerField()
    slot = serializers.IntegerField()
    worker = serializers.IntegerField()


class WaitingOutput(serializers.Serializer[Any]):
    """The runs that have not started: how many, and why."""

    total = serializers.IntegerField()
    truncated = serializers.BooleanField(help_text="There are more: counting ends at 10,000.")
    by_reason = WaitReasonsOutput()


class UsageOutput(serializers.Serializer[Any]):
    """Use of the quotas, lag of the last hour, and what waits."""

    quotas = QuotasOutput()
    lag = LagQuantilesOutput()
    waiting = WaitingOutput()


class UsageGet(ApiView):
    """Read what you use, and how your runs fare."""

    # By the name of the limit, as for MeGet: the addresses bring them along.
    counters: Mapping[str, Callable[[UUID], int]] = {}

    @operation("Read your usage", response=UsageOutput, example=USAGE_EXAMPLE)
    def get(self, request: ApiRequest) -> Response:
        """Against each quota; how late the last hour's runs started; what the others wait for."""
        tenant = request.tenant
        quotas = {
            name: Quota(name, getattr(tenant, name), self.counters[name](tenant.tenant_id))
            for name in COUNTED
        }
        facts = {
            "quotas": quotas,
            "lag": asdict(lag_of(tenant)),
            "waiting": asdict(waiting_of(tenant)),
        }
        return Response(UsageOutput(facts).data)
