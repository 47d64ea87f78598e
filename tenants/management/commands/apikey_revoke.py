"""manage.py apikey_revoke: a key that stops working with the next request."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.domain.api_key_text import prefix_of
from tenants.management.command import TenantCommand
from tenants.models import ApiKey
from tenants.services import apikey_revoke


class Command(TenantCommand):
    help = "Revoke an API key, from its next request on. Revoking it again is harmless."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "key", help="the key's prefix (the part between sk_ and the next _), or the whole key"
        )

    def act(self, **options: Any) -> tuple[dict[str, Any], str]:
        prefix = prefix_of(options["key"]) or options["key"].removeprefix("sk_")
        try:
            api_key = apikey_revoke(prefix)
        except ApiKey.DoesNotExist as error:
            raise CommandError(
                f"There is no key with the prefix {prefix!r}. The admin lists the keys."
            ) from error
        facts = {
            "prefix": api_key.prefix,
            "tenant": api_key.tenant.name,
            "revoked_at": api_key.revoked_at,
        }
        return facts, f"Revoked the key {api_key.name} ({api_key.prefix}) of {api_key.tenant.name}."
