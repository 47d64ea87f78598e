"""The product's scheduler, each duty of which is a database user of its own.

    celery -A bench.duty_accounts beat …

Everything is the product's; only, the statements of planner, dispatcher and the others are told
from each other in pg_stat_statements. An account has the name of its duty: `duty-planner`.
"""

from __future__ import annotations

import threading
from typing import Any

import psycopg
from django.db.backends.signals import connection_created
from psycopg import sql

from scheduler_project.celery import app
from scheduler_project.stack import postgres

__all__ = ["app"]

DUTIES = (
    "shards", "planner", "zone-data", "dispatcher", "deadlines", "pauses", "reaper", "guards",
    "partitions", "idempotency-keys", "retention", "metrics",
)  # fmt: skip


def account(duty: str) -> str:
    """The database user that a duty is."""
    return f"duty-{duty}"


def make_accounts(connection: psycopg.Connection) -> None:
    """Once for a server of a benchmark's own: they may do everything."""
    for duty in DUTIES:
        role = sql.Identifier(account(duty))
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER").format(role))
        connection.execute(sql.SQL("GRANT {} TO {}").format(role, sql.Identifier(postgres.ROLE)))


def _become(connection: Any, **_: Any) -> None:
    name = threading.current_thread().name  # lib/duty.py calls a duty's thread so
    if name.removeprefix("duty-") in DUTIES:
        connection.connection.execute(f'SET ROLE "{name}"')


connection_created.connect(_become)
