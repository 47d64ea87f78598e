"""Integration tests hold the container engine for as long as their process lives.

Otherwise another process of the same test run, which started it, would stop it under them.
"""

import pytest

from scheduler_project.stack.engine import Engine


@pytest.fixture(scope="session", autouse=True)
def _the_engine_is_held(container_engine: Engine) -> None:
    """Registered as one of the engine's users until the session ends."""
