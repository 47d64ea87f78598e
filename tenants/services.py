"""Makes tenants and keys, and revokes keys; its rule: a key's text exists once, in the answer.

Raises django.core.exceptions.ValidationError, which names the fields; nothing is written then.
"""

import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from tenants.domain.api_key_text import make_key
from tenants.domain.scope import SCOPES
from tenants.models import ApiKey, Tenant


@dataclass(frozen=True)
class IssuedKey:
    """A new key: `text` is what the customer sends; it can't be read again."""

    api_key: ApiKey
    text: str


def tenant_create(*, name: str, **limits: Any) -> Tenant:
    """Create a tenant; `limits` are fields of Tenant (weight, max_jobs, …), else their defaults."""
    tenant = Tenant(name=_clean_name(name), **limits)
    # Checks ranges, choices, constraints and the unique name, and says which is wrong.
    tenant.full_clean()
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
    except IntegrityError as error:  # somebody took the name between the check and the insert
        raise ValidationError({"name": f"There is a tenant named {tenant.name!r}."}) from error
    return tenant


def tenant_ensure(*, name: str, **limits: Any) -> tuple[Tenant, bool]:
    """Return the tenant of this name (as it is) and False, or a new one and True."""
    clean = _clean_name(name)
    existing = Tenant.objects.filter(name=clean).first()
    if existing is not None:
        return existing, False
    try:
        return tenant_create(name=clean, **limits), True
    except ValidationError:
        # Two starts at once: the loser finds the winner's. Any other error stays one.
        existing = Tenant.objects.filter(name=clean).first()
        if existing is None:
            raise
        return existing, False


def tenant_set_contact(tenant: Tenant, email: str) -> Tenant:
    """Change to whom a tenant's notices are written; "": to nobody."""
    tenant.contact_email = email.strip()
    tenant.full_clean()
    tenant.save(update_fields=["contact_email"])
    return tenant


def apikey_issue(
    *, tenant: Tenant, name: str, scopes: Iterable[str], expires_in: timedelta | None = None
) -> IssuedKey:
    """Issue a key with `scopes` for `tenant`, for ever or for the time `expires_in` from now."""
    wanted = sorted(set(scopes), key=lambda scope: [*SCOPES, scope].index(scope))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        named = f"{', '.join(unknown)}: there is no such scope. " if unknown else ""
        raise ValidationError({"scopes": f"{named}Give one or more of {', '.join(SCOPES)}."})
    if expires_in is not None and expires_in <= timedelta():
        raise ValidationError({"expires_in": "The key would have expired already."})
    made = make_key(secrets.choice)
    api_key = ApiKey(
        tenant=tenant,
        name=_clean_name(name),
        prefix=made.prefix,
        key_hash=made.key_hash,
        scopes=wanted,
    )
    api_key.full_clean(exclude=["expires_at"])
    if expires_in is not None:
        # The database's clock will decide about expiry, so it sets it, too.
        api_key.expires_at = Now() + expires_in
    api_key.save(force_insert=True)
    api_key.refresh_from_db()
    return IssuedKey(api_key, made.text)


def apikey_revoke(prefix: str) -> ApiKey:
    """Revoke the key with this prefix, from the next request on; again is harmless.

    The first revocation's time stays. Raises ApiKey.DoesNotExist when there is no such key.
    """
    ApiKey.objects.filter(prefix=prefix, revoked_at=None).update(revoked_at=Now())
    return ApiKey.objects.select_related("tenant").get(prefix=prefix)


def _clean_name(name: str) -> str:
    text = unicodedata.normalize("NFC", name)
    if not text.strip() or not text.isprintable():
        raise ValidationError({"name": "A name has at least one visible character, in one line."})
    return text
