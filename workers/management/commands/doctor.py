"""`manage.py doctor [--repair]`: what is left over, what it means, and the way to mend it."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.doctor import Diagnosis, Doctor
from workers.sandbox.docker import DockerSandbox


class Command(BaseCommand):
    help = (
        "Look for what no duty should leave behind: runs and guards of the dead, containers and "
        "queues that nobody owns, missing partitions, a wrong clock, cursors astray. Says what "
        "each means and what --repair would do. Exits with 1 while something is found."
    )
    requires_system_checks: list[str] = []  # it mends what a check complains of

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repair", action="store_true", help="mend what can be mended")

    def handle(self, *args: Any, **options: Any) -> None:
        sandbox = DockerSandbox(
            instance=settings.INSTANCE, node=settings.NODE, docker_host=settings.DOCKER_HOST
        )
        try:
            self._visit(Doctor(sandbox), repair=options["repair"])
        finally:
            sandbox.close()

    def _visit(self, doctor: Doctor, *, repair: bool) -> None:
        found = doctor.examine()
        for diagnosis in found:
            self._say(diagnosis)
            if repair and diagnosis.complaint.repair is not None:
                diagnosis.complaint.repair()
        left = doctor.examine() if repair and found else found
        if left:
            codes = ", ".join(diagnosis.complaint.code for diagnosis in left)
            raise CommandError(f"{'Left after the repair' if repair else 'Found'}: {codes}")
        self.stdout.write("Everything found was mended." if found else "Nothing was found.")

    def _say(self, diagnosis: Diagnosis) -> None:
        complaint = diagnosis.complaint
        self.stdout.write(f"{complaint.code}: {complaint.means}.")
        for subject in diagnosis.about:
            self.stdout.write(f"    {subject}")
        how = "repair" if complaint.repair is not None else "to do"
        self.stdout.write(f"  {how}: {complaint.remedy}")
