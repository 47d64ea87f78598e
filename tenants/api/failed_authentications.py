"""How often one address may fail to authenticate; its rule: a valid key is never slowed by others.

Only failures are counted, and only a failing request learns of the limit: behind a shared address
nobody with a valid key pays for somebody who has none.
"""

import math

from scheduler_project.lib.problems import Problem
from scheduler_project.lib.rate_limit import limiter
from tenants.api.throttling import rate_of


def authentication_failed(address: str, problem: Problem) -> Problem:
    """Count a failure of `address` and return what to raise: `problem`, or a 429 when too many."""
    decision = limiter().take(address, rate_of("failed_authentication"))
    if decision is None or decision.allowed:
        return problem
    seconds = max(1, math.ceil(decision.retry_after_s))
    return Problem("too_many_failed_authentications", headers={"Retry-After": str(seconds)})
