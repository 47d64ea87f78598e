"""`python -m scheduler_project.health ROLE`: is the process beside us well? Exit code 0 or 1.

Owns the health checks of docker-compose.yml. Each asks for a fact that only a working process
makes true: an answer, a database session, a lease that is renewed, a fresh stamp. It starts no
Django, because it is run every few seconds.
"""

import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg

from workers.deadlines import warden_is_alive

_TIMEOUT_S = 4


def api() -> bool:
    """The API answers that it reaches what it needs."""
    # The name that it serves: for another one it would answer 400.
    host = os.environ.get("ALLOWED_HOSTS", "localhost").split(",")[0]
    return _answers("http://127.0.0.1:8000/readyz", host)


def flower() -> bool:
    """Flower answers."""
    return _answers("http://127.0.0.1:5555/healthcheck", "localhost")


def scheduler() -> bool:
    """A scheduler on this host is at work in the database; a stale one ends by itself."""
    return _is_at_work("scheduler")


def notifier() -> bool:
    """A notifier on this host is at work in the database."""
    return _is_at_work("notifier")


def worker() -> bool:
    """A worker on this host holds a session whose lease it renews."""
    return _exists(
        "SELECT 1 FROM worker_sessions"
        " WHERE ended_at IS NULL AND lease_expires_at > now() AND celery_name LIKE %s",
        f"%@{socket.gethostname()}",
    )


def warden() -> bool:
    """The node's warden made a round lately."""
    return warden_is_alive(Path(os.environ["DEADLINES_DIR"]))


ROLES: dict[str, Callable[[], bool]] = {
    check.__name__: check for check in (api, flower, scheduler, worker, warden, notifier)
}


def _answers(url: str, host: str) -> bool:
    request = urllib.request.Request(url, headers={"Host": host})  # noqa: S310 – our own URL
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        return bool(answer.status == 200)


def _is_at_work(role: str) -> bool:
    return _exists(
        "SELECT 1 FROM pg_stat_activity"
        " WHERE application_name = %s AND client_addr = inet_client_addr()",
        f"{os.environ.get('INSTANCE', 'scheduler')}-{role}",
    )


def _exists(query: str, parameter: str) -> bool:
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, connect_timeout=_TIMEOUT_S) as connection:
        return connection.execute(query, [parameter]).fetchone() is not None


def main(words: list[str]) -> int:
    """Print what is wrong, for `docker inspect`, and return the exit code."""
    if len(words) != 1 or words[0] not in ROLES:
        sys.stderr.write(f"usage: python -m scheduler_project.health {'|'.join(ROLES)}\n")
        return 2
    try:
        well = ROLES[words[0]]()
    except (OSError, psycopg.Error, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    if not well:
        sys.stderr.write(f"{words[0]} is not well: {ROLES[words[0]].__doc__} – not so.\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
