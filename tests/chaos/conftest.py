"""Stacks of real processes, as the acceptance tests have them."""

from tests.acceptance.conftest import (
    make_stack,
    pytest_runtest_makereport,
    services_directory,
    stack,
    stack_template,
)

__all__ = [
    "make_stack",
    "pytest_runtest_makereport",
    "services_directory",
    "stack",
    "stack_template",
]
