"""What follows an attempt to deliver a message? Its rule: for 24 hours it is tried again."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

# Waits after the first, second, … failed attempt (seconds). Short at first, because most outages of
# a receiver are a deploy; in all fifteen attempts within a day.
WAITS_S: Final = (5, 30, 120, 300, 600, 1_800, 3_600, 7_200)
# Up to this part of a wait is added or taken away, so that what failed together comes apart.
JITTER: Final = 0.2
# No attempt begins later than this after the event.
TRY_FOR: Final = timedelta(hours=24)
# An endpoint at which nothing has succeeded for so long is switched off.
SWITCH_OFF_AFTER: Final = timedelta(days=3)
# Of the message that fails at that moment: one hiccup, days after another that nothing followed, is
# no outage of days.
SWITCH_OFF_ATTEMPTS: Final = 5
# A receiver may ask for a longer wait (Retry-After), up to this.
LONGEST_ASKED_WAIT_S: Final = 3_600.0
# The status by which a receiver says that it wants no more (Standard Webhooks).
GONE: Final = 410


class DeliveryStatus(StrEnum):
    """A delivery's state; all but `pending` are final until somebody asks for a redelivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


class EndpointOff(StrEnum):
    """Why an endpoint was switched off by us."""

    FAILING = "failing"
    GONE = "gone"


@dataclass(frozen=True)
class AttemptResult:
    """How one attempt went. `error` is "" for a success, else a stable code."""

    status_code: int | None = None
    error: str = ""
    detail: str = ""
    asked_wait_s: float | None = None

    @property
    def succeeded(self) -> bool:
        """True for an answer of 2xx: anything else may come from a stranger's proxy."""
        return self.error == ""


@dataclass(frozen=True)
class DeliveryNext:
    """The delivery's next status and, when it is tried again, after how long (seconds)."""

    status: DeliveryStatus
    wait_s: float = 0.0


def next_of_delivery(
    result: AttemptResult, *, attempts: int, now: datetime, try_until: datetime, random_unit: float
) -> DeliveryNext:
    """Decide after the `attempts`-th attempt (from 1); `random_unit` in [0, 1) is the jitter.

    A wait that would lead past `try_until` ends there, so that the last attempt is always made.
    """
    if result.succeeded:
        return DeliveryNext(DeliveryStatus.DELIVERED)
    left_s = (try_until - now).total_seconds()
    if left_s <= 0 or result.status_code == GONE:
        return DeliveryNext(DeliveryStatus.FAILED)
    wait_s = WAITS_S[min(attempts, len(WAITS_S)) - 1] * (1 + JITTER * (2 * random_unit - 1))
    if result.asked_wait_s is not None:
        wait_s = max(wait_s, min(result.asked_wait_s, LONGEST_ASKED_WAIT_S))
    return DeliveryNext(DeliveryStatus.PENDING, min(wait_s, left_s))


def switch_off(
    result: AttemptResult, *, attempts: int, failing_since: datetime | None, now: datetime
) -> EndpointOff | None:
    """Whether, and why, the endpoint is switched off after an attempt.

    `attempts`: how often this message has been tried. `failing_since`: the first failure after the
    endpoint's last success, this attempt's included.
    """
    if result.succeeded:
        return None
    if result.status_code == GONE:
        return EndpointOff.GONE
    if failing_since is None or attempts < SWITCH_OFF_ATTEMPTS:
        return None
    if now - failing_since >= SWITCH_OFF_AFTER:
        return EndpointOff.FAILING
    return None


def waits_until_given_up(random_unit: float) -> list[float]:
    """The waits of a delivery that never succeeds, each with the same jitter (seconds)."""
    start = datetime(2026, 1, 1)  # noqa: DTZ001 – only differences count
    now, waits = start, list[float]()
    failure = AttemptResult(error="refused")
    while True:
        following = next_of_delivery(
            failure,
            attempts=len(waits) + 1,
            now=now,
            try_until=start + TRY_FOR,
            random_unit=random_unit,
        )
        if following.status is not DeliveryStatus.PENDING:
            return waits
        waits.append(following.wait_s)
        now += timedelta(seconds=following.wait_s)
