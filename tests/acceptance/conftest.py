"""The product as real processes, one fresh stack for a test that asks for it.

    @pytest.mark.stack(schedulers=2, workers=1, env={"LEASE_S": "6"})
    def test_a_killed_worker_s_run_is_run_again(stack):
        job = stack.job_create(schedule={"at": …}, task={"image": stack.demo_image, …})
        stack.workers[0].kill()
        poll(lambda: stack.runs_of(job)[0]["status"] == "succeeded", within_s=60)

What the processes said last is shown when the test fails.
"""

import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from scheduler_project.stack.engine import Engine
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template, make_template

# Their assertions belong to tests, so a failure must show what was compared.
pytest.register_assert_rewrite(
    "tests.acceptance.api_case_checks", "tests.acceptance.api_case_steps"
)

StackFactory = Callable[..., StackUnderTest]
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="session")
def services_directory() -> Path:
    """Where this test run keeps its files; removed at its end, or by the next one."""
    return Path(os.environ["TEST_SERVICES"])


@pytest.fixture(scope="session")
def stack_template(services_directory: Path) -> Template:
    """A migrated database with the tenants Acme and Globex."""
    return make_template(
        services_directory / f"template-{uuid.uuid4().hex[:8]}", services_directory
    )


@pytest.fixture
def make_stack(
    request: pytest.FixtureRequest,
    services_directory: Path,
    stack_template: Template,
    engine: Engine,
) -> Iterator[StackFactory]:
    """A function that makes a stack without starting it; its arguments are StackUnderTest's."""
    with ExitStack() as stacks:
        made: list[StackUnderTest] = []

        def make(**options: Any) -> StackUnderTest:
            directory = services_directory / f"stack-{uuid.uuid4().hex[:8]}"
            stack = StackUnderTest(directory, stack_template, engine, **options)
            stacks.enter_context(closing(stack))
            made.append(stack)
            return stack

        yield make
        if request.node.stash.get(_failed, False):
            for stack in made:
                print(stack.logs())  # noqa: T201 – pytest shows it with the failure


@pytest.fixture
def stack(request: pytest.FixtureRequest, make_stack: StackFactory) -> StackUnderTest:
    """A started stack; `@pytest.mark.stack(…)` says of what."""
    marker = request.node.get_closest_marker("stack")
    stack = make_stack(**(marker.kwargs if marker else {}))
    stack.start()
    return stack
