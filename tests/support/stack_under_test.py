"""The product as real processes on servers of its own, for tests that kill, freeze and empty.

Owns the rule that such a test can harm nobody else: its database is a copy, its containers carry
its instance, and all of it is ended and removed whatever the test did.
"""

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from celery import Celery

from scheduler_project.stack import programs
from scheduler_project.stack.engine import Engine, remove_containers
from scheduler_project.stack.image import DEMO_IMAGE
from scheduler_project.stack.layout import CHECKOUT, MARKER, Layout
from scheduler_project.stack.ports import first_free
from scheduler_project.stack.strays import end_all, marked
from tests.support.metrics import samples
from tests.support.polling import poll
from tests.support.processes import Process
from tests.support.servers import FAST, start_postgres, start_redis
from tests.support.services import test_settings
from tests.support.template import Template

# So many slots for each worker unless a test says otherwise: enough for a small burst.
_SLOTS = 4
_READY_S = 60


class StackUnderTest:
    """Schedulers, workers, warden and API, each a process to kill(), freeze(), thaw(), restart().

    `client` speaks for the tenant Acme, `other_client` for Globex, both with all scopes.
    """

    demo_image = DEMO_IMAGE

    def __init__(
        self,
        directory: Path,
        template: Template,
        engine: Engine,
        *,
        schedulers: int = 1,
        workers: int = 2,
        warden: bool = True,
        api: bool = True,
        api_processes: int = 1,
        notifier: bool = False,
        env: Mapping[str, str] | None = None,
        database: Mapping[str, str] | None = None,
    ) -> None:
        """`env` overrides settings of every process, such as {"LEASE_S": "6"}; `database` those
        that make PostgreSQL fast and forgetful."""
        self.directory = directory
        self.engine = engine
        directory.mkdir(parents=True, mode=0o711)
        template.copy_to(directory)
        self.postgres = start_postgres(directory, directory, {**FAST, **(database or {})})
        self.redis = start_redis(directory, directory)
        self.environment = (
            test_settings(directory, self.postgres.url, self.redis.url)
            | {
                MARKER: str(directory),
                "DOCKER_HOST": engine.host,
                "WORKER_SLOTS": str(_SLOTS),
                "WORKER_DRAIN_S": "2",
                "PYTHONUNBUFFERED": "1",
                # Any free port; the log says which.
                "METRICS_PORT": "0",
            }
            | dict(env or {})
        )
        self.instance = self.environment["INSTANCE"]
        self._api_port = first_free(20_000 + os.getpid() % 10_000)
        self.api = self._process("api", programs.api_command(self._api_port, api_processes))
        self.schedulers = [
            self._process(f"scheduler-{n}", programs.scheduler_command())
            for n in range(1, schedulers + 1)
        ]
        slots = int(self.environment["WORKER_SLOTS"])
        prepared = int(self.environment.get("WORKER_PREPARED_LIMIT", slots))
        self.workers = [
            self._process(f"worker-{n}", programs.worker_command(f"worker{n}", slots, prepared))
            for n in range(1, workers + 1)
        ]
        deadlines, node = Path(self.environment["DEADLINES_DIR"]), self.environment["NODE"]
        self.warden = self._process(
            "warden", programs.warden_command(deadlines, node, self.instance), role="worker"
        )
        self.notifier = self._process("notifier", programs.notifier_command())
        self._wanted = [
            *([self.warden] if warden else []),
            *([self.notifier] if notifier else []),
            *self.workers,
            *self.schedulers,
            *([self.api] if api else []),
        ]
        self.client = self._client(template.keys["Acme"])
        self.other_client = self._client(template.keys["Globex"])

    def _process(self, name: str, command: list[str], role: str = "") -> Process:
        role = role or name.partition("-")[0]
        environment = {**self.environment, "PROCESS_ROLE": role, **self.own_metrics(name)}
        return Process(name, command, environment, self.directory / f"{name}.log")

    def own_metrics(self, name: str) -> dict[str, str]:
        """Where an API's processes put their counts together; only read by an API."""
        return (
            {"PROMETHEUS_MULTIPROC_DIR": str(self.directory / "metrics")} if "api" in name else {}
        )

    def _client(self, key: str) -> httpx.Client:
        def add_idempotency_key(request: httpx.Request) -> None:
            if request.method == "POST":
                request.headers.setdefault("Idempotency-Key", str(uuid.uuid4()))

        return httpx.Client(
            base_url=f"http://127.0.0.1:{self._api_port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=15,
            trust_env=False,
            event_hooks={"request": [add_idempotency_key]},
        )

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything that was asked for, and wait until it can run jobs."""
        for process in self._wanted:
            process.start()
        if self.api in self._wanted:
            poll(self.api_is_ready, _READY_S, "the API is ready")
        workers = [process for process in self.workers if process in self._wanted]
        poll(
            lambda: self.accepting_workers() >= len(workers),
            _READY_S,
            f"{len(workers)} workers accept runs",
        )

    def revive(self) -> list[str]:
        """Start again what has died, as a supervisor would; returns the names."""
        dead = [process for process in self._wanted if not process.is_alive]
        for process in dead:
            process.start()
        return [process.name for process in dead]

    def close(self) -> None:
        """End every process, remove every container and file. Never raises for a dead one."""
        self.client.close()
        self.other_client.close()
        for process in [*self.schedulers, *self.workers, self.warden, self.notifier, self.api]:
            process.kill()
        self.redis.kill()
        self.postgres.discard()
        end_all(marked(self.directory), grace_s=1)
        remove_containers(self.engine, self.instance)
        shutil.rmtree(Layout(self.directory).deadlines, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- looking ----------------------------------------------------------------------------------

    @contextmanager
    def db(self) -> Iterator[psycopg.Connection]:
        """An autocommit connection to the stack's database."""
        with self.postgres.connect() as connection:
            yield connection

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement on a connection of its own."""
        with self.db() as connection:
            return connection.execute(query, parameters).fetchall()

    def api_is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def metrics_of(self, process: Process) -> dict[str, float]:
        """What a process shows now, by name with labels: `runs_waiting{reason="slot"}`."""
        if process is self.api:
            return samples(self.client.get("/metrics").text)
        said = r"action=metrics\.served address=\S+ port=(\d+)"
        ports = poll(
            lambda: re.findall(said, process.output()), _READY_S, f"{process.name} serves metrics"
        )
        answer = httpx.get(f"http://127.0.0.1:{ports[-1]}/metrics", trust_env=False, timeout=10)
        return samples(answer.text)

    def accepting_workers(self) -> int:
        """How many live worker sessions take runs, as the database sees it."""
        return int(
            self.rows(
                "SELECT count(*) FROM worker_sessions WHERE ended_at IS NULL AND accepting"
                " AND NOT draining AND lease_expires_at > now()"
            )[0][0]
        )

    def containers(self, *, running_only: bool = False) -> list[Any]:
        """The containers of this stack, as docker's client gives them."""
        with self.engine.client() as client:
            labels = {"label": f"scheduler.instance={self.instance}"}
            found = client.containers.list(all=not running_only, filters=labels)
        return list(found)

    def job_create(self, **body: Any) -> dict[str, Any]:
        """POST a job as Acme; the answer's body. Fails the test on any answer but 201."""
        answer = self.client.post("/v1/jobs", json=body)
        assert answer.status_code == 201, f"{answer.status_code}: {answer.text}"
        created: dict[str, Any] = answer.json()
        return created

    def runs_of(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The job's runs, newest first, as the API lists them."""
        answer = self.client.get(f"/v1/jobs/{job['job_id']}/runs")
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return list(answer.json()["runs"])

    def manage(self, *words: str) -> str:
        """Run `manage.py` on this stack; what it printed. Fails the test when it fails."""
        done = self.command(*words)
        assert done.returncode == 0, f"manage.py {words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run `manage.py` on this stack, whatever comes of it."""
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            env={"PATH": os.environ["PATH"], **self.environment},
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
        )

    def send_again(self, run_id: str, queue: str, task_id: str) -> None:
        """Put one more message for a run on a queue, as a broker that delivers twice would."""
        with Celery(broker=self.environment["REDIS_URL"]) as app:
            app.send_task(
                "workers.run", args=[run_id], task_id=task_id, exchange="", routing_key=queue
            )

    def logs(self, lines: int = 40) -> str:
        """The last lines of every process, for a failure."""
        parts = []
        for path in sorted(self.directory.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(parts)
