"""The customers: what they schedule, and what they do to it while it runs.

Every request carries one idempotency key and is repeated with it until an answer says what became
of it. So the world knows exactly what it was promised, and can ask for all of it in the end.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx

from tests.support.stack_under_test import StackUnderTest

_RETRY_S = 0.3
# Not unknown answers: the request has been refused for good.
_TRY_AGAIN = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Habit:
    """A kind of job. `share` of all jobs in percent.

    `fate`: how each of its runs ends that is neither cancelled nor skipped, whatever is done to the
    machines; None where a customer's edit can change that.
    """

    name: str
    share: int
    script: str
    overlap: str
    attempts: int = 1
    fate: str | None = "succeeded"


HABITS = (
    Habit("quick", 42, "true", "allow"),
    Habit("alone", 12, "sleep 2", "skip"),
    Habit("in line", 13, "sleep 1", "queue"),
    Habit("newest", 7, "sleep 20", "replace"),
    Habit("shaky", 10, '[ "$ATTEMPT" -ge 3 ]', "queue", attempts=4, fate=None),
    Habit("hopeless", 6, "exit 3", "skip", attempts=2, fate="failed"),
    Habit("long", 10, "sleep 15", "skip"),
)
# A first attempt that ends by itself before anybody kills it, and others that take longer than a
# sleeping worker: it wakes up with a result while another runs what it lost.
NAPPERS = (
    Habit("quick", 30, "true", "allow"),
    Habit("napper", 70, '[ "$ATTEMPT" -ge 2 ] && sleep 12; sleep 3', "allow"),
)


@dataclass
class Journal:
    """What clients asked for and what they were told."""

    actions: Counter[str] = field(default_factory=Counter)
    # Runs that a client was told it has: acknowledged once, by id, with their job.
    promised_runs: dict[str, str] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    habits: dict[str, Habit] = field(default_factory=dict)
    deleted_jobs: set[str] = field(default_factory=set)
    # Jobs whose policy was `allow` at some time: their runs may be under way together.
    free_jobs: set[str] = field(default_factory=set)
    cancelled_runs: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)


class World:
    """Two tenants' clients. `journal` is complete once `act` has returned."""

    def __init__(self, stack: StackUnderTest, seed: int, habits: Sequence[Habit] = HABITS) -> None:
        self.journal = Journal()
        self._stack = stack
        self._habits = habits
        self._random = Random(f"{seed}/world")
        self._giving_up = threading.Event()
        self._end = datetime.max.replace(tzinfo=UTC)

    # --- before ---------------------------------------------------------------------------------

    def populate(self, jobs: int, begin: datetime, end: datetime) -> None:
        """Make the jobs: each is due once a minute, most at instants of their own."""
        self._end = end
        # In less than a minute each is due once all the same.
        spread_s = min(60.0, (end - begin).total_seconds() - 1)
        for n in range(jobs):
            habit = self._habit()
            # A tenth all at the full minute, by cron: bursts, as the world has them.
            if n % 10 == 0 and end - begin > timedelta(minutes=1):
                zone = self._random.choice(["UTC", "Europe/Berlin", "Asia/Kolkata"])
                schedule: dict[str, str] = {"cron": "* * * * *", "time_zone": zone}
                start_at = begin
            else:
                schedule = {"every": "1m"}
                # An interval counts from its start, at which it is not due: a minute before.
                start_at = begin + timedelta(seconds=round(spread_s * n / jobs, 1) - 60)
            self._create(habit, schedule, n, start_at=_text(start_at), end_at=_text(end))

    def _habit(self) -> Habit:
        return self._random.choices(self._habits, [habit.share for habit in self._habits])[0]

    def _create(self, habit: Habit, schedule: dict[str, str], n: int, **times: str) -> None:
        task = {
            "image": self._stack.demo_image,
            "args": ["sh", "-c", habit.script],
            "timeout_s": 60,
        }
        body = {
            "name": f"{habit.name} {n}",
            "schedule": schedule,
            "task": task,
            "overlap": habit.overlap,
            "retry": {"max_attempts": habit.attempts, "backoff": "fixed", "base_s": 1},
            **times,
        }
        answer = self._ask(self._client(n), "POST", "/v1/jobs", body)
        if answer is None:
            return
        if answer.status_code == 400 and _is_past(schedule.get("at")):
            return  # asked again until the API was there: too late by then
        if answer.status_code != 201:
            self.journal.broken.append(f"a good job was refused: {answer.text}")
            return
        job_id = answer.json()["job_id"]
        self.journal.jobs.append(job_id)
        self.journal.habits[job_id] = habit
        if habit.overlap == "allow":
            self.journal.free_jobs.add(job_id)

    def _client(self, n: int) -> httpx.Client:
        """Two of three jobs are Acme's."""
        return self._stack.other_client if n % 3 == 2 else self._stack.client

    # --- meanwhile ------------------------------------------------------------------------------

    def act(self, stop: threading.Event, pause_s: float) -> None:
        """One action after another until `stop`."""
        for action in self._choices():
            if stop.wait(self._random.uniform(0.5, 1.5) * pause_s):
                return
            self.journal.actions[action] += 1
            {
                "run now": self._run_now,
                "cancel": self._cancel,
                "edit": self._edit,
                "switch": self._switch,
                "delete": self._delete,
                "one-off": self._one_off,
            }[action]()

    def give_up(self) -> None:
        """Repeat no request any more: the campaign has failed."""
        self._giving_up.set()

    def _choices(self) -> Iterator[str]:
        weights = {
            "run now": 60, "cancel": 14, "edit": 10, "switch": 6, "delete": 1, "one-off": 9
        }  # fmt: skip
        while True:
            yield self._random.choices(list(weights), list(weights.values()))[0]

    def _run_now(self) -> None:
        n, job_id = self._any_job()
        answer = self._ask(self._client(n), "POST", f"/v1/jobs/{job_id}/runs")
        if answer is not None and answer.status_code == 201:
            self.journal.promised_runs[answer.json()["run_id"]] = job_id

    def _cancel(self) -> None:
        n = self._random.randrange(len(self.journal.jobs))
        listed = self._ask(self._client(n), "GET", "/v1/runs?limit=100")
        if listed is None or listed.status_code != 200:
            return
        waiting = [run["run_id"] for run in listed.json()["runs"] if run.get("finished_at") is None]
        if waiting:
            run_id = self._random.choice(waiting)
            answer = self._ask(self._client(n), "POST", f"/v1/runs/{run_id}/cancel")
            if answer is not None and answer.is_success:
                self.journal.cancelled_runs.add(run_id)

    def _edit(self) -> None:
        change: dict[str, Any] = self._random.choice(
            [
                self._until_the_end({"every": "1m"}),
                self._until_the_end({"cron": "* * * * *", "time_zone": "America/New_York"}),
                self._until_the_end({"every": "90s"}),
                {"labels": {"edited": str(self._random.randrange(100))}},
                {"retry": {"max_attempts": self._random.randint(1, 5)}},
            ]
        )
        self._change(change)

    def _until_the_end(self, schedule: dict[str, str]) -> dict[str, Any]:
        """The change of a schedule, also of a one-off's, that ends with the campaign."""
        return {"schedule": schedule, "end_at": _text(self._end)}

    def _switch(self) -> None:
        self._change({"enabled": self._random.random() < 0.6})

    def _change(self, change: dict[str, Any]) -> None:
        n, job_id = self._any_job()
        self._ask(self._client(n), "PATCH", f"/v1/jobs/{job_id}", change)

    def _delete(self) -> None:
        n, job_id = self._any_job()
        answer = self._ask(self._client(n), "DELETE", f"/v1/jobs/{job_id}")
        if answer is not None and answer.is_success:
            self.journal.deleted_jobs.add(job_id)

    def _one_off(self) -> None:
        at = datetime.now(UTC) + timedelta(seconds=self._random.uniform(1, 8))
        self._create(self._habit(), {"at": _text(at)}, len(self.journal.jobs))

    def _any_job(self) -> tuple[int, str]:
        n = self._random.randrange(len(self.journal.jobs))
        return n, self.journal.jobs[n]

    def _ask(
        self, client: httpx.Client, method: str, path: str, body: Any = None
    ) -> httpx.Response | None:
        """Ask until there is an answer; None when the campaign is over first.

        A server error other than "come back later" is a promise broken.
        """
        headers = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}
        if method in ("PATCH", "DELETE"):
            headers["If-Match"] = "*"
        while not self._giving_up.is_set():
            try:
                answer = client.request(method, path, json=body, headers=headers)
            except httpx.HTTPError:
                self.journal.actions["asked again"] += 1
            else:
                if answer.status_code not in _TRY_AGAIN:
                    if answer.status_code >= 500:
                        said = f"{method} {path}: {answer.status_code} {answer.text[:300]}"
                        self.journal.broken.append(said)
                    return answer
                self.journal.actions["asked again"] += 1
            self._giving_up.wait(_RETRY_S)
        return None


def _is_past(at: str | None) -> bool:
    return at is not None and datetime.fromisoformat(at) < datetime.now(UTC)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
