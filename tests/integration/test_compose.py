"""docker-compose.yml as Compose itself reads it: the same stack, each part with a health check."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_project.health import ROLES
from scheduler_project.stack import debian, programs
from scheduler_project.stack.layout import CHECKOUT

_NEEDED = {
    "SECRET_KEY": "secret",
    "POSTGRES_PASSWORD": "postgres-password",
    "REDIS_PASSWORD": "redis-password",
    "FLOWER_PASSWORD": "flower-password",
}
_SOCKET = "/var/run/docker.sock"
_SCHEDULERS = {"scheduler-1", "scheduler-2"}
_WORKERS = {"worker-1", "worker-2"}


def _compose_command() -> list[str]:
    """Compose as a plugin, or as Debian's program, which is installed when there is neither."""
    docker = shutil.which("docker")
    if docker and _succeeds([docker, "compose", "version"]):
        return [docker, "compose"]
    if shutil.which("docker-compose") is None:
        debian.install("docker-compose")
    return ["docker-compose"]


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _config(directory: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """What Compose makes of the file, outside of the checkout so that no .env is read."""
    return subprocess.run(
        [
            *_compose_command(),
            "--file",
            str(CHECKOUT / "docker-compose.yml"),
            "--project-directory",
            str(directory),
            "config",
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(directory), **environment},
        cwd=directory,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services as resolved by Compose."""
    done = _config(tmp_path_factory.mktemp("compose"), _NEEDED)
    assert done.returncode == 0, done.stderr
    resolved: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return resolved


def test_the_file_describes_the_whole_stack(services: dict[str, Any]) -> None:
    others = {"postgres", "redis", "migrate", "api", "warden", "notifier", "flower"}
    assert set(services) == others | _SCHEDULERS | _WORKERS


def test_every_service_has_a_health_check(services: dict[str, Any]) -> None:
    missing = [name for name, service in services.items() if not _check_of(service)]
    assert not missing


def test_our_health_checks_ask_for_roles_that_exist(services: dict[str, Any]) -> None:
    ours = [
        words[-1]
        for service in services.values()
        if "scheduler_project.health" in (words := _check_of(service))
    ]
    assert len(ours) == 8
    assert set(ours) == set(ROLES)


def _check_of(service: dict[str, Any]) -> list[str]:
    return list(service.get("healthcheck", {}).get("test", []))


def test_only_workers_and_the_warden_reach_the_engine(services: dict[str, Any]) -> None:
    with_socket = {name for name, service in services.items() if _SOCKET in str(service)}
    assert with_socket == _WORKERS | {"warden"}


def test_nobody_starts_before_the_tables_are_there(services: dict[str, Any]) -> None:
    for name in {"api", "warden", "notifier", "flower"} | _SCHEDULERS | _WORKERS:
        condition = services[name]["depends_on"]["migrate"]["condition"]
        assert condition == "service_completed_successfully", name


def test_the_commands_are_those_of_make_up(services: dict[str, Any]) -> None:
    scheduler = programs.scheduler_command()[2:]
    assert [_words(services[name]) for name in _SCHEDULERS] == [scheduler] * 2
    assert _words(services["notifier"]) == programs.notifier_command()[2:]
    worker = programs.worker_command("worker", programs.DEFAULT_SLOTS, programs.DEFAULT_SLOTS)[2:]
    assert [_words(services[name]) for name in _WORKERS] == [worker] * 2


def _words(service: dict[str, Any]) -> list[str]:
    command = service["command"]
    words: list[str] = command.split() if isinstance(command, str) else command
    return words


@pytest.mark.parametrize("name", sorted(_NEEDED))
def test_a_missing_secret_stops_compose_with_its_name(name: str, tmp_path: Path) -> None:
    done = _config(tmp_path, {key: value for key, value in _NEEDED.items() if key != name})
    assert done.returncode != 0
    assert name in done.stderr
