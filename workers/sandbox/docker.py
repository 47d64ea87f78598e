"""The sandbox on a Docker-compatible engine; the one file that imports `docker`.

Owns the rule that every call is bounded in time and that its failure is translated here: no
caller ever sees an HTTP status, a requests exception or a time-out of the client library.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions
from docker.transport import unixconn
from docker.utils import kwargs_from_env

from workers.sandbox.base import ContainerGone, EngineUnreachable, ImageNotFound, SandboxError
from workers.sandbox.engine_api import Conflict
from workers.sandbox.engine_errors import error_of_pull, error_of_reply
from workers.sandbox.engine_sandbox import DEFAULT_OUTPUT_BYTES, RUNTIMES, EngineSandbox

# A start takes 0.2 s, 2 s with sixteen at once on two cores; what takes ten times that hangs.
CALL_TIMEOUT_S = 20.0
# An engine answers a ping at once however much it has to start; in this time a worker that it has
# left alone must know, for runs go on being placed on it until then.
PING_TIMEOUT_S = 3.0
# Between two signs of progress of a pull, and for all of it.
PULL_SILENCE_S = 60.0
PULL_TIMEOUT_S = 300.0

_CONFLICT = 409


class _ClosingUnixConnection(unixconn.UnixHTTPConnection):  # type: ignore[misc]  # untyped
    """The library's connection, which forgets to close its socket when nobody listens there.

    A worker asks an absent engine each second: each time a descriptor stayed open until the
    garbage collector came by.
    """

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self.unix_socket)
        except OSError:
            self.sock.close()
            raise


# The pool looks its connection class up in the module.
unixconn.UnixHTTPConnection = _ClosingUnixConnection


class DockerSandbox(EngineSandbox):
    """A node's Docker engine as one instance of the product sees it.

    Implements `Sandbox` and `NodeEngine`. `docker_host` is the engine's URL; None takes
    `DOCKER_HOST`, else the local socket. The other arguments are `EngineSandbox`'s.
    """

    def __init__(
        self,
        *,
        instance: str,
        node: str,
        docker_host: str | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
        pull: str = "missing",
        runtimes: Mapping[str, str | None] = RUNTIMES,
    ) -> None:
        super().__init__(
            DockerEngine(docker_host, call_timeout_s),
            instance=instance,
            node=node,
            output_bytes=output_bytes,
            pull=pull,
            runtimes=runtimes,
        )


class DockerEngine:
    """`EngineApi` over docker-py's low-level client, one client per thread: it isn't shareable."""

    def __init__(self, docker_host: str | None, call_timeout_s: float) -> None:
        environment = dict(os.environ)
        if docker_host:
            environment["DOCKER_HOST"] = docker_host
        self._address = kwargs_from_env(environment=environment)
        self._timeout_s = call_timeout_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._version: str | None = None
        self._cpus: int | None = None
        self._clients: list[docker.APIClient] = []
        self._streams: list[Any] = []
        self._closed = False

    def inspect_image(self, image: str) -> dict[str, Any]:
        with self._call() as client:
            return dict(client.inspect_image(image))

    def pull(self, image: str) -> None:
        deadline = time.monotonic() + PULL_TIMEOUT_S
        with _translated(), self._fresh_client(PULL_SILENCE_S) as client:
            try:
                # An empty authorisation: otherwise the library sends the credentials of whoever
                # logged in on this machine, for any tenant's image.
                progress = client.pull(image, stream=True, decode=True, auth_config={})
                for step in progress:
                    if "error" in step:
                        raise error_of_pull(image, step["error"])
                    if time.monotonic() >= deadline:
                        raise ImageNotFound(
                            f"image {image}: the pull took more than {PULL_TIMEOUT_S:.0f} s",
                            permanent=False,
                        )
            except docker.errors.APIError as error:
                raise error_of_pull(image, str(error.explanation or error)) from error

    def create(self, config: dict[str, Any], name: str) -> str:
        with self._call() as client:
            return str(client.create_container_from_config(config, name)["Id"])

    def start(self, container: str) -> None:
        with self._call() as client:
            client.start(container)

    def signal(self, container: str, name: str) -> None:
        with self._call() as client:
            client.kill(container, name)

    def pause(self, container: str) -> None:
        with self._call() as client:
            client.pause(container)

    def unpause(self, container: str) -> None:
        with self._call() as client:
            client.unpause(container)

    def remove(self, container: str) -> None:
        with self._call() as client:
            client.remove_container(container, force=True, v=True)

    def inspect(self, container: str) -> dict[str, Any] | None:
        try:
            with self._call() as client:
                return dict(client.inspect_container(container))
        except ContainerGone:
            return None

    def output(self, container: str, lines: int) -> bytes:
        # Not as a stream: for streams the library switches the time-out off. The log's files
        # bound the answer.
        with self._call() as client:
            return bytes(client.logs(container, stdout=True, stderr=True, tail=lines))

    def containers(self, labels: list[str]) -> list[dict[str, Any]]:
        with self._call() as client:
            return list(client.containers(all=True, filters={"label": labels}))

    def events(self, labels: list[str], names: list[str]) -> Iterator[dict[str, Any]]:
        filters = {"type": "container", "label": labels, "event": names}
        with _translated(), self._fresh_client(self._timeout_s) as client:
            stream = client.events(filters=filters, decode=True)
            with self._lock:
                self._streams.append(stream)
                closed = self._closed
            try:
                if not closed:
                    yield from stream
            finally:
                with self._lock:
                    self._streams.remove(stream)

    def cpus(self) -> int:
        if self._cpus is None:
            with self._call() as client:
                self._cpus = int(client.info()["NCPU"])
        return self._cpus

    def ping(self) -> bool:
        try:
            with _translated(), self._fresh_client(min(self._timeout_s, PING_TIMEOUT_S)) as client:
                return bool(client.ping())
        except SandboxError:
            return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            streams, clients = list(self._streams), list(self._clients)
        for stream in streams:
            # A stream that ends by itself meanwhile has no socket left to close.
            with suppress(OSError, AttributeError):
                stream.close()
        for client in clients:
            client.close()

    @contextmanager
    def _call(self) -> Iterator[docker.APIClient]:
        """This thread's client, with failures translated."""
        with _translated():
            if not hasattr(self._local, "client"):
                client = self._connect(self._timeout_s)
                with self._lock:
                    self._clients.append(client)
                self._local.client = client
            yield self._local.client

    @contextmanager
    def _fresh_client(self, timeout_s: float) -> Iterator[docker.APIClient]:
        client = self._connect(timeout_s)
        try:
            yield client
        finally:
            client.close()

    def _connect(self, timeout_s: float) -> docker.APIClient:
        # Asking for the version is a call of its own: once per process is enough.
        client = docker.APIClient(
            version=self._version or "auto", timeout=timeout_s, **self._address
        )
        self._version = client.api_version
        return client


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except docker.errors.APIError as error:
        status = error.response.status_code
        message = str(error.explanation or error)
        if status == _CONFLICT:
            raise Conflict(message) from error
        raise error_of_reply(status, message) from error
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise EngineUnreachable(f"the container engine does not answer: {error}") from error
