"""Fixtures for every test: the engine, the demo image, an empty Redis.

PostgreSQL and Redis run already (tests/support/services.py); a part that is missing fails the
test that needs it, never skips it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_client

from scheduler_project.stack.engine import (
    Engine,
    ensure_engine,
    release_engine,
    remove_containers,
)
from scheduler_project.stack.image import DEMO_IMAGE, ensure_demo_image
from scheduler_project.stack.layout import CHECKOUT


@pytest.fixture(scope="session")
def container_engine() -> Iterator[Engine]:
    """A container engine that answers and has the demo image; installed and started if need be."""
    user = f"test-{os.getpid()}"
    engine = ensure_engine(user, CHECKOUT / ".local" / "logs" / "dockerd.log")
    ensure_demo_image(engine, CHECKOUT / ".local" / "busybox")
    yield engine
    remove_containers(engine, os.environ["INSTANCE"])
    release_engine(user)


@pytest.fixture(scope="session")
def engine(container_engine: Engine) -> Engine:
    """The container engine, by its short name."""
    return container_engine


@pytest.fixture(scope="session")
def demo_image(engine: Engine) -> str:
    """Name of an image with sh, sleep, env and the other words of busybox."""
    return DEMO_IMAGE


@pytest.fixture
def redis_server() -> Iterator["redis_client.Redis"]:
    """A client of this process's own Redis database, emptied before the test."""
    with redis_client.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushdb()
        yield client


@pytest.fixture
def checkout() -> Path:
    """The root of the source tree."""
    return CHECKOUT
