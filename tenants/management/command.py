"""The base of this app's commands; its rule: an error is one line that says what to do."""

import json
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.models import Tenant
from tenants.selectors import tenant_find


class TenantCommand(BaseCommand):
    """Adds `--json`, and turns validation errors into a message on standard error."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of text"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            facts, sentence = self.act(**options)
        except ValidationError as error:
            raise CommandError(_one_line(error)) from error
        self.stdout.write(json.dumps(facts, default=_as_text) if options["json"] else sentence)

    def act(self, **options: Any) -> tuple[dict[str, Any], str]:
        """Do the work; return the facts for `--json` and the sentence for people."""
        raise NotImplementedError


def tenant_named(name: str) -> Tenant:
    """Return the tenant, or stop with the command that would create it."""
    tenant = tenant_find(name)
    if tenant is None:
        raise CommandError(
            f"There is no tenant {name!r}. Create it: manage.py tenant_create --name {name!r}"
        )
    return tenant


def _one_line(error: ValidationError) -> str:
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    return " ".join(
        f"{field}: {' '.join(messages)}" for field, messages in error.message_dict.items()
    )


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
