"""Webhooks of the whole stack: a receiver that is away, and a notifier that is killed."""

from contextlib import ExitStack

import pytest

from scheduler_project.stack.ports import first_free
from tests.acceptance.test_run_path import in_seconds
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest
from tests.support.webhooks import Receiver, receiver


@pytest.mark.stack(
    schedulers=2,
    workers=1,
    notifier=True,
    env={"WEBHOOK_ALLOW_PRIVATE": "1", "WEBHOOK_TIMEOUT_S": "3", "NOTIFICATION_CLAIM_S": "8"},
)
def test_a_receiver_that_was_away_hears_of_everything_signed(stack: StackUnderTest) -> None:
    port = first_free(28_000)
    made = stack.client.post(
        "/v1/webhooks",
        json={
            "url": f"http://127.0.0.1:{port}/hook",
            "events": ["run.succeeded", "run.failed"],
        },
    )
    assert made.status_code == 201, made.text
    path = f"/v1/webhooks/{made.json()['webhook_id']}"
    secret = stack.client.post(f"{path}/secret", json={}).json()["secret"]

    def one_off(*args: str) -> str:
        task = {"image": stack.demo_image, "args": list(args), "timeout_s": 60}
        job = stack.job_create(schedule={"at": in_seconds(2)}, task=task, overlap="allow")
        return str(job["job_id"])

    good, bad = one_off("true"), one_off("false")

    def attempts() -> int:
        rows = stack.client.get(f"{path}/deliveries").json()["deliveries"]
        return min((row["attempts"] for row in rows), default=0) if len(rows) == 2 else 0

    # Nobody listens: both are tried, and stay owed, also over the death of who tries.
    poll(lambda: attempts() >= 1, 60, "both were tried once")
    stack.notifier.kill()
    stack.redis.flush()
    stack.revive()

    with ExitStack() as listening:
        hook: Receiver = listening.enter_context(receiver(port))
        poll(lambda: len({got.message_id for got in hook.received}) == 2, 90, "both arrived")
        for got in hook.received:
            got.verify(secret)
        told = {got.body["data"]["job_id"]: got.body["type"] for got in hook.received}
        assert told == {good: "run.succeeded", bad: "run.failed"}

        def statuses() -> set[str]:
            rows = stack.client.get(f"{path}/deliveries").json()["deliveries"]
            return {row["status"] for row in rows}

        poll(lambda: statuses() == {"delivered"}, 30, "the log says so")
        results = stack.rows(
            "SELECT count(*) FROM django_celery_results_taskresult"
            " WHERE task_name = 'notifications.deliver' AND status = 'SUCCESS'"
        )
        assert results[0][0] >= 2
