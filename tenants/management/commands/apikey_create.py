"""manage.py apikey_create: a new API key, shown once."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from tenants.domain.scope import SCOPES
from tenants.management.command import TenantCommand, tenant_named
from tenants.services import apikey_issue


class Command(TenantCommand):
    help = (
        "Issue an API key for a tenant and print it. Only a hash is stored: the key can't be shown "
        "again. The scope admin includes write, and write includes read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--tenant", required=True, help="name or id of the tenant")
        parser.add_argument("--name", required=True, help="what the key is for, to know it again")
        parser.add_argument(
            "--scopes",
            default="read,write",
            help=f"comma-separated, of {', '.join(SCOPES)} (default read,write)",
        )
        parser.add_argument(
            "--expires-in-days", type=float, help="days until it expires (default: never)"
        )

    def act(self, **options: Any) -> tuple[dict[str, Any], str]:
        days = options["expires_in_days"]
        issued = apikey_issue(
            tenant=tenant_named(options["tenant"]),
            name=options["name"],
            scopes=[word.strip() for word in options["scopes"].split(",") if word.strip()],
            expires_in=None if days is None else timedelta(days=days),
        )
        facts = {
            "key": issued.text,
            "api_key_id": issued.api_key.api_key_id,
            "prefix": issued.api_key.prefix,
            "tenant": issued.api_key.tenant.name,
            "scopes": issued.api_key.scopes,
            "expires_at": issued.api_key.expires_at,
        }
        return facts, f"{issued.text}\nKeep it: it will not be shown again."
