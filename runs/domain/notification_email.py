"""What does an e-mail to a tenant say? Its rule: what happened, since when, and what to do."""

from collections.abc import Mapping
from typing import Any

from runs.domain.delivery import EndpointOff
from runs.domain.notification import ENDPOINT_DISABLED, NotificationEvent

_OFF = {
    EndpointOff.FAILING: "Every attempt to deliver to it has failed for three days.",
    EndpointOff.GONE: "It answered 410 Gone, which means that it wants no more.",
}


def email_of(event: str, payload: Mapping[str, Any], tenant_name: str) -> tuple[str, str]:
    """Return the subject and the text; raises ValueError for an event that has none."""
    if event == ENDPOINT_DISABLED:
        why = _OFF[EndpointOff(payload["reason"])]
        return (
            "A webhook was switched off",
            f"The webhook {payload['webhook_id']} of {tenant_name} was switched off:\n"
            f"{payload['url']}\n\n{why} What it was still owed is not sent any more.\n\n"
            'When the receiver works again: PATCH /v1/webhooks/{id} with {"enabled": true}, then '
            "POST …/redeliver for the deliveries that matter to you.\n",
        )
    if event == NotificationEvent.JOB_AUTO_PAUSED:
        name = _one_line(payload["job_name"]) or payload["job_id"]
        return (
            f"Job paused after {payload['failures']} failures: {name}"[:200],
            f"The job {name} ({payload['job_id']}) of {tenant_name} has failed "
            f"{payload['failures']} times in a row and was paused (auto_pause_after).\n\n"
            'To let it run again: PATCH /v1/jobs/{id} with {"pause": null}.\n',
        )
    raise ValueError(event)


def _one_line(text: str) -> str:
    """A customer's text, unable to begin a header of its own."""
    return " ".join(text.split())
