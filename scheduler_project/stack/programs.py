"""The programs of a stack: how each is called, with what environment, and how it is ended.

Owns the command lines. The supervisor of `make up`, the processes of the acceptance tests and
docker-compose.yml run the same ones.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scheduler_project.stack.layout import CHECKOUT

_CELERY = [sys.executable, "-m", "celery", "-A", "scheduler_project"]
# Beside a thread for each slot and each prepared run: maintenance tasks, and room to look.
_SPARE_THREADS = 4
DEFAULT_SLOTS = 8
# As many as schedulers let be under way at once (NOTIFICATION_SLOTS): none waits in the queue.
NOTIFIER_THREADS = 32
# Slower stops are for deployments: here a person waits, and its containers are removed anyway.
DRAIN_S = 5


@dataclass(frozen=True)
class Program:
    """One supervised process. `order`: lower starts earlier. `stop_wait_s`: then it is killed."""

    name: str
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    order: int = 100
    stop_signal: str = "TERM"
    stop_wait_s: int = 10
    # A signal to the whole group also reaches what the program itself has to end in order.
    stop_as_group: bool = True


def api_command(port: int, processes: int = 2, threads: int = 8) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gunicorn",
        "--config=python:scheduler_project.gunicorn_conf",
        f"--bind=127.0.0.1:{port}",
        f"--workers={processes}",
        f"--threads={threads}",
        "scheduler_project.wsgi:application",
    ]


def scheduler_command() -> list[str]:
    """Celery beat with our scheduler. No pid file: after a kill, a process that got the number of
    the dead one would keep beat from starting; the supervisor sees to it that there is one."""
    return [
        *_CELERY,
        "beat",
        "--scheduler=scheduler_project.beat:ShardedScheduler",
        "--pidfile=",
        "--loglevel=INFO",
    ]


def worker_command(name: str, slots: int, prepared: int) -> list[str]:
    """A Celery worker process; the queue of its runs is its own and added by our code."""
    return [
        *_CELERY,
        "worker",
        "--pool=threads",
        f"--concurrency={slots + prepared + _SPARE_THREADS}",
        "--without-gossip",
        "--without-mingle",
        "--queues=maintenance",
        f"--hostname={name}@%h",
        "--loglevel=INFO",
    ]


def notifier_command(name: str = "notifier") -> list[str]:
    """A Celery worker that delivers notifications; as many threads as NOTIFICATION_SLOTS."""
    return [
        *_CELERY,
        "worker",
        "--pool=threads",
        f"--concurrency={NOTIFIER_THREADS}",
        "--without-gossip",
        "--without-mingle",
        "--queues=notifications",
        f"--hostname={name}@%h",
        "--loglevel=INFO",
    ]


def warden_command(deadlines: Path, node: str, instance: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "workers.warden",
        "--deadlines",
        str(deadlines),
        "--node",
        node,
        "--instance",
        instance,
    ]


def flower_command(port: int) -> list[str]:
    """Flower; its login comes by FLOWER_BASIC_AUTH, so that it is in no process list."""
    return [
        *_CELERY,
        "flower",
        "--address=127.0.0.1",
        f"--port={port}",
        "--max_tasks=10000",
        "--loglevel=WARNING",
    ]


def application_programs(
    environment: Mapping[str, str],
    *,
    api_port: int,
    flower_port: int,
    flower_login: str,
    metrics_dir: Path,
    metrics_ports: Mapping[str, int],
    schedulers: int = 2,
    workers: int = 2,
) -> list[Program]:
    """Everything but the servers. `environment` is what settings.py reads, shared by all.

    `metrics_ports`: by program. `metrics_dir` is the API's alone: what another process counted
    there would be the API's, too.
    """
    slots = int(environment.get("WORKER_SLOTS") or DEFAULT_SLOTS)
    prepared = int(environment.get("WORKER_PREPARED_LIMIT") or slots)
    # In its environment, so that changed code is a changed program, which `make up` restarts.
    shared = {"RELEASE": source_digest(CHECKOUT), **environment}
    for own in ("METRICS_PORT", "PROMETHEUS_MULTIPROC_DIR"):
        shared.pop(own, None)
    worker = {**shared, "PROCESS_ROLE": "worker", "WORKER_DRAIN_S": str(DRAIN_S)}
    warden = warden_command(
        Path(environment["DEADLINES_DIR"]), environment["NODE"], environment["INSTANCE"]
    )
    api = {**shared, "PROCESS_ROLE": "api", "PROMETHEUS_MULTIPROC_DIR": str(metrics_dir)}
    scheduler = {**shared, "PROCESS_ROLE": "scheduler"}

    def with_metrics(name: str, environment: Mapping[str, str]) -> Mapping[str, str]:
        port = {"METRICS_PORT": str(metrics_ports[name])} if name in metrics_ports else {}
        return {**environment, **port}

    return [
        Program("api", api_command(api_port), api),
        *(
            Program(name, scheduler_command(), with_metrics(name, scheduler))
            for name in (f"scheduler-{number}" for number in range(1, schedulers + 1))
        ),
        # Before the workers: one without a warden takes no lease.
        Program("warden", warden, {**shared, "PROCESS_ROLE": "worker"}, order=50),
        *(
            Program(
                f"worker-{number}",
                worker_command(f"worker{number}", slots, prepared),
                with_metrics(f"worker-{number}", worker),
                stop_wait_s=DRAIN_S + 15,
            )
            for number in range(1, workers + 1)
        ),
        Program(
            "notifier",
            notifier_command(),
            with_metrics("notifier", {**shared, "PROCESS_ROLE": "notifier"}),
            # As long as the attempt of a webhook may take (WEBHOOK_TIMEOUT_S), and a little.
            stop_wait_s=20,
        ),
        Program(
            "flower",
            flower_command(flower_port),
            {**shared, "FLOWER_BASIC_AUTH": flower_login},
            order=200,
        ),
    ]


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that settings.py reads: what a person set for this stack."""
    source = (CHECKOUT / "scheduler_project" / "settings.py").read_text()
    names = re.findall(r"""env\.\w+\(\s*f?["']([A-Z][^"']*)["']""", source)
    # f"RATE_LIMIT_{…}_BURST" stands for every name of that form.
    forms = [re.sub(r"\{[^}]*\}", "[A-Z0-9_]+", name) for name in names]
    is_setting = re.compile("|".join(sorted(set(forms)))).fullmatch
    return {name: environ[name] for name in sorted(environ) if environ[name] and is_setting(name)}


def source_digest(root: Path) -> str:
    """A digest of the code that the programs run."""
    digest = hashlib.sha256()
    for app in ("scheduler_project", "tenants", "jobs", "runs", "workers"):
        for path in sorted((root / app).rglob("*")):
            if path.suffix in {".py", ".sql", ".html"} and "stack" not in path.parts:
                digest.update(str(path.relative_to(root)).encode())
                digest.update(path.read_bytes())
    digest.update((root / "requirements.txt").read_bytes())
    return digest.hexdigest()[:16]
