"""`manage.py verify_history`: proves from the record that nothing was lost or run twice at once."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.history import Checked, Scope, verify_history
from tenants.selectors import tenant_find


class Command(BaseCommand):
    help = (
        "Check the whole history against the job versions: every occurrence a row or counted, "
        "once; none before its time; no two attempts at once; every end explained; every fence "
        "used once. Prints each violation and exits with 1. Safe on a live system."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", type=_instant, help="only what was scheduled after this")
        parser.add_argument("--until", type=_instant, help="only what was scheduled up to this")
        parser.add_argument("--tenant", help="only the jobs of the tenant of this name")
        parser.add_argument("--job", type=UUID, help="only the job of this id")
        parser.add_argument(
            "--clock-tolerance-s",
            type=float,
            default=Scope.clock_tolerance.total_seconds(),
            help="how far a node's clock may be behind the database's (default %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        scope = Scope(
            since=options["since"],
            until=options["until"],
            tenant=None if options["tenant"] is None else _tenant_id(options["tenant"]),
            job=options["job"],
            clock_tolerance=timedelta(seconds=options["clock_tolerance_s"]),
        )
        checked, found = Checked(), 0
        for violation in verify_history(scope, checked):
            self.stdout.write(str(violation))
            found += 1
        seen = f"{checked.jobs} jobs, {checked.runs} runs, {checked.attempts} attempts"
        if found:
            raise CommandError(f"{found} violations in {seen}", returncode=1)
        self.stdout.write(f"No violation in {seen}.")


def _tenant_id(name: str) -> UUID:
    tenant = tenant_find(name)
    if tenant is None:
        raise CommandError(f"There is no tenant {name!r}.")
    return tenant.tenant_id


def _instant(text: str) -> datetime:
    """A date or an instant in ISO form; UTC where it names no offset. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
