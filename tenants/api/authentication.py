"""Who is asking: the tenant comes from the key and from nowhere else.

Every request reads its key's row, so a revoked key, an expired one and a suspended tenant are
refused from the next request on. The database's clock decides about expiry.
"""

import logging
from dataclasses import dataclass

from django.db import DatabaseError, connection
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from scheduler_project.lib.problems import Problem
from tenants.api.failed_authentications import authentication_failed
from tenants.domain.api_key_text import NO_HASH, is_right, prefix_of
from tenants.models import ApiKey, Tenant
from tenants.selectors import key_find

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """The key behind a request, and its tenant; `request.user` of every API view."""

    api_key: ApiKey
    tenant: Tenant
    is_authenticated: bool = True


class ApiRequest(Request):
    """The type of an authenticated request, for annotations: views are never called without."""

    auth: ApiKey
    tenant: Tenant


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk_…`: sets `request.auth` (ApiKey) and `request.tenant`.

    Raises Problem invalid_key, key_expired, key_revoked (401), tenant_suspended (403); returns None
    without the header, so that the permission answers authentication_required.
    """

    def authenticate(self, request: Request) -> tuple[Caller, ApiKey] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Problem(
                "authentication_required",
                "The Authorization header has another scheme than Bearer.",
            )
        try:
            api_key = authenticate_key(text.strip())
        except Problem as problem:
            if problem.code == "invalid_key":
                raise authentication_failed(request.META.get("REMOTE_ADDR", ""), problem) from None
            raise
        request.tenant = api_key.tenant  # type: ignore[attr-defined]
        return Caller(api_key, api_key.tenant), api_key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'


def authenticate_key(text: str) -> ApiKey:
    """Return the key whose text is `text`, with its tenant, and note its use.

    Raises Problem invalid_key, key_revoked, key_expired or tenant_suspended. Only who holds the
    whole key learns that it is revoked or expired.
    """
    prefix = prefix_of(text)
    if prefix is None:
        raise Problem("invalid_key", "The key does not have the form sk_<prefix>_<secret>.")
    found = key_find(prefix)
    if not is_right(text, found.api_key.key_hash if found else NO_HASH) or found is None:
        raise Problem("invalid_key", "No such key was issued.")
    api_key = found.api_key
    if api_key.revoked_at is not None:
        raise Problem("key_revoked")
    if found.is_expired:
        raise Problem("key_expired")
    if api_key.tenant.suspended_at is not None:
        raise Problem("tenant_suspended")
    if found.use_is_old:
        _note_use(api_key)
    return api_key


def _note_use(api_key: ApiKey) -> None:
    """Write `last_used_at`; a row that somebody else has locked is left to the next request."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE api_keys SET last_used_at = now() WHERE api_key_id IN (SELECT api_key_id"
                " FROM api_keys WHERE api_key_id = %s FOR NO KEY UPDATE SKIP LOCKED)",
                [api_key.api_key_id],
            )
    except DatabaseError as error:
        logger.warning("The use of key %s was not recorded: %s", api_key.prefix, error)
