"""Is this process alive (`/healthz`), and could it serve (`/readyz`)? Its rule: answer in time.

Neither needs a key, and neither waits for what hangs: the database is asked over a connection of
its own, with time-outs of a second or two. The broker is reported and not required, because jobs
are stored without it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import psycopg
import redis
from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S: Final = 2
STATEMENT_TIMEOUT_MS: Final = 1_000
BROKER_TIMEOUT_S: Final = 0.5


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 as long as the process answers at all; does no I/O."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when the database is there with all migrations, else 503 with what is missing."""
    database, migrations = _check_database()
    checks = {
        "database": database,
        "migrations": migrations,
        "broker": _outcome(_ping_broker),
    }
    is_ready = database == "ok" and migrations == "ok"
    response = JsonResponse(
        {"status": "ok" if is_ready else "unavailable", "checks": checks},
        status=200 if is_ready else 503,
    )
    if not is_ready:
        response["Retry-After"] = "5"
    return response


def _check_database() -> tuple[str, str]:
    try:
        missing = sorted(_needed_migrations() - _applied_migrations())
    except psycopg.errors.UndefinedTable:
        return "ok", "none is applied"
    except (psycopg.Error, OSError) as error:
        # The kind only: a driver's message can hold the host and the user.
        return type(error).__name__, "unknown"
    names = ", ".join(f"{app}.{name}" for app, name in missing[:5])
    return "ok", f"missing: {names}" if missing else "ok"


def _applied_migrations() -> set[tuple[str, str]]:
    """Ask over a fresh connection: a persistent one to a frozen server would block for ever."""
    params: dict[str, Any] = connection.get_connection_params()
    params["connect_timeout"] = CONNECT_TIMEOUT_S
    params.pop("cursor_factory", None)
    params["options"] = f"-c statement_timeout={STATEMENT_TIMEOUT_MS}"
    with psycopg.connect(**params) as own:
        rows = own.execute("SELECT app, name FROM django_migrations").fetchall()
    return {(app, name) for app, name in rows}


@cache
def _needed_migrations() -> frozenset[tuple[str, str]]:
    """Return the last migration of each app on disk, which stands for those before it."""
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


def _ping_broker() -> None:
    with redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=BROKER_TIMEOUT_S,
        socket_connect_timeout=BROKER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    ) as client:
        client.ping()


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except (redis.RedisError, OSError) as error:
        return type(error).__name__
    return "ok"
