"""Servers of a benchmark's own, with the product's tables in them.

Owns the rule that a benchmark pays for durability as the product does: every commit is flushed to
disk, unless it says otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler_project.stack.layout import CHECKOUT, MARKER
from tests.support.servers import PostgresServer, RedisServer, start_postgres, start_redis
from tests.support.services import test_settings

# More shared buffers than the default 128 MB would be usual on a server of its own; the working
# set of a benchmark should not be what it measures.
DURABLE = {"shared_buffers": "1GB", "max_wal_size": "8GB"}


@dataclass(frozen=True)
class Servers:
    """PostgreSQL and Redis, and the environment that leads the product to them."""

    postgres: PostgresServer
    redis: RedisServer
    environment: dict[str, str]
    directory: Path

    def python(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start this Python with the product's settings for these servers."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.process_environment() | settings,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def process_environment(self) -> dict[str, str]:
        """The whole environment of a process of the product."""
        return {
            "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            **self.environment,
        }


@contextmanager
def own_servers(settings: dict[str, str] | None = None, name: str = "") -> Iterator[Servers]:
    """Start both servers and make the tables; end and remove everything afterwards.

    `name` tells them from others of this very process.
    """
    directory = CHECKOUT / ".local" / "bench" / f"{os.getpid()}{name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o711)
    started: list[PostgresServer | RedisServer] = []
    try:
        postgres = start_postgres(directory, directory, DURABLE if settings is None else settings)
        started.append(postgres)
        redis = start_redis(directory, directory)
        started.append(redis)
        environment = test_settings(directory, postgres.url, redis.url)
        environment |= {MARKER: str(directory), "METRICS_PORT": "0"}
        servers = Servers(postgres, redis, environment, directory)
        migration = servers.python("manage.py", "migrate", "--verbosity=0")
        if migration.wait():
            raise RuntimeError("the tables could not be made")
        yield servers
    finally:
        for server in started:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def use(servers: Servers) -> None:
    """Make this very process one of the product's, on these servers."""
    import django

    os.environ.update(servers.process_environment())
    django.setup()
