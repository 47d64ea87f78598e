"""After a bad day on real parts the record proves that nothing was lost or run twice at once."""

import os
import signal

import pytest

from tests.acceptance.test_run_path import SHORT_LEASE, has, in_seconds, one_off, the_run
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest


@pytest.mark.stack(schedulers=2, workers=2, env=SHORT_LEASE)
def test_the_history_of_killed_workers_edits_and_cancels_is_clean(stack: StackUnderTest) -> None:
    retried = one_off(
        stack, "sh", "-c", '[ "$ATTEMPT" -ge 3 ]', in_s=1,
        retry={"max_attempts": 3, "backoff": "fixed", "base_s": 1},
    )  # fmt: skip
    lost = one_off(stack, "sh", "-c", '[ "$ATTEMPT" -ge 2 ] || sleep 600', in_s=1, timeout_s=600)
    cancelled = one_off(stack, "sleep", "600", in_s=1, timeout_s=600)
    task = {"image": stack.demo_image, "args": ["sleep", "3"], "timeout_s": 60}
    minutely = {"cron": "* * * * *", "time_zone": "UTC"}
    lonely = stack.job_create(schedule=minutely, task=task, overlap="skip")
    in_line = stack.job_create(schedule=minutely, task=task, overlap="queue")
    for job in (lonely, lonely, in_line, in_line):
        assert stack.client.post(f"/v1/jobs/{job['job_id']}/runs").status_code == 201
    poll(has(stack, lost, "running"), 30, "the run is under way")
    poll(has(stack, cancelled, "running"), 30, "the other, too")
    (run,) = stack.runs_of(cancelled)
    stack.client.post(f"/v1/runs/{run['run_id']}/cancel")
    stack.client.patch(
        f"/v1/jobs/{in_line['job_id']}",
        json={"schedule": {"at": in_seconds(90)}},
        headers={"If-Match": "*"},
    )
    # Both may be on the worker that is killed below: what they prove is over before.
    poll(has(stack, cancelled, "cancelled"), 30, "its container is stopped")
    poll(has(stack, retried, "succeeded"), 30, "two failures and a success")
    burst = [one_off(stack, "sleep", "1", in_s=1) for _ in range(8)]
    poll(lambda: the_run(stack, burst[0]).get("started_at"), 30, "the burst has begun")

    (pid,) = stack.rows(
        "SELECT s.pid FROM runs r JOIN worker_sessions s ON s.session_id = r.lease_owner"
        " WHERE r.job_id = %s",
        lost["job_id"],
    )[0]
    os.kill(pid, signal.SIGKILL)

    def all_final() -> bool:
        stack.revive()
        (active,) = stack.rows(
            "SELECT count(*) FROM runs WHERE finished_at IS NULL AND due_at < now()"
        )[0]
        jobs = [retried, lost, cancelled, *burst]
        return active == 0 and all(stack.runs_of(job) for job in jobs)

    poll(all_final, 90, "everything has ended", every_s=0.5)
    assert "No violation" in stack.manage("verify_history")
    ends = dict(stack.rows("SELECT outcome, count(*) FROM run_attempts GROUP BY 1"))
    assert ends["lease_expired"] >= 1
    assert ends["non_zero_exit"] == 2
    assert ends["cancelled"] == 1
