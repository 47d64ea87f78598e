"""Pulling from a registry that refuses, knows nothing, or is asked by many at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from runs.domain.outcome import OutcomeCode
from tests.support.sandboxes import container_spec
from workers.sandbox.base import ImageNotFound, PullDenied, SandboxError
from workers.sandbox.docker import DockerSandbox


class Registry:
    """A registry on the loopback that answers every question for an image in one way."""

    def __init__(self, status: int, code: str, *, wants_login: bool = False) -> None:
        self.requests: list[str] = []
        self.logins: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def _answer(self) -> None:
                authorization = self.headers.get("Authorization")
                if authorization is not None:
                    registry.logins.append(authorization)
                if self.path == "/v2/":
                    self._send(401 if wants_login and authorization is None else 200, {})
                    return
                registry.requests.append(self.path)
                registry.gate.wait(10)
                self._send(status, {"errors": [{"code": code, "message": code.lower()}]})

            def _send(self, status: int, body: object) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="registry"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


MakeRegistry = Callable[..., Registry]


@pytest.fixture
def make_registry() -> Iterator[MakeRegistry]:
    made: list[Registry] = []

    def make(status: int, code: str, *, wants_login: bool = False) -> Registry:
        made.append(Registry(status, code, wants_login=wants_login))
        return made[-1]

    yield make
    for registry in made:
        registry.close()


@pytest.fixture
def sandbox() -> Iterator[DockerSandbox]:
    sandbox = DockerSandbox(instance=f"test-{uuid4().hex[:8]}", node="alpha")
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "DENIED", PullDenied),
        (401, "UNAUTHORIZED", PullDenied),
        (404, "MANIFEST_UNKNOWN", ImageNotFound),
        (404, "NAME_UNKNOWN", ImageNotFound),
    ],
)
def test_what_the_registry_says_is_a_permanent_error(
    make_registry: MakeRegistry,
    sandbox: DockerSandbox,
    status: int,
    code: str,
    error: type[SandboxError],
) -> None:
    registry = make_registry(status, code)
    with pytest.raises(error) as refused:
        sandbox.prepare(container_spec(image=f"{registry.address}/acme/report:3"))
    assert refused.value.permanent


def test_a_registry_in_trouble_is_not_permanent(
    make_registry: MakeRegistry, sandbox: DockerSandbox
) -> None:
    registry = make_registry(503, "UNAVAILABLE")
    with pytest.raises(ImageNotFound) as failed:
        sandbox.prepare(container_spec(image=f"{registry.address}/acme/report:3"))
    assert failed.value.outcome is OutcomeCode.IMAGE_NOT_FOUND
    assert not failed.value.permanent


def test_runs_that_need_one_image_at_once_make_one_pull(
    make_registry: MakeRegistry, sandbox: DockerSandbox
) -> None:
    registry = make_registry(404, "MANIFEST_UNKNOWN")
    alone = f"{registry.address}/acme/alone:1"
    with pytest.raises(ImageNotFound):
        sandbox.prepare(container_spec(image=alone))
    requests_of_one_pull = len(registry.requests)
    registry.gate.clear()
    together = f"{registry.address}/acme/together:1"
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(sandbox.prepare, container_spec(image=together)) for _ in range(8)]
        threading.Timer(1.0, registry.gate.set).start()
        errors = [run.exception(timeout=30) for run in runs]
    assert all(isinstance(error, ImageNotFound) for error in errors)
    assert len(registry.requests) == 2 * requests_of_one_pull


def test_no_credentials_of_this_machine_go_with_a_pull(
    make_registry: MakeRegistry,
    sandbox: DockerSandbox,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = make_registry(404, "MANIFEST_UNKNOWN", wants_login=True)
    home = tmp_path_factory.mktemp("docker-config")
    login = {"auths": {registry.address: {"auth": "b3BlcmF0b3I6c2VjcmV0"}}}
    (home / "config.json").write_text(json.dumps(login))
    monkeypatch.setenv("DOCKER_CONFIG", str(home))
    with pytest.raises(PullDenied):
        sandbox.prepare(container_spec(image=f"{registry.address}/acme/report:3"))
    assert registry.logins == []
