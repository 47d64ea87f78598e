"""PostgreSQL and Redis of a test's own: on free ports, in a directory that is thrown away.

Owns the rule that nothing in them is worth a disk flush: they are made for speed.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import redis as redis_client

from scheduler_project.stack import postgres, redis
from scheduler_project.stack.accounts import as_account, server_account
from scheduler_project.stack.layout import MARKER
from scheduler_project.stack.ports import first_free
from tests.support.polling import poll
from tests.support.processes import Process

_PASSWORD = "only-for-tests"
FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    # Tests that look at plans make their own statistics; autovacuum can't see their rows yet, and
    # would put its own in their place at some moment.
    "autovacuum": "off",
    # In the data directory and removed with it: a killed server leaves its own in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}
# Port numbers from here on are tried: far from the usual ones, below those of outgoing connections.
_FIRST_PORT, _PORT_SPAN = 20_000, 10_000


@dataclass
class PostgresServer:
    """A PostgreSQL that a test may stop, kill and start again on the same port."""

    server: postgres.Postgres
    process: Process

    @property
    def url(self) -> str:
        return self.server.url

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """An autocommit connection to the application's database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def start(self) -> None:
        def answers() -> bool:
            # After a kill it refuses to start until the last child of its former life is gone.
            self.process.start()
            return self.server.is_ready()

        poll(answers, 20, "PostgreSQL answers")

    def stop(self) -> None:
        """A fast shutdown: clients are thrown out, nothing is lost."""
        self.process.stop()

    def kill(self) -> None:
        """As if the machine had lost power, but for the disk."""
        self.process.kill()

    def discard(self) -> None:
        """End it for good, at once. Not by a kill, which leaves its shared memory to the machine:
        a few thousand test stacks later no PostgreSQL starts there any more."""
        self.process.stop_signal = signal.SIGQUIT
        self.process.stop(within_s=5)


@dataclass
class RedisServer:
    """A Redis that a test may empty, stop, kill and start again on the same port."""

    server: redis.Redis
    process: Process

    @property
    def url(self) -> str:
        return self.server.url

    @contextmanager
    def connect(self) -> Iterator["redis_client.Redis"]:
        with redis_client.Redis.from_url(self.url) as client:
            yield client

    def start(self) -> None:
        self.process.start()
        poll(lambda: redis.answers(self.url), 10, "Redis answers")

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def flush(self) -> None:
        """Forget every message, queue and binding."""
        with self.connect() as client:
            client.flushall()


def start_postgres(
    directory: Path, marker: Path, settings: dict[str, str] | None = None
) -> PostgresServer:
    """Start a server on the data in `directory`/postgres, made when it is not there.

    `settings` in place of those that make it fast and forgetful.
    """
    server = postgres.Postgres(
        directory / "postgres", 0, _PASSWORD, FAST if settings is None else settings
    )
    server.initialise()
    started = _serve(server, "postgres", directory, marker)
    started.server.make_database()
    return started


def start_replica(primary: PostgresServer, directory: Path, marker: Path) -> PostgresServer:
    """Start a replica that streams from `primary`, on a copy of it in `directory`/replica."""
    account, home = server_account(), directory / "replica"
    home.mkdir(mode=0o700)
    if account is not None:
        os.chown(home, account.uid, account.gid)
    data, programs = home / "postgres", postgres.binaries()
    command = [
        *as_account(account, [data, programs]),
        str(programs / "pg_basebackup"),
        f"--pgdata={data}",
        f"--dbname={primary.server.admin_url}",
        "--write-recovery-conf",
        "--checkpoint=fast",
        "--no-sync",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    server = postgres.Postgres(data, 0, _PASSWORD, FAST)
    return _serve(server, "replica", directory, marker)


def _serve(server: postgres.Postgres, name: str, directory: Path, marker: Path) -> PostgresServer:
    def on_port(port: int) -> tuple[Process, Callable[[], bool]]:
        moved = replace(server, port=port)
        process = Process(
            name,
            moved.command(dies_with_parent=True),
            {MARKER: str(marker)},
            directory / f"{name}.log",
            stop_signal=signal.SIGINT,
            dies_by_itself=True,
        )
        return process, moved.is_ready

    port, process = _start_on_free_port(on_port)
    return PostgresServer(replace(server, port=port), process)


def start_redis(directory: Path, marker: Path) -> RedisServer:
    """Start an empty server whose configuration is in `directory`."""

    def on_port(port: int) -> tuple[Process, Callable[[], bool]]:
        server = redis.Redis(directory / "valkey.conf", port, _PASSWORD)
        server.write_config()
        process = Process("redis", server.command(), {MARKER: str(marker)}, directory / "redis.log")
        return process, lambda: redis.answers(server.url)

    port, process = _start_on_free_port(on_port)
    return RedisServer(redis.Redis(directory / "valkey.conf", port, _PASSWORD), process)


def _start_on_free_port(
    on_port: Callable[[int], tuple[Process, Callable[[], bool]]],
) -> tuple[int, Process]:
    # Another test run may take the port between our look and the server's: then try the next.
    for _ in range(5):
        port = first_free(_FIRST_PORT + random.randrange(_PORT_SPAN))
        process, is_ready = on_port(port)
        process.start()
        deadline = time.monotonic() + 20
        while process.is_alive and time.monotonic() < deadline:
            if is_ready() and process.is_alive:
                return port, process
            time.sleep(0.02)
        process.kill()
    raise AssertionError(f"{process.name} did not start:\n{process.output()[-2000:]}")
