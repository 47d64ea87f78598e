"""Three demo jobs through the real API, and the proof that one of them ran in a container.

Owns the rule that running it again adds nothing: a demo job is found by its label.
"""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from rich.table import Table

from scheduler_project.stack.console import console
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.image import DEMO_IMAGE
from scheduler_project.stack.waiting import poll

_LABEL = "demo"
_ONE_OFF = "one-off"
_ONE_OFF_DELAY_S = 10
_THIRD_TIME_DELAY_S = 4
# Its second, the start of a container on a busy machine, and some for a first start of everything.
_PROOF_TIMEOUT_S = 60
_OUTPUT_SHOWN = 60
_FINAL = {"succeeded", "failed", "cancelled", "skipped"}


def _task(*args: str) -> dict[str, Any]:
    return {"image": DEMO_IMAGE, "args": list(args), "timeout_s": 60}


def demo_jobs(now: datetime) -> dict[str, dict[str, Any]]:
    """Return the bodies of the demo jobs by the value of their label."""
    say = 'echo "fence $FENCE, scheduled for $SCHEDULED_FOR, user $(id -u)"'
    at = now + timedelta(seconds=_ONE_OFF_DELAY_S)
    soon = now + timedelta(seconds=_THIRD_TIME_DELAY_S)
    jobs = {
        "every-minute": {
            "name": "Demo: every minute in Kolkata",
            "schedule": {"cron": "* * * * *", "time_zone": "Asia/Kolkata"},
            "task": _task("sh", "-c", say),
        },
        _ONE_OFF: {
            "name": "Demo: once, ten seconds from now",
            "schedule": {"at": at.isoformat(timespec="seconds")},
            "task": _task("sh", "-c", say),
        },
        "third-time": {
            "name": "Demo: fails twice, then succeeds",
            # Early enough that its three attempts are over when the one-off has run.
            "schedule": {"at": soon.isoformat(timespec="seconds")},
            "task": _task("sh", "-c", '[ "$ATTEMPT" -ge 3 ] && echo "attempt $ATTEMPT: ok"'),
            "retry": {"max_attempts": 3, "backoff": "fixed", "base_s": 1, "jitter": "none"},
        },
    }
    return {value: {**body, "labels": {_LABEL: value}} for value, body in jobs.items()}


@dataclass(frozen=True)
class Demo:
    """The demo tenant's view of the API."""

    api_url: str
    api_key: str

    @contextlib.contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        # trust_env: a proxy for the outside has no business between us and the loopback.
        with httpx.Client(
            base_url=self.api_url, headers=headers, timeout=15, trust_env=False
        ) as client:
            yield client

    def ensure_jobs(self) -> dict[str, dict[str, Any]]:
        """Create the demo jobs that are missing; returns all of them by label.

        A one-off that has ended without success is made anew: it proves the path, and its
        failure may have had a cause that is gone.
        """
        with self._client() as client:
            jobs = {}
            for value, body in demo_jobs(datetime.now(UTC)).items():
                job = self._latest(client, value)
                if job is None or (value == _ONE_OFF and self._ended_badly(client, job)):
                    job = self._create(client, body)
                jobs[value] = job
            return jobs

    def _latest(self, client: httpx.Client, value: str) -> dict[str, Any] | None:
        answer = _json(client.get("/v1/jobs", params={"label": f"{_LABEL}:{value}", "limit": 1}))
        jobs = [job for job in answer["jobs"] if job["labels"].get(_LABEL) == value]
        return jobs[0] if jobs else None

    def _ended_badly(self, client: httpx.Client, job: dict[str, Any]) -> bool:
        runs = self._runs(client, job)
        return bool(runs) and runs[0]["status"] in _FINAL - {"succeeded"}

    def _create(self, client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
        return _json(
            client.post("/v1/jobs", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
        )

    def _runs(self, client: httpx.Client, job: dict[str, Any]) -> list[dict[str, Any]]:
        answer = _json(client.get(f"/v1/jobs/{job['job_id']}/runs", params={"limit": 5}))
        return list(answer["runs"])

    def prove(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Wait until the one-off has succeeded; StackError when it fails or takes too long."""
        with self._client() as client, console.status("") as status:

            def final_run() -> dict[str, Any] | None:
                runs = self._runs(client, jobs[_ONE_OFF])
                run = runs[0] if runs else None
                state = run["status"] if run else "not planned yet"
                status.update(f"One-off at {jobs[_ONE_OFF]['schedule']['at']}: {state}")
                return run if run and run["status"] in _FINAL else None

            run = poll(final_run, _PROOF_TIMEOUT_S, every_s=0.5)
        if run is None:
            raise StackError(
                f"The one-off demo job did not run within {_PROOF_TIMEOUT_S} s.",
                "make logs NAME=worker-1, make status",
            )
        if run["status"] != "succeeded":
            raise StackError(f"The one-off demo job ended as {run['status']}.", "see below")

    def print_runs(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Print the latest runs of the demo jobs as a table."""
        table = Table("job", "scheduled", "started", "lag", "status", "tries", "output", box=None)
        with self._client() as client:
            for job in jobs.values():
                for listed in self._runs(client, job):
                    run = _json(client.get(f"/v1/runs/{listed['run_id']}"))
                    table.add_row(job["name"].removeprefix("Demo: "), *_cells(run))
        console.print(table)


def _cells(run: dict[str, Any]) -> tuple[str, ...]:
    attempts = run["attempts"]
    started = attempts[0]["started_at"] if attempts else None
    lag = ""
    if started:
        behind = datetime.fromisoformat(started) - datetime.fromisoformat(run["due_at"])
        lag = f"{behind.total_seconds():.3f} s"
    return (
        _clock(run["scheduled_for"]),
        _clock(started),
        lag,
        run["status"],
        str(len(attempts)),
        (run["output_tail"] or "").strip()[:_OUTPUT_SHOWN],
    )


def _clock(instant: str | None) -> str:
    return datetime.fromisoformat(instant).strftime("%H:%M:%S.%f")[:-3] if instant else ""


def _json(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise StackError(
            f"{answer.request.method} {answer.request.url.path} answered "
            f"{answer.status_code}: {answer.text[:1000]}",
            "make logs NAME=api",
        )
    body: dict[str, Any] = answer.json()
    return body
