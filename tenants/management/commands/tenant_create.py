"""manage.py tenant_create: a new customer."""

from typing import Any

from django.core.management.base import CommandParser

from tenants.management.command import TenantCommand
from tenants.services import tenant_create, tenant_ensure


class Command(TenantCommand):
    help = (
        "Create a tenant: a customer with its own jobs, runs, keys and limits. Limits that are not "
        "given have their defaults and can be changed in the admin."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--name", required=True, help="unique name, at most 200 characters")
        parser.add_argument(
            "--weight",
            type=int,
            default=100,
            help="share of slots relative to other tenants that have work (default 100)",
        )
        for limit, meaning in (
            ("max-jobs", "jobs it may have"),
            ("max-concurrent-runs", "runs at the same time"),
            ("max-timeout-s", "longest time-out of a job, in seconds"),
        ):
            parser.add_argument(f"--{limit}", type=int, help=f"the most {meaning}")
        parser.add_argument(
            "--if-missing",
            action="store_true",
            help="do nothing, successfully, when there is a tenant of that name",
        )

    def act(self, **options: Any) -> tuple[dict[str, Any], str]:
        names = ("weight", "max_jobs", "max_concurrent_runs", "max_timeout_s")
        limits = {name: options[name] for name in names if options[name] is not None}
        if options["if_missing"]:
            tenant, is_new = tenant_ensure(name=options["name"], **limits)
        else:
            tenant, is_new = tenant_create(name=options["name"], **limits), True
        facts = {"tenant_id": tenant.tenant_id, "name": tenant.name, "created": is_new}
        verb = "Created" if is_new else "There is already a"
        return facts, f"{verb} tenant {tenant.name} ({tenant.tenant_id})."
