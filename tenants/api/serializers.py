"""What `GET /v1/me` shows."""

from typing import Any

from rest_framework import serializers

from scheduler_project.lib.fields import InstantField
from tenants.domain.scope import SCOPES
from tenants.models import IsolationTier


class TenantOutput(serializers.Serializer[Any]):
    """The tenant a key belongs to."""

    tenant_id = serializers.UUIDField()
    name = serializers.CharField()
    created_at = InstantField()


class KeyOutput(serializers.Serializer[Any]):
    """The key itself, by its public part."""

    api_key_id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=SCOPES))
    created_at = InstantField()
    expires_at = InstantField(allow_null=True)


class QuotaOutput(serializers.Serializer[Any]):
    """A limit that is counted, and how much of it is used now."""

    limit = serializers.IntegerField()
    used = serializers.IntegerField()


class QuotasOutput(serializers.Serializer[Any]):
    """The counted limits, by name."""

    max_jobs = QuotaOutput(help_text="Jobs that are not deleted.")
    max_concurrent_runs = QuotaOutput(help_text="Runs that are leased or running.")
    max_runs_per_hour = QuotaOutput(help_text="Runs scheduled in the last hour.")


class CeilingsOutput(serializers.Serializer[Any]):
    """The limits that each single job keeps to."""

    max_timeout_s = serializers.IntegerField()
    min_interval_s = serializers.IntegerField()
    max_cpu = serializers.FloatField()
    max_memory_mb = serializers.IntegerField()
    isolation_floor = serializers.ChoiceField(choices=IsolationTier.choices)
    image_allow_list = serializers.ListField(child=serializers.CharField())


class MeOutput(serializers.Serializer[Any]):
    """Who is asking, what they may do, and how much of it they have used."""

    tenant = TenantOutput()
    key = KeyOutput()
    quotas = QuotasOutput()
    ceilings = CeilingsOutput()
