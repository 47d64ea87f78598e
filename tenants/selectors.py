"""Reads tenants and keys; its rule: a key's hash leaves this app nowhere."""

from uuid import UUID

from django.db.models import Q, QuerySet

from tenants.models import ApiKey, Tenant


def tenant_find(name_or_id: str) -> Tenant | None:
    """Return the tenant with this name, or with this id as text, or None."""
    by_name = Tenant.objects.filter(name=name_or_id).first()
    if by_name is not None:
        return by_name
    try:
        return Tenant.objects.filter(tenant_id=UUID(name_or_id)).first()
    except ValueError:
        return None


def keys_of(tenant: Tenant) -> QuerySet[ApiKey]:
    """Return the tenant's keys that are not revoked (some may have expired), oldest first."""
    return tenant.api_keys.filter(Q(revoked_at=None)).order_by("created_at")
