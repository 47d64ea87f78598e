"""The pure parts of the sandbox: limits, the engine's words, ends, shared work, exits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runs.domain.outcome import OutcomeCode
from tests.support.sandboxes import container_spec, eventually
from workers.sandbox.base import (
    BadCommand,
    ContainerGone,
    EngineUnreachable,
    ImageNotFound,
    PermissionDenied,
    PullDenied,
    SandboxError,
)
from workers.sandbox.container_config import ImageFacts, checked_instance, container_config
from workers.sandbox.engine_errors import error_of_pull, error_of_reply, exec_failure
from workers.sandbox.engine_state import exit_of_state, parse_instant
from workers.sandbox.exits import ExitWatcher
from workers.sandbox.single_flight import SingleFlight

NEVER = "0001-01-01T00:00:00Z"


def config_of(image: ImageFacts | None = None, **changes: object) -> dict[str, Any]:
    return container_config(
        container_spec(**changes),  # type: ignore[arg-type]
        instance="test",
        node="alpha",
        runtime=None,
        node_cpus=2,
        image=image or ImageFacts(),
    )


def test_arguments_are_a_list_or_the_images_own() -> None:
    assert config_of(args=("a b", "$(id)"))["Cmd"] == ["a b", "$(id)"]
    assert "Cmd" not in config_of(args=None)
    assert "Cmd" not in config_of(args=())


def test_memory_has_no_swap_and_never_less_than_the_engine_accepts() -> None:
    host = config_of(memory_mb=1)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 6 << 20


def test_the_runtime_is_named_only_when_it_is_not_the_default() -> None:
    spec = container_spec()
    kwargs: dict[str, Any] = {
        "instance": "test", "node": "alpha", "node_cpus": 2, "image": ImageFacts()}  # fmt: skip
    assert "Runtime" not in container_config(spec, runtime=None, **kwargs)["HostConfig"]
    assert container_config(spec, runtime="runsc", **kwargs)["HostConfig"]["Runtime"] == "runsc"


def test_tmp_belongs_to_whoever_runs() -> None:
    def options(user: str, image_user: str = "") -> str:
        config = config_of(ImageFacts(user=image_user), user=user)
        return str(config["HostConfig"]["Tmpfs"]["/tmp"])

    assert "uid=65534,gid=65534" in options("65534:65534")
    assert "uid=1000,gid=1000" in options("", image_user="1000")
    assert "uid=0,gid=0" in options("", image_user="app")


def test_declared_volumes_are_memory_like_tmp() -> None:
    tmpfs = config_of(ImageFacts(volumes=("/data",)))["HostConfig"]["Tmpfs"]
    assert tmpfs["/data"] == tmpfs["/tmp"]


@pytest.mark.parametrize(
    "changes", [{"user": "root"}, {"user": "0; id"}, {"network": "host"}, {"network": "bridge"}]
)
def test_a_spec_that_cannot_be_granted_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        config_of(**changes)


@pytest.mark.parametrize("instance", ["", "-x", "a b", "a/b", "x" * 64])
def test_an_instance_that_cannot_be_in_a_name_is_refused(instance: str) -> None:
    with pytest.raises(ValueError, match="instance"):
        checked_instance(instance)


RUNC = "failed to create shim task: OCI runtime create failed: runc create failed: "


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (404, "No such image: nosuch:latest", ImageNotFound),
        (404, "No such container: 5fa1", ContainerGone),
        (400, "invalid reference format: repository name must be lowercase", ImageNotFound),
        (400, "No command specified", BadCommand),
        (400, RUNC + 'exec: "x": executable file not found in $PATH: unknown', BadCommand),
        (400, RUNC + 'exec: "/x": stat /x: no such file or directory: unknown', BadCommand),
        (400, RUNC + "exec /x: exec format error", BadCommand),
        (400, RUNC + 'exec: "/etc": permission denied: unknown', PermissionDenied),
        (500, RUNC + 'chdir to cwd ("/root") failed: permission denied', PermissionDenied),
        (400, RUNC + 'exec: "docker-init": executable file not found', EngineUnreachable),
        (400, "Unknown runtime specified runsc", EngineUnreachable),
        (500, "open /var/lib/docker/x: no such file or directory", EngineUnreachable),
        (500, "write /var/lib/docker/x: no space left on device", EngineUnreachable),
        (500, "something new", EngineUnreachable),
    ],
)
def test_the_engines_complaint_means_one_of_ours(
    status: int, message: str, error: type[SandboxError]
) -> None:
    found = error_of_reply(status, message)
    assert type(found) is error
    assert message in str(found)


@pytest.mark.parametrize(
    ("message", "error", "permanent"),
    [
        ("pull access denied for x, repository does not exist or may require 'docker login': "
         "denied: requested access to the resource is denied", PullDenied, True),
        ("unauthorized: authentication required", PullDenied, True),
        ("no basic auth credentials", PullDenied, True),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", ImageNotFound, True),
        ("no matching manifest for linux/arm64", ImageNotFound, True),
        ("dial tcp: lookup registry.example: no such host", ImageNotFound, True),
        ("dial tcp 127.0.0.1:1: connect: connection refused", ImageNotFound, False),
        ("net/http: request canceled while waiting for connection", ImageNotFound, False),
        ("received unexpected HTTP status: 503 Service Unavailable", ImageNotFound, False),
        ("toomanyrequests: rate limit exceeded", ImageNotFound, False),
    ],
)  # fmt: skip
def test_what_a_pull_failed_of(message: str, error: type[SandboxError], permanent: bool) -> None:
    found = error_of_pull("x:1", message)
    assert type(found) is error
    assert found.permanent is permanent
    assert found.verdict.counts_as_attempt is not permanent


@pytest.mark.parametrize(
    ("exit_code", "output", "error"),
    [
        (127, b"[FATAL tini (7)] exec nope failed: No such file or directory\n", BadCommand),
        (126, b"[FATAL tini (7)] exec /etc failed: Permission denied\n", PermissionDenied),
        (1, b"[FATAL tini (7)] exec ./x failed: Exec format error\n", BadCommand),
        (127, b"[FATAL tini (7)] exec a\nb failed: No such file or directory\n", BadCommand),
        (127, b"sh: nope: not found\n", None),
        (127, b"before [FATAL tini (7)] exec nope failed: No such file or directory\n", None),
        (0, b"[FATAL tini (7)] exec nope failed: No such file or directory\n", None),
        (None, b"", None),
    ],
)
def test_only_the_inits_own_words_are_a_bad_command(
    exit_code: int | None, output: bytes, error: type[SandboxError] | None
) -> None:
    found = exec_failure(exit_code, output)
    assert (type(found) if found else None) is error


def inspected(**state: object) -> dict[str, Any]:
    usual = {
        "Status": "exited",
        "ExitCode": 0,
        "OOMKilled": False,
        "Error": "",
        "StartedAt": "2026-11-29T17:51:55.703302458Z",
        "FinishedAt": "2026-11-29T17:51:56Z",
    }
    return {"State": usual | state, "Image": "sha256:abc"}


def test_a_container_that_never_started_did_not_exit_with_its_zero() -> None:
    ended = exit_of_state(inspected(StartedAt=NEVER), b"", False, engine_was_lost=False)
    assert ended.exit_code is None
    assert ended.error_code is OutcomeCode.ENGINE_UNREACHABLE


@pytest.mark.parametrize(
    ("exit_code", "lost", "blamed"),
    [(137, True, True), (143, True, True), (137, False, False), (3, True, False), (0, True, False)],
)
def test_only_a_kill_in_an_outage_is_the_engines(exit_code: int, lost: bool, blamed: bool) -> None:
    ended = exit_of_state(inspected(ExitCode=exit_code), b"", False, engine_was_lost=lost)
    assert (ended.error_code is OutcomeCode.ENGINE_UNREACHABLE) is blamed


def test_the_engines_instants_are_read_to_the_microsecond() -> None:
    assert parse_instant(NEVER) is None
    found = parse_instant("2026-11-29T17:51:55.703302458Z")
    assert found is not None
    assert found.isoformat() == "2026-11-29T17:51:55.703302+00:00"


def test_callers_at_the_same_time_share_one_piece_of_work() -> None:
    flights, gate, calls = SingleFlight(), threading.Event(), []

    def work() -> None:
        calls.append(1)
        gate.wait(10)

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(flights.do, "image", work) for _ in range(4)]
        # Other work does not wait for it.
        flights.do("another", lambda: None)
        threading.Timer(0.2, gate.set).start()
        for each in waiting:
            each.result(timeout=10)
    assert calls == [1]
    flights.do("image", lambda: calls.append(2))
    assert calls[-1] == 2


def test_a_failure_is_shared_and_not_remembered() -> None:
    flights = SingleFlight()

    def fail() -> None:
        raise ImageNotFound("no")

    for _ in range(2):
        with pytest.raises(ImageNotFound):
            flights.do("image", fail)
    flights.do("image", lambda: None)


def test_an_exit_that_the_events_lost_is_found_by_the_list() -> None:
    states = {"a": "running", "b": "created"}
    release = threading.Event()

    def silent_stream() -> Iterator[str]:
        release.wait(30)
        yield from ()

    watcher = ExitWatcher(silent_stream, lambda: states, poll_s=0.02)
    ended = {name: watcher.watch(name) for name in ("a", "b", "gone")}
    assert eventually(ended["gone"].is_set)
    assert not ended["a"].is_set()
    states["a"] = "exited"
    assert eventually(ended["a"].is_set)
    assert not ended["b"].is_set()
    watcher.close()
    release.set()


def test_an_engine_that_is_away_ends_no_container_and_is_remembered() -> None:
    def broken_stream() -> Iterator[str]:
        raise EngineUnreachable("away")

    def no_states() -> dict[str, str]:
        raise EngineUnreachable("away")

    watcher = ExitWatcher(broken_stream, no_states, poll_s=0.02)
    ended = watcher.watch("a")
    assert eventually(lambda: watcher.engine_was_lost("a"))
    assert not ended.is_set()
    watcher.close()
