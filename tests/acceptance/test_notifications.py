"""Webhooks of the whole stack: a receiver that is away, and a notifier that is killed."""

import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

import pytest

from scheduler_project.stack.ports import first_free
from tests.acceptance.test_run_path import in_seconds
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest
from tests.support.webhooks import Receiver, answering, receiver


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


@pytest.mark.stack(
    schedulers=1,
    workers=1,
    notifier=True,
    env={"WEBHOOK_ALLOW_PRIVATE": "1", "WEBHOOK_TIMEOUT_S": "4", "NOTIFICATION_CLAIM_S": "9"},
)
def test_a_kill_in_the_middle_a_slow_neighbour_and_a_job_that_pauses_itself(
    stack: StackUnderTest,
) -> None:
    with receiver() as slow, receiver() as quick:
        slow.answer = lambda handler: time.sleep(3)
        slow_path, _ = _register(stack, slow, "run.succeeded")
        path, secret = _register(stack, quick, "job.auto_paused", "run.failed", "run.late")

        # Killed after the receiver has read the message, and before anything of it is noted.
        reached, answers = threading.Event(), threading.Event()

        def hold(handler: BaseHTTPRequestHandler) -> None:
            reached.set()
            answers.wait(20)

        quick.answer = hold
        message_id = stack.client.post(f"{path}/ping").json()["message_id"]
        assert reached.wait(30)
        stack.notifier.kill()
        answers.set()
        quick.answer = answering(204)
        stack.revive()
        poll(lambda: len(quick.received) == 2, 60, "it is sent again")
        assert [got.message_id for got in quick.received] == [message_id] * 2
        assert quick.received[0].raw == quick.received[1].raw
        poll(lambda: _statuses(stack, path) == ["delivered"], 20, "and noted")
        (row,) = stack.client.get(f"{path}/deliveries").json()["deliveries"]
        assert row["attempts"] == 2
        log = stack.client.get(f"{path}/deliveries/{row['delivery_id']}").json()["attempt_log"]
        assert [one["attempt"] for one in log] == [2]  # of the first nothing is known

        # 40 messages to one that never answers in time: its neighbour doesn't notice.
        for _ in range(40):
            stack.client.post(f"{slow_path}/ping")
        poll(lambda: len(slow.received) > 4, 30, "the slow one is being tried")
        began = time.monotonic()
        stack.client.post(f"{path}/ping")
        poll(lambda: len(quick.received) == 3, 20, "the quick one gets its own")
        took_s = time.monotonic() - began
        assert took_s < 5, f"it waited {took_s:.1f} s for its neighbour"
        assert _statuses(stack, slow_path).count("pending") >= 36

        # A job that fails twice in a row pauses itself; those who want it hear of it, and people.
        stack.manage("tenant_contact", "--tenant", "Acme", "--email", "ops@acme.example")
        task = {"image": stack.demo_image, "args": ["false"], "timeout_s": 60}
        job = stack.job_create(
            name="Nightly",
            schedule={"cron": "0 0 1 1 *", "time_zone": "UTC"},
            task=task,
            overlap="allow",
            auto_pause_after=2,
        )
        for _ in range(2):
            assert stack.client.post(f"/v1/jobs/{job['job_id']}/runs").status_code == 201

        def types() -> list[str]:
            return [got.body["type"] for got in quick.received[3:]]

        poll(lambda: "job.auto_paused" in types(), 60, "the pause is told")
        assert types().count("run.failed") >= 2
        for got in quick.received:
            got.verify(secret)
        shown = stack.client.get(f"/v1/jobs/{job['job_id']}").json()
        assert shown["pause"]["reason"] == "2 runs failed in a row"
        letters = stack.directory / "notifier.log"
        poll(lambda: "To: ops@acme.example" in letters.read_text(), 20, "the letter is sent")
        assert "Subject: Job paused after 2 failures: Nightly" in letters.read_text()


def _register(stack: StackUnderTest, hook: Receiver, *events: str) -> tuple[str, str]:
    """Register a webhook; returns its path and its secret."""
    made = stack.client.post("/v1/webhooks", json={"url": hook.url, "events": list(events)})
    assert made.status_code == 201, made.text
    path = f"/v1/webhooks/{made.json()['webhook_id']}"
    return path, stack.client.post(f"{path}/secret", json={}).json()["secret"]


def _statuses(stack: StackUnderTest, path: str) -> list[str]:
    page = stack.client.get(f"{path}/deliveries?limit=100").json()
    return [row["status"] for row in page["deliveries"]]
