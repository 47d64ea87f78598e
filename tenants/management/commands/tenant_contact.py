"""manage.py tenant_contact: to whom a tenant's notices are written."""

from typing import Any

from django.core.management.base import CommandParser

from tenants.management.command import TenantCommand, tenant_named
from tenants.services import tenant_set_contact


class Command(TenantCommand):
    help = (
        "Set the e-mail address to which a tenant is told that a webhook was switched off or that "
        "a job paused itself. An empty one: it is told nothing by e-mail."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--tenant", required=True, help="name or id of the tenant")
        parser.add_argument("--email", required=True, help="the address, or an empty text")

    def act(self, **options: Any) -> tuple[dict[str, Any], str]:
        tenant = tenant_set_contact(tenant_named(options["tenant"]), options["email"])
        facts = {"tenant": tenant.name, "contact_email": tenant.contact_email}
        return facts, f"{tenant.name} is told at {tenant.contact_email or 'no address'}."
