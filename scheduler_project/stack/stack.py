"""What a stack is made of: servers, programs, their environment, where each is reached.

Owns the rule of who wins: what a caller has set in the environment, then what the stack chose.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_project.stack.engine import Engine
from scheduler_project.stack.layout import Layout
from scheduler_project.stack.ports import METRICS_PORTS
from scheduler_project.stack.postgres import Postgres
from scheduler_project.stack.programs import Program, application_programs, settings_in
from scheduler_project.stack.redis import Redis
from scheduler_project.stack.state import State, load_state, save_state
from scheduler_project.stack.supervision import Supervisor

FLOWER_USER = "flower"
SERVERS = ["postgres", "redis"]
# What the daemon and its programs get of the caller's environment, beside the settings.
_INHERITED = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
]


@dataclass(frozen=True)
class Addresses:
    """Where the services of a running stack are reached."""

    api: str
    flower: str
    database: str
    redis: str


class Stack:
    """One stack, running or not, as described by its layout and the caller's environment."""

    def __init__(self, layout: Layout, environ: Mapping[str, str] = os.environ) -> None:
        self.layout = layout
        self.environ = environ
        self.supervisor = Supervisor(layout)
        layout.make_directories()
        self.state: State = load_state(layout.state_file)

    def save(self) -> None:
        save_state(self.layout.state_file, self.state)

    def postgres(self) -> Postgres | None:
        """The embedded server; None when DATABASE_URL names another one."""
        if self._external("DATABASE_URL", self.state.postgres_password):
            return None
        return Postgres(
            self.layout.postgres_data, self.state.ports["postgres"], self.state.postgres_password
        )

    def redis(self) -> Redis | None:
        """The embedded server; None when REDIS_URL names another one."""
        if self._external("REDIS_URL", self.state.redis_password):
            return None
        return Redis(
            self.layout.local / "valkey.conf", self.state.ports["redis"], self.state.redis_password
        )

    def _external(self, variable: str, own_password: str) -> str | None:
        # A shell that sourced `.local/env` has our own URL set: that is no other server.
        url = self.environ.get(variable)
        return url if url and own_password not in url else None

    def addresses(self) -> Addresses:
        ports = self.state.ports
        own_postgres, own_redis = self.postgres(), self.redis()
        return Addresses(
            api=f"http://127.0.0.1:{ports['api']}",
            flower=f"http://127.0.0.1:{ports['flower']}",
            database=own_postgres.url if own_postgres else self.environ["DATABASE_URL"],
            redis=own_redis.url if own_redis else self.environ["REDIS_URL"],
        )

    def settings(self, engine: Engine | None = None) -> dict[str, str]:
        """The environment of the application: ours, and over it what the caller has set."""
        addresses = self.addresses()
        ours = {
            "SECRET_KEY": self.state.secret_key,
            "INSTANCE": self.layout.instance,
            "NODE": socket.gethostname(),
            # Plain HTTP on the loopback: secure cookies would make the admin's login fail.
            "HTTPS": "0",
            "DEADLINES_DIR": str(self.layout.deadlines),
            "STATIC_ROOT": str(self.layout.static),
            "FLOWER_URL": addresses.flower,
            **({"DOCKER_HOST": engine.host} if engine else {}),
        }
        fixed = {
            "DATABASE_URL": addresses.database,
            "REDIS_URL": addresses.redis,
            "PYTHONUNBUFFERED": "1",
            # Time zones come from the pinned tzdata package, not from the machine.
            "PYTHONTZPATH": "",
        }
        release = {name: self.environ[name] for name in ("RELEASE",) if self.environ.get(name)}
        return ours | settings_in(self.environ) | release | fixed

    def inherited(self) -> dict[str, str]:
        return {name: self.environ[name] for name in _INHERITED if name in self.environ}

    def programs(self, engine: Engine) -> list[Program]:
        """Every program that the supervisor is to know, the servers first."""
        servers = []
        if own_postgres := self.postgres():
            servers.append(
                # Its children are no group of its own: they end with it. INT is a fast stop.
                Program(
                    "postgres",
                    own_postgres.command(),
                    order=1,
                    stop_signal="INT",
                    stop_wait_s=30,
                    stop_as_group=False,
                )
            )
        if own_redis := self.redis():
            servers.append(Program("redis", own_redis.command(), order=2))
        return servers + application_programs(
            self.settings(engine),
            api_port=self.state.ports["api"],
            flower_port=self.state.ports["flower"],
            flower_login=f"{FLOWER_USER}:{self.state.flower_password}",
            metrics_dir=self.layout.metrics,
            metrics_ports={name: self.state.ports[f"{name}_metrics"] for name in METRICS_PORTS},
        )

    def metrics_urls(self) -> dict[str, str]:
        """Where each program's metrics are read."""
        ports = self.state.ports
        own = {n: p for n in METRICS_PORTS if (p := ports.get(f"{n}_metrics"))}
        return {
            name: f"http://127.0.0.1:{port}/metrics"
            for name, port in {"api": ports["api"], **own}.items()
        }
