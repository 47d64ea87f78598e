"""`manage.py create_partitions`: make the daily partitions ahead, as a scheduler does each hour."""

from typing import Any

from django.core.management.base import BaseCommand

from runs.retention import create_partitions_once


class Command(BaseCommand):
    help = "Make the daily partitions of the run tables for the days ahead; harmless when there."
    requires_system_checks: list[str] = []  # it mends what a check complains of

    def handle(self, *args: Any, **options: Any) -> None:
        made = create_partitions_once()["partitions"]
        self.stdout.write(f"{made} partitions made")
