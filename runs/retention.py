"""Keeps the daily partitions ahead of time, so that every run finds its day."""

from django.conf import settings
from django.db import connection

from runs.partitions import create_partitions, database_today


def create_partitions_once() -> dict[str, int]:
    """Make the partitions of the days ahead; returns how many tables were made."""
    made = create_partitions(
        connection,
        today=database_today(connection),
        days_back=1,
        days_ahead=settings.PARTITION_DAYS_AHEAD,
    )
    return {"partitions": made}
