"""Reads tenants and keys; its rule: a key's hash leaves this app nowhere."""

from dataclasses import dataclass
from functools import cache
from typing import Final
from uuid import UUID

from django.db import connection
from django.db.models import Model

from scheduler_project.lib.prepared import prepared_cursor
from tenants.models import ApiKey, Tenant

# `last_used_at` is for people looking for dead keys: a write a minute is exact enough.
USE_RECORDED_EVERY_S: Final = 60


@dataclass(frozen=True)
class FoundKey:
    """A key with its tenant, and what the database's clock says about it."""

    api_key: ApiKey
    is_expired: bool
    use_is_old: bool


def key_find(prefix: str) -> FoundKey | None:
    """Return the key with this prefix, revoked and expired ones too, or None.

    Every request begins with it: the statement is put together once, because building it anew with
    the ORM costs five times what PostgreSQL needs to answer it.
    """
    with prepared_cursor() as cursor:
        cursor.execute(_key_statement(), [USE_RECORDED_EVERY_S, prefix])
        row = cursor.fetchone()
    if row is None:
        return None
    keys, tenants = _names(ApiKey), _names(Tenant)
    api_key = ApiKey.from_db(connection.alias, keys, row[: len(keys)])
    api_key.tenant = Tenant.from_db(connection.alias, tenants, row[len(keys) : -2])
    return FoundKey(api_key, *row[-2:])


@cache
def _key_statement() -> str:
    columns = [f"api_keys.{field.column}" for field in ApiKey._meta.concrete_fields]
    columns += [f"tenants.{field.column}" for field in Tenant._meta.concrete_fields]
    return (
        f"SELECT {', '.join(columns)},"  # noqa: S608 – names of our own columns
        " coalesce(api_keys.expires_at <= statement_timestamp(), false),"
        " coalesce(last_used_at < statement_timestamp() - make_interval(secs => %s), true)"
        " FROM api_keys JOIN tenants USING (tenant_id) WHERE api_keys.prefix = %s"
    )


@cache
def _names(model: type[Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields]


def tenant_find(name_or_id: str) -> Tenant | None:
    """Return the tenant with this name, or with this id as text, or None."""
    by_name = Tenant.objects.filter(name=name_or_id).first()
    if by_name is not None:
        return by_name
    try:
        return Tenant.objects.filter(tenant_id=UUID(name_or_id)).first()
    except ValueError:
        return None
