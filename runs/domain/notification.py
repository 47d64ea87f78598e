"""Which events is a tenant told of, and what does a message say? Its rule: ids, never output."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

# Raised when a member of a payload changes its meaning; new members don't raise it.
PAYLOAD_VERSION: Final = 1


class NotificationEvent(StrEnum):
    """What an endpoint may subscribe to."""

    RUN_SUCCEEDED = "run.succeeded"
    RUN_FAILED = "run.failed"
    RUN_SKIPPED = "run.skipped"
    RUN_LATE = "run.late"
    JOB_AUTO_PAUSED = "job.auto_paused"


# Sent on request to one endpoint, whatever it subscribes to.
PING: Final = "webhook.ping"
# Told to people by e-mail: the endpoint itself can't hear it.
ENDPOINT_DISABLED: Final = "webhook.disabled"
# To ourselves: look whether the job has failed as often in a row as its `auto_pause_after`.
JOB_FAILED: Final = "internal.job_failed"

EVENTS: Final = tuple(event.value for event in NotificationEvent)


def known_events(names: Iterable[str]) -> list[str]:
    """The events among `names`, each once, in the order of their table."""
    wanted = set(names)
    return [name for name in EVENTS if name in wanted]


def message_body(event: str, occurred_at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent: the form that Standard Webhooks recommends, with a version."""
    at = occurred_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"type": event, "timestamp": at, "version": PAYLOAD_VERSION, "data": dict(data)}
