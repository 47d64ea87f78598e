"""Pytest plugin: PostgreSQL and Redis of this run's own, up before Django's settings are read.

Owns the rule that tests never touch a server that somebody uses: DATABASE_URL and REDIS_URL of the
shell are ignored (a shell that sourced `.local/env` has those of a running stack), and so are all
other settings in the environment.
"""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from scheduler_project.stack.engine import find_engine, remove_containers
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.identity import living_process, write_identity
from scheduler_project.stack.layout import CHECKOUT, Layout
from scheduler_project.stack.locks import exclusive
from scheduler_project.stack.programs import settings_in
from scheduler_project.stack.strays import end_all, marked
from tests.support.servers import PostgresServer, RedisServer, start_postgres, start_redis

_RUNS = CHECKOUT / ".local" / "tests"
_OWNER = "owner.json"


class Services:
    """The servers of one test run, in a directory that names its process."""

    def __init__(self) -> None:
        self.directory = claim_run_directory()
        self.postgres: PostgresServer = start_postgres(self.directory, self.directory)
        self.redis: RedisServer = start_redis(self.directory, self.directory)

    def set_environment(self) -> None:
        """Make these servers the ones of settings.py, and forget what the shell says."""
        for name in settings_in(os.environ):
            if name != "DOCKER_HOST":
                del os.environ[name]
        os.environ.update(
            test_settings(self.directory, self.postgres.url, self.redis.url)
            | {"TEST_SERVICES": str(self.directory)}
        )

    def stop(self) -> None:
        self.redis.kill()
        self.postgres.discard()
        remove_run(self.directory)


def claim_run_directory() -> Path:
    """Make the directory of this process's files; what dead test runs have left is swept up."""
    directory = _RUNS / str(os.getpid())
    with exclusive(_RUNS / "lock"):
        sweep_dead_runs()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o711)
        write_identity(directory / _OWNER, os.getpid())
    return directory


def test_settings(directory: Path, database_url: str, redis_url: str) -> dict[str, str]:
    """The environment of a process under test whose files are in `directory`."""
    layout = Layout(directory)
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "SECRET_KEY": "only-for-tests-and-long-enough-for-a-signature-of-a-cursor",
        "INSTANCE": layout.instance,
        "NODE": "test-node",
        "HTTPS": "0",
        "DEADLINES_DIR": str(layout.deadlines),
        "STATIC_ROOT": str(directory / "static"),
        "PYTHONTZPATH": "",
    }


test_settings.__test__ = False  # type: ignore[attr-defined]


def sweep_dead_runs() -> None:
    """Remove what test runs left that were killed: processes, containers, files."""
    for directory in _RUNS.iterdir():
        if directory.is_dir() and living_process(directory / _OWNER) is None:
            end_all(marked(directory, or_below=True), grace_s=2)
            _remove_containers([directory, *directory.iterdir()])
            remove_run(directory)


def _remove_containers(directories: list[Path]) -> None:
    # No engine, or one that will not have us: then there is nothing of ours in it either.
    with contextlib.suppress(StackError):
        if engine := find_engine(os.environ):
            for directory in directories:
                remove_containers(engine, Layout(directory).instance)


def remove_run(directory: Path) -> None:
    """Remove the files of a test run whose processes have ended."""
    shutil.rmtree(Layout(directory).deadlines, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


_services: Services | None = None


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, None, None]:
    """Start the servers before pytest-django, whose hook reads the settings."""
    global _services
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        _separate_from_other_workers(worker)
    elif "TEST_SERVICES" not in os.environ:
        _services = Services()
        _services.set_environment()
    return (yield)


def _separate_from_other_workers(worker: str) -> None:
    """Give a parallel test process (gw0, gw1, …) its own Redis database and its own instance."""
    number = int(worker.removeprefix("gw")) + 1
    os.environ["REDIS_URL"] = f"{os.environ['REDIS_URL'].rpartition('/')[0]}/{number}"
    os.environ["INSTANCE"] += f"-{worker}"
    os.environ["DEADLINES_DIR"] += f"/{worker}"


def pytest_unconfigure() -> None:
    global _services
    if _services is not None:
        _services.stop()
        _services = None
