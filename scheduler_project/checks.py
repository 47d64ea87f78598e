"""System checks: what would make the service wrong is said at the start, with how to mend it.

`manage.py check` and `migrate` run them all; API, schedulers and workers call
`refuse_unsound_start`, because Celery runs Django's checks but ignores what they say.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobs.domain.schedule import check_pinned_tzdata
from runs.partitions import TABLES, database_today, partition_name

# With fewer days than this ahead, nobody has made partitions for a while: runs would find no home.
LEAST_DAYS_AHEAD = 2


def refuse_unsound_start() -> None:
    """Raise ImproperlyConfigured with every error of the checks that need no database."""
    errors = [message for message in run_checks(tags=["scheduler"]) if message.is_serious()]
    if errors:
        raise ImproperlyConfigured("\n".join(str(message) for message in errors))


@register("scheduler")
def check_time_zone_data(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """E001: zone data must be the pinned package's, in every process."""
    return [
        Error(problem, hint="pip install -r requirements.txt", id="scheduler.E001")
        for problem in check_pinned_tzdata()
    ]


@register("scheduler")
def check_lease_arithmetic(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """E002, E003: worker before warden before the database's expiry, with room for a heartbeat."""
    problems: list[CheckMessage] = []
    if settings.WORKER_MARGIN_S <= settings.WARDEN_MARGIN_S:
        problems.append(
            Error(
                f"WORKER_MARGIN_S ({settings.WORKER_MARGIN_S:g}) must be larger than "
                f"WARDEN_MARGIN_S ({settings.WARDEN_MARGIN_S:g}).",
                hint="The worker stops its containers before the warden does.",
                id="scheduler.E002",
            )
        )
    if settings.HEARTBEAT_S >= settings.LEASE_S - settings.WORKER_MARGIN_S:
        problems.append(
            Error(
                f"HEARTBEAT_S ({settings.HEARTBEAT_S:g}) must be smaller than LEASE_S - "
                f"WORKER_MARGIN_S ({settings.LEASE_S - settings.WORKER_MARGIN_S:g}).",
                hint="One missed heartbeat must leave time for another.",
                id="scheduler.E003",
            )
        )
    return problems


@register("scheduler")
def check_fence_guard(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """E005: the hook of tests that lets zombies write stays out of production."""
    if not settings.UNSAFE_NO_FENCE_GUARD or settings.DEBUG:
        return []
    return [
        Error(
            "UNSAFE_NO_FENCE_GUARD is on: a worker that lost its lease could overwrite the result "
            "of the one that has it.",
            hint="Unset it. It exists for a test, which sets DEBUG as well.",
            id="scheduler.E005",
        )
    ]


@register("scheduler")
def check_webhook_addresses(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """E006, E007: webhooks don't reach into our own network, and a claim outlasts its attempt."""
    problems: list[CheckMessage] = []
    if settings.WEBHOOK_ALLOW_PRIVATE and settings.HTTPS:
        problems.append(
            Error(
                "WEBHOOK_ALLOW_PRIVATE lets customers send requests into this network.",
                hint="It is for development and tests, where HTTPS is off: unset it.",
                id="scheduler.E006",
            )
        )
    if settings.NOTIFICATION_CLAIM_S < settings.WEBHOOK_TIMEOUT_S + 5:
        problems.append(
            Error(
                f"NOTIFICATION_CLAIM_S ({settings.NOTIFICATION_CLAIM_S:g}) must be 5 s above "
                f"WEBHOOK_TIMEOUT_S ({settings.WEBHOOK_TIMEOUT_S:g}) at least.",
                hint="Else a delivery is claimed again while its attempt is under way.",
                id="scheduler.E007",
            )
        )
    return problems


@register(Tags.database)
def check_partitions(
    app_configs: Sequence[AppConfig] | None = None,
    databases: Sequence[str] | None = None,
    **_: Any,
) -> list[CheckMessage]:
    """E004: today and the days ahead have their partitions (there is no default partition)."""
    if not databases or "default" not in databases:
        return []
    connection = connections["default"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('runs') IS NULL")
        if cursor.fetchone()[0]:  # not migrated yet
            return []
        today = database_today(connection)
        wanted = [
            partition_name(table, today + timedelta(days=n))
            for n in range(LEAST_DAYS_AHEAD + 1)
            for table in TABLES
        ]
        cursor.execute("SELECT relname FROM pg_class WHERE relname = ANY(%s)", [wanted])
        missing = sorted(set(wanted) - {name for (name,) in cursor.fetchall()})
    if not missing:
        return []
    return [
        Error(
            f"Partitions are missing: {', '.join(missing)}. Runs of those days can't be stored.",
            hint="Start a scheduler (it makes them), or run `manage.py create_partitions`.",
            id="scheduler.E004",
        )
    ]
