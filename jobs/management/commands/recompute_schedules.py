"""manage.py recompute_schedules [--apply]: after an upgrade of tzdata, find what it has moved."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs.domain.instant import format_instant
from jobs.domain.schedule import tzdata_version
from jobs.recompute import MovedJob, recompute_schedules


class Command(BaseCommand):
    """Lists the jobs whose next instants the installed zone data moves; --apply fixes them."""

    help = __doc__ or ""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--apply",
            action="store_true",
            help="plan these jobs anew, write a version of each with the cause, and mark the rest "
            "as looked at; without it nothing is changed",
        )

    def handle(self, *args: Any, apply: bool, **options: Any) -> None:
        count = 0
        for moved in recompute_schedules(apply=apply):
            count += 1
            self.stdout.write(_line(moved))
        done = "planned anew" if apply else "would be planned anew with --apply"
        self.stdout.write(f"tzdata {tzdata_version()}: {count} jobs {done}")


def _line(moved: MovedJob) -> str:
    was, now = (
        ", ".join(format_instant(instant) for instant in instants) or "none"
        for instants in (moved.before, moved.after)
    )
    zone = moved.job.schedule["time_zone"]
    return f"{moved.job.job_id} tenant={moved.job.tenant_id} {zone}: {was} -> {now}"
