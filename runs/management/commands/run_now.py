"""`manage.py run_now JOB_ID`: runs a job at once, as POST /v1/jobs/{job_id}/runs does."""

from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.errors import JobNotFoundError
from jobs.models import Job
from runs.services import run_now


class Command(BaseCommand):
    help = (
        "Run a job at once, also one that is switched off. The run obeys the job's overlap "
        "policy when its turn comes. Prints the id of the run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_id", type=UUID, help="id of the job, a UUID")

    def handle(self, *args: Any, job_id: UUID, **options: Any) -> None:
        job = Job.objects.select_related("tenant").filter(job_id=job_id).first()
        try:
            if job is None:
                raise JobNotFoundError
            run = run_now(job.tenant, job_id)
        except JobNotFoundError:
            raise CommandError(f"There is no job {job_id}, or it was deleted.") from None
        self.stdout.write(str(run.run_id))
