"""Who may end an engine, where one is looked for, and what the demo image is made of."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scheduler_project.stack.engine import candidate_hosts, find_engine
from scheduler_project.stack.engine_users import EngineUsers
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.image import find_busybox, image_archive, is_static
from scheduler_project.stack.layout import CHECKOUT


@pytest.fixture
def users(tmp_path: Path) -> EngineUsers:
    """A register of its own, not the machine's."""
    users = EngineUsers()
    users.directory = tmp_path
    users.users = tmp_path / "users"
    users.engine = tmp_path / "engine.json"
    users.users.mkdir()
    return users


def test_a_user_counts_until_it_is_removed(users: EngineUsers) -> None:
    users.add("one")
    users.add("two")
    users.remove("one")
    assert users.living() == ["two"]


def test_a_user_whose_process_died_counts_no_more(users: EngineUsers) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        users.add("short-lived", process.pid)
        assert users.living() == ["short-lived"]
        process.kill()
    assert users.living() == []


def test_an_engine_that_we_did_not_start_is_not_ours_to_end(users: EngineUsers) -> None:
    assert users.engine_process() is None
    users.record_engine(os.getpid())
    process = users.engine_process()
    assert process is not None
    assert process.pid == os.getpid()


def test_docker_host_is_the_only_place_when_it_is_set() -> None:
    assert candidate_hosts({"DOCKER_HOST": "tcp://10.0.0.1:2375"}) == ["tcp://10.0.0.1:2375"]


def test_the_socket_of_podman_is_found(tmp_path: Path) -> None:
    socket = tmp_path / "podman" / "podman.sock"
    socket.parent.mkdir()
    socket.touch()
    assert f"unix://{socket}" in candidate_hosts({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_docker_host_that_does_not_answer_is_an_error_and_no_reason_to_use_another(
    tmp_path: Path,
) -> None:
    with pytest.raises(StackError, match="DOCKER_HOST"):
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"})


@pytest.fixture(scope="module")
def busybox() -> Path:
    return find_busybox(CHECKOUT / ".local" / "busybox")


def test_the_image_is_the_same_bytes_each_time_and_has_what_jobs_call(busybox: Path) -> None:
    archive = image_archive(busybox)
    assert image_archive(busybox) == archive
    with tarfile.open(fileobj=io.BytesIO(archive)) as image:
        names = set(image.getnames())
    wanted = {"sh", "sleep", "env", "echo", "cat", "yes", "head", "true", "false", "id", "wget"}
    assert {f"bin/{word}" for word in wanted} <= names


def test_a_program_that_needs_a_linker_is_no_busybox_for_an_empty_image(busybox: Path) -> None:
    assert is_static(busybox.read_bytes())
    assert not is_static(Path(sys.executable).resolve().read_bytes())
    assert not is_static(b"#!/bin/sh\n")
