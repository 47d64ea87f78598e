"""How a tenant's runs fare now: how late they started in the last hour, what the rest wait for.

Its rule: a question about usage reads a bounded number of rows, however much the tenant runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runs import store
from runs.domain.waiting import WaitReason
from runs.selectors import tenant_is_full
from tenants.models import Tenant

WINDOW_S: Final = 3_600
# A few tens of milliseconds; quantiles of so many are those of all, and a longer row is just long.
MOST_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LagQuantiles:
    """Dispatch lag (seconds) of the `runs` that started; null quantiles when there are none.

    `truncated`: there were more runs in the window, and these are the latest of them.
    """

    runs: int
    truncated: bool
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    window_s: int = WINDOW_S


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many runs wait, in all and by reason; `truncated`: at least so many."""

    total: int
    truncated: bool
    by_reason: dict[WaitReason, int]


def lag_of(tenant: Tenant) -> LagQuantiles:
    """The lag of the tenant's runs that were scheduled in the last hour."""
    (row,) = store.fetch("lag_of_tenant", tenant_id=tenant.pk, window_s=WINDOW_S, most=MOST_RUNS)
    p50_s, p95_s, p99_s = row.quantiles or (None, None, None)
    return LagQuantiles(row.runs, row.truncated, p50_s, p95_s, p99_s)


def waiting_of(tenant: Tenant) -> Waiting:
    """What the tenant's runs wait for; each of them for the reason that it shows itself."""
    (row,) = store.fetch("waiting_of_tenant", tenant_id=tenant.pk, most=MOST_RUNS)
    for_tenant = row.unplaced if row.unplaced and tenant_is_full(tenant) else 0
    by_reason = {
        WaitReason.TIME: row.time,
        WaitReason.RETRY_BACKOFF: row.retry_backoff,
        WaitReason.EARLIER_RUN: row.earlier_run,
        WaitReason.TENANT_CONCURRENCY: for_tenant,
        WaitReason.SLOT: row.unplaced - for_tenant,
        WaitReason.WORKER: row.worker,
    }
    return Waiting(sum(by_reason.values()), row.truncated, by_reason)
