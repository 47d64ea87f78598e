"""What a case about the API happens in: a live server, two tenants of its own, their database.

Requests go over a real connection by the plainest client there is, because the cases send what
better clients refuse to send.
"""

import http.client
import json
import secrets
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from tenants.domain.api_key_text import make_key
from tests.support.database_clock import DatabaseClock
from tests.support.stack_under_test import StackUnderTest

GOOD_BODY: dict[str, Any] = {
    "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
    "task": {"image": "registry.example/acme/report:3", "args": ["--daily"], "timeout_s": 900},
    "retry": {"max_attempts": 3, "backoff": "exponential"},
    "overlap": "skip",
}


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class CaseTenant:
    """A tenant that only one case knows."""

    tenant_id: uuid.UUID
    key: str


@dataclass
class World:
    """The server and what the steps of a case leave for its request and its checks.

    `values` fill the {placeholders} of a request; `notes` are facts from before the request.
    """

    stack: StackUnderTest
    clock: DatabaseClock | None = None
    values: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    case: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.a, self.b = self._tenant("A"), self._tenant("B")
        self.values |= {"A": self.a.key, "B": self.b.key}

    def _tenant(self, name: str) -> CaseTenant:
        """A tenant like Acme, with a key of all scopes."""
        tenant_id, key = uuid.uuid4(), make_key(secrets.choice)
        with self.stack.db() as connection:
            connection.execute(
                "INSERT INTO tenants SELECT (jsonb_populate_record(t, jsonb_build_object("
                "'tenant_id', %s::text, 'name', %s::text))).* FROM tenants t WHERE name = 'Acme'",
                [str(tenant_id), f"{name}-{tenant_id}"],
            )
            connection.execute(
                "INSERT INTO api_keys (api_key_id, tenant_id, name, prefix, key_hash, scopes,"
                " created_at) VALUES (gen_random_uuid(), %s, 'case', %s, %s,"
                " '{read,write,admin}', now())",
                [tenant_id, key.prefix, key.key_hash],
            )
        return CaseTenant(tenant_id, key.text)

    # --- asking -----------------------------------------------------------------------------------

    @property
    def answer(self) -> Answer:
        """The answer to the case's request; to the last of them when many were sent at once."""
        return self.answers[-1]

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> Answer:
        """Send one request as it is; `body` is JSON unless it is bytes."""
        address = urlsplit(str(self.stack.client.base_url))
        connection = http.client.HTTPConnection("127.0.0.1", port or address.port or 0, timeout=30)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in (headers or {}).items():
                connection.putheader(name, value.encode("utf-8"))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            if body is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data if body is not None else None)
            reply = connection.getresponse()
            text = reply.read().decode("utf-8", "replace")
            return Answer(reply.status, dict(reply.getheaders()), text)
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> Answer:
        """Send a well-formed request as tenant A (or with another key)."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"Authorization": f"Bearer {key or self.a.key}"}
        if body is not None:
            named |= {"Content-Type": "application/json"}
        return self.send(method, path, body, headers=named)

    def send_many(self, count: int, *request: Any, **options: Any) -> list[Answer]:
        """The same request `count` times at once, each on its own connection."""
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(self.send, *request, **options) for _ in range(count)]
            return [future.result() for future in futures]

    def create(self, *, key: str | None = None, **changes: Any) -> dict[str, Any]:
        """A new job of tenant A like the good body with `changes`; the answer's body."""
        answer = self.ask(
            "POST", "/v1/jobs", GOOD_BODY | changes, key=key, Idempotency_Key=str(uuid.uuid4())
        )
        assert answer.status == 201, answer.text
        job: dict[str, Any] = answer.body
        return job

    def use_job(self, job: Mapping[str, Any]) -> None:
        """Let {job} and {ver} of the request mean this job."""
        self.values |= {"job": job["job_id"], "ver": str(job["version"])}

    def job(self, job_id: str | None = None) -> dict[str, Any]:
        """The job (by default {job}) as tenant A reads it."""
        answer = self.ask("GET", f"/v1/jobs/{job_id or self.values['job']}")
        assert answer.status == 200, answer.text
        job: dict[str, Any] = answer.body
        return job

    def runs(self, job_id: str | None = None, **query: str) -> list[dict[str, Any]]:
        """The first 200 runs of the job (by default {job}), newest first."""
        words = "".join(f"&{name}={value}" for name, value in query.items())
        path = f"/v1/jobs/{job_id or self.values['job']}/runs?limit=200{words}"
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.text
        return list(answer.body["runs"])

    # --- the rows behind it -----------------------------------------------------------------------

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.stack.rows(query, *parameters)

    def jobs_of(self, tenant: CaseTenant) -> list[tuple[Any, ...]]:
        """Ids and versions of the tenant's jobs, deleted ones included."""
        return self.rows(
            "SELECT job_id::text, version FROM jobs WHERE tenant_id = %s ORDER BY job_id",
            tenant.tenant_id,
        )

    def everything_of(self, tenant: CaseTenant) -> list[tuple[Any, ...]]:
        """All that may change of a tenant's jobs and runs."""
        return self.rows(
            "SELECT to_jsonb(j), to_jsonb(c) FROM jobs j JOIN schedule_cursors c USING (job_id)"
            " WHERE j.tenant_id = %s ORDER BY j.job_id",
            tenant.tenant_id,
        ) + self.rows(
            "SELECT to_jsonb(r) FROM runs r WHERE r.tenant_id = %s ORDER BY r.run_id",
            tenant.tenant_id,
        )

    def add_runs(self, job_id: str, statuses: list[str], scheduled_for: datetime) -> list[str]:
        """Runs of tenant A's job, one in each status, all of one instant; returns their ids."""
        rows = self.rows(
            "INSERT INTO runs (run_id, scheduled_for, job_id, manual_key, job_version, tenant_id,"
            " region, tier, trigger, status, due_at, ready_at, finished_at, lease_owner, fence,"
            " go_at, skip_reason)"
            " SELECT gen_random_uuid(), %s, %s, gen_random_uuid(), 1, %s, 'default', 'container',"
            " 'manual', s, %s, %s,"
            " CASE WHEN s IN ('succeeded', 'failed', 'cancelled', 'skipped') THEN now() END,"
            " CASE WHEN s IN ('leased', 'running') THEN gen_random_uuid() END, 1, now(),"
            " CASE WHEN s = 'skipped' THEN 'overlap' ELSE '' END"
            " FROM unnest(%s::text[]) AS s RETURNING run_id::text",
            scheduled_for,
            job_id,
            self.a.tenant_id,
            scheduled_for,
            scheduled_for,
            statuses,
        )
        return [row[0] for row in rows]

    def now(self) -> datetime:
        """The database's clock."""
        moment: datetime = self.rows("SELECT clock_timestamp()")[0][0]
        return moment

    def plan(self) -> None:
        """Let a planner look once; only where no scheduler runs."""
        self.stack.manage("shell", "-c", "from runs.planner import plan_once; plan_once()")

    def move_clock(self, moment: datetime) -> None:
        assert self.clock is not None, "this stack's clock can't be moved: its workers hold leases"
        self.clock.set(moment)

    def advance_clock(self, by: timedelta) -> None:
        assert self.clock is not None, "this stack's clock can't be moved: its workers hold leases"
        self.clock.advance(by)
