"""`GET /v1/me`: the key's own account of itself."""

from collections.abc import Callable, Mapping
from uuid import UUID

from rest_framework.response import Response

from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.openapi import operation
from tenants.api.authentication import ApiRequest
from tenants.api.serializers import MeOutput
from tenants.domain.quota import COUNTED, Quota

ME_EXAMPLE = {
    "tenant": {
        "tenant_id": "6f7f5a2e-6a0f-4d0e-9c58-0f6a3d9b7b11",
        "name": "acme",
        "created_at": "2026-11-02T09:30:00Z",
    },
    "key": {
        "api_key_id": "1a5b3f6c-8f0d-4c1a-bb1f-2f6f1c0a9d42",
        "name": "deploy",
        "prefix": "Qm3xV7Lk2PzA",
        "scopes": ["write"],
        "created_at": "2026-11-02T09:31:00Z",
        "expires_at": None,
    },
    "quotas": {
        "max_jobs": {"limit": 10_000, "used": 12},
        "max_concurrent_runs": {"limit": 100, "used": 3},
        "max_runs_per_hour": {"limit": 100_000, "used": 340},
    },
    "ceilings": {
        "max_timeout_s": 86_400,
        "min_interval_s": 60,
        "max_cpu": 2.0,
        "max_memory_mb": 2_048,
        "isolation_floor": "container",
        "image_allow_list": [],
    },
}


class MeGet(ApiView):
    """Read who you are: the tenant, the key's scopes, the quotas and their use."""

    # What counts against each quota, by the name of the limit: jobs and runs are apps above this
    # one, so the addresses bring their counters along.
    counters: Mapping[str, Callable[[UUID], int]] = {}

    @operation("Who am I", response=MeOutput, example=ME_EXAMPLE)
    def get(self, request: ApiRequest) -> Response:
        tenant = request.tenant
        quotas = {
            name: Quota(name, getattr(tenant, name), self.counters[name](tenant.tenant_id))
            for name in COUNTED
        }
        shown = MeOutput(
            {"tenant": tenant, "key": request.auth, "quotas": quotas, "ceilings": tenant}
        )
        return Response(shown.data)
