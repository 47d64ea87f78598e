"""The container engine: find the one that is there, or start Docker's on a machine that is ours.

Owns the rule of who ends it: an engine that we started is stopped by its last user, when no other
stack or test run is registered with it and no container runs; one that we found is left alone.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
import psutil

from scheduler_project.stack import debian
from scheduler_project.stack.engine_users import EngineUsers
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.strays import read_pid
from scheduler_project.stack.waiting import poll

_LOCAL_SOCKET = "unix:///var/run/docker.sock"
_DOCKER_PID_FILE = Path("/var/run/docker.pid")
# Engines that this process has started and does not wait for: a forgotten one would be reported as
# left running when it is collected.
_started: list["subprocess.Popen[bytes]"] = []
# As workers/sandbox writes it.
INSTANCE_LABEL = "scheduler.instance"
# How long the engine may take to make a container that was asked for.
_CREATE_S = 0.5
# A plain client may be first in PATH; the engine lies where only root looks.
_ENGINE_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"

_HOW_TO_GET_ONE = (
    "install Docker (sudo apt-get install docker.io && sudo usermod -aG docker $USER, then log in "
    "again) or Podman (sudo apt-get install podman && systemctl --user start podman.socket), "
    "or set DOCKER_HOST"
)


@dataclass(frozen=True)
class Engine:
    """An engine that answers. `host` is what DOCKER_HOST would say."""

    host: str

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        """A client of its own for the block: docker's is not safe to share between threads."""
        client = docker.DockerClient(base_url=self.host, timeout=30)
        try:
            yield client
        finally:
            client.close()


def candidate_hosts(environ: Mapping[str, str]) -> list[str]:
    """Where an engine may listen: DOCKER_HOST alone when it is set, else the usual sockets."""
    if host := environ.get("DOCKER_HOST"):
        return [host]
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    sockets = [
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        f"{environ.get('HOME', '/root')}/.docker/run/docker.sock",
        "/run/podman/podman.sock",
    ]
    return [_LOCAL_SOCKET, *(f"unix://{path}" for path in sockets if Path(path).exists())]


def find_engine(environ: Mapping[str, str]) -> Engine | None:
    """Return the first engine that answers.

    Raises StackError where one is there that will not have us: starting a second one beside it
    would take its network away.
    """
    for host in candidate_hosts(environ):
        if _answers(host):
            return Engine(host)
        path = host.removeprefix("unix://")
        if Path(path).exists() and not os.access(path, os.R_OK | os.W_OK):
            raise StackError(
                f"The container engine's socket {path} may not be used by this account.",
                "sudo usermod -aG docker $USER, then log in again",
            )
    if named := environ.get("DOCKER_HOST"):
        raise StackError(
            f"No container engine answers at DOCKER_HOST={named}.", "start it, or unset DOCKER_HOST"
        )
    return None


def _answers(host: str) -> bool:
    if host.startswith("unix://") and not _is_listening(host.removeprefix("unix://")):
        return False
    try:
        # "auto" asks the engine for its version: it answers, or this fails.
        docker.APIClient(base_url=host, version="auto", timeout=5).close()
    except (docker.errors.DockerException, OSError):
        return False
    return True


def _is_listening(path: str) -> bool:
    # docker's client leaves a socket open that it could not connect.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def ensure_engine(user: str, log: Path, environ: Mapping[str, str] = os.environ) -> Engine:
    """Return an engine that answers, installed and started where we may and have to.

    `user` is registered as one of its users until `release_engine`; `log` is where an engine
    that we start writes.
    """
    users = EngineUsers()
    with users.lock():
        engine = find_engine(environ)
        if engine is None:
            engine = _start_engine(log)
        users.add(user)
    return engine


def release_engine(user: str) -> bool:
    """Take `user` off the register; return True when that stopped the engine."""
    users = EngineUsers()
    with users.lock():
        users.remove(user)
        process = users.engine_process()
        if process is None or users.living() or _has_running_containers():
            return False
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(30)
        users.forget_engine()
    return True


def _has_running_containers() -> bool:
    try:
        with Engine(_LOCAL_SOCKET).client() as client:
            return bool(client.containers.list())
    except (docker.errors.DockerException, OSError):
        # It does not say: then it is not ours to end.
        return True


def _start_engine(log: Path) -> Engine:
    """Start dockerd detached, with its own log, and wait until it answers."""
    if not debian.can_install():
        raise StackError("No container engine answers on this machine.", _HOW_TO_GET_ONE)
    program = _engine_program()
    if program is None:
        debian.install("docker.io")
        program = _engine_program()
    if program is None:
        raise StackError("docker.io is installed, but dockerd is not there.", _HOW_TO_GET_ONE)
    _remove_stale_pid_file()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [program, f"--host={_LOCAL_SOCKET}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            # Without our marker: the engine serves the machine and outlives this stack.
            env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "HOME": "/root"},
        )
    _started.append(process)
    EngineUsers().record_engine(process.pid)
    if not poll(lambda: process.poll() is not None or _answers(_LOCAL_SOCKET), 60, every_s=0.3):
        raise StackError("dockerd does not answer within 60 s.", f"see {log}")
    if process.poll() is not None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise StackError(f"dockerd ended with {process.returncode}:\n{tail}", f"see {log}")
    return Engine(_LOCAL_SOCKET)


def _engine_program() -> str | None:
    return shutil.which("dockerd", path=_ENGINE_PATH)


def _remove_stale_pid_file() -> None:
    # dockerd refuses to start while the number in its file belongs to any living process.
    pid = read_pid(_DOCKER_PID_FILE)
    if pid is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).name() == "dockerd":
            return
    _DOCKER_PID_FILE.unlink(missing_ok=True)


def remove_containers(engine: Engine, instance: str) -> int:
    """Remove every container of this instance, running or not; returns how many there were."""
    removed = 0
    # Twice: the engine may be creating one that a worker asked for just before its end.
    for _ in range(2):
        with engine.client() as client:
            ours = client.containers.list(
                all=True, filters={"label": f"{INSTANCE_LABEL}={instance}"}, ignore_removed=True
            )
            for container in ours:
                # NotFound, or a removal that is in progress: gone either way.
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True, v=True)
        removed += len(ours)
        time.sleep(_CREATE_S)
    return removed
