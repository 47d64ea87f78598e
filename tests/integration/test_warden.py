"""The warden as a process, against real containers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import docker
import pytest

from scheduler_project.stack.image import DEMO_IMAGE
from tests.support.images import ensure_demo_image
from tests.support.private_engine import PrivateEngine
from tests.support.sandboxes import container_spec, eventually
from workers.deadlines import boottime_s, read_deadlines, warden_is_alive, write_deadline
from workers.processes import ProcessIdentity, identify_container_init
from workers.sandbox.base import ContainerGone, ContainerHandle
from workers.sandbox.docker import DockerSandbox
from workers.warden import Warden

ROOT = Path(__file__).parents[2]
FOREVER = ("sleep", "600")
LONG_S = 1000.0


class Node:
    """A node with a worker's sandbox and, once started, its warden's process."""

    def __init__(self, directory: Path, docker_host: str | None = None) -> None:
        self.instance = f"test-{uuid4().hex[:8]}"
        self.directory = directory
        self.docker_host = docker_host
        self.sandbox = DockerSandbox(
            instance=self.instance, node="alpha", docker_host=docker_host, call_timeout_s=10
        )
        self._warden: subprocess.Popen[bytes] | None = None

    def start_warden(self) -> subprocess.Popen[bytes]:
        """Start it and return once it makes rounds."""
        command = [sys.executable, "-m", "workers.warden", "--deadlines", str(self.directory),
                   "--node", "alpha", "--instance", self.instance]  # fmt: skip
        if self.docker_host:
            command += ["--docker-host", self.docker_host]
        self._warden = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        assert eventually(lambda: warden_is_alive(self.directory))
        return self._warden

    def session(self, ends_in_s: float, pid: int | None = None) -> UUID:
        session_id = uuid4()
        self.renew(session_id, ends_in_s, pid)
        return session_id

    def renew(self, session_id: UUID, ends_in_s: float, pid: int | None = None) -> None:
        until = boottime_s() + ends_in_s
        write_deadline(
            self.directory,
            session_id,
            pid or os.getpid(),
            worker_deadline=until,
            warden_deadline=until,
        )

    def created(self, session_id: UUID) -> ContainerHandle:
        return self.sandbox.prepare(container_spec(FOREVER, session_id=session_id))

    def running(self, session_id: UUID) -> ContainerHandle:
        handle = self.created(session_id)
        self.sandbox.start(handle)
        return handle

    def init_of(self, handle: ContainerHandle) -> ProcessIdentity:
        pid = self.sandbox.init_pid(handle.container_id)
        assert pid is not None
        init = identify_container_init(pid, handle.container_id)
        assert init is not None
        return init

    def left(self) -> list[ContainerHandle]:
        return [each.handle for each in self.sandbox.list_ours()]

    def close(self) -> None:
        if self._warden is not None:
            self._warden.kill()
            self._warden.wait()
        for container in self.sandbox.list_ours():
            self.sandbox.remove(container.handle)
        self.sandbox.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    ensure_demo_image()
    node = Node(tmp_path / "deadlines")
    yield node
    node.close()


@pytest.fixture
def engine() -> Iterator[PrivateEngine]:
    engine = PrivateEngine()
    try:
        ensure_demo_image(engine.docker_host)
        yield engine
    finally:
        engine.destroy()


def test_a_running_container_is_killed_when_its_deadline_passes_and_not_before(
    node: Node,
) -> None:
    session = node.session(LONG_S)
    handle = node.running(session)
    init = node.init_of(handle)
    node.start_warden()
    node.renew(session, ends_in_s=2.0)
    deadline = boottime_s() + 2.0
    assert eventually(lambda: not init.is_alive(), 10, every_s=0.005)
    assert -0.1 < boottime_s() - deadline < 0.5
    assert eventually(lambda: node.left() == [])


def test_a_created_container_is_removed_and_cannot_be_started_later(node: Node) -> None:
    handle = node.created(node.session(ends_in_s=0.5))
    node.start_warden()
    assert eventually(lambda: node.left() == [])
    with pytest.raises(ContainerGone):
        node.sandbox.start(handle)


def test_a_container_made_by_a_session_that_is_over_goes_at_once(node: Node) -> None:
    session = node.session(ends_in_s=-1.0)
    node.start_warden()
    node.created(session)
    began = time.monotonic()
    assert eventually(lambda: node.left() == [], every_s=0.01)
    assert time.monotonic() - began < 0.9  # the engine's event, not the round of each second


def test_fresh_deadlines_and_foreign_containers_are_left_alone(node: Node) -> None:
    other = Node(node.directory.with_name("other"))
    client = docker.APIClient(version="auto")
    foreign = client.create_container(DEMO_IMAGE, list(FOREVER))["Id"]
    try:
        client.start(foreign)
        kept = node.running(node.session(LONG_S))
        theirs = other.running(uuid4())
        doomed = node.running(node.session(ends_in_s=0.1))
        node.start_warden()
        assert eventually(lambda: doomed not in node.left())
        # Long enough for a container without a deadline file, were it ours.
        assert not eventually(
            lambda: (
                node.left() != [kept]
                or other.left() != [theirs]
                or not client.inspect_container(foreign)["State"]["Running"]
            ),
            within_s=5,
            every_s=0.2,
        )
    finally:
        client.remove_container(foreign, force=True)
        client.close()
        other.close()


def test_containers_of_a_frozen_worker_die_at_the_deadline(node: Node) -> None:
    worker = subprocess.Popen(["sleep", "600"])
    try:
        handles = [node.running(node.session(2.0, worker.pid)) for _ in range(2)]
        inits = [node.init_of(handle) for handle in handles]
        node.start_warden()
        worker.send_signal(signal.SIGSTOP)
        assert eventually(lambda: not any(init.is_alive() for init in inits))
        assert eventually(lambda: node.left() == [])
    finally:
        worker.kill()
        worker.wait()


def test_a_killed_workers_containers_die_within_seconds(node: Node) -> None:
    worker = subprocess.Popen(["sleep", "600"])
    init = node.init_of(node.running(node.session(LONG_S, worker.pid)))
    node.start_warden()
    worker.kill()
    worker.wait()
    began = time.monotonic()
    assert eventually(lambda: not init.is_alive())
    assert time.monotonic() - began < 3
    assert eventually(lambda: node.left() == [])
    assert eventually(lambda: read_deadlines(node.directory) == {})


def test_a_full_node_is_cleared_before_the_lease_can_end(node: Node) -> None:
    """Thirty-two containers, and the five seconds between the warden's deadline and the end."""
    session = node.session(LONG_S)
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(node.running, [session] * 32))
    inits = [node.init_of(handle) for handle in handles]
    node.start_warden()
    node.renew(session, ends_in_s=1.0)
    deadline = boottime_s() + 1.0
    assert eventually(lambda: not any(init.is_alive() for init in inits), every_s=0.01)
    assert boottime_s() - deadline < 2.0
    assert eventually(lambda: node.left() == [])


def test_a_paused_container_is_ended_too(node: Node) -> None:
    client = docker.APIClient(version="auto")
    handle = node.running(node.session(ends_in_s=1.5))
    init = node.init_of(handle)
    client.pause(handle.container_id)
    client.close()
    node.start_warden()
    assert eventually(lambda: node.left() == [])
    assert not init.is_alive()


def test_a_paused_container_of_a_dead_worker_is_ended_at_once(node: Node) -> None:
    worker = subprocess.Popen(["sleep", "600"])
    handle = node.running(node.session(LONG_S, worker.pid))
    init = node.init_of(handle)
    node.sandbox.pause(handle)
    node.start_warden()
    worker.kill()
    worker.wait()
    assert eventually(lambda: not init.is_alive(), within_s=3)
    assert eventually(lambda: node.left() == [])


def test_a_warden_that_was_dead_ends_what_was_paused_meanwhile(node: Node) -> None:
    first = node.start_warden()
    first.kill()
    first.wait()
    handle = node.running(node.session(ends_in_s=1.0))
    init = node.init_of(handle)
    node.sandbox.pause(handle)
    deadline = boottime_s() + 1.0
    assert eventually(lambda: boottime_s() > deadline)
    assert init.is_alive()
    node.start_warden()
    assert eventually(lambda: not init.is_alive())
    assert eventually(lambda: node.left() == [])


def test_term_ends_the_warden_in_order_and_leaves_containers_alone(node: Node) -> None:
    handle = node.running(node.session(LONG_S))
    warden = node.start_warden()
    warden.terminate()
    assert warden.wait(timeout=10) == 0
    assert node.left() == [handle]


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("fault", [PrivateEngine.kill, PrivateEngine.freeze])
def test_an_engine_that_does_not_answer_saves_no_container(
    engine: PrivateEngine, tmp_path: Path, fault: Callable[[PrivateEngine], None], paused: bool
) -> None:
    node = Node(tmp_path / "deadlines", engine.docker_host)
    try:
        session = node.session(LONG_S)
        doomed = node.running(session)
        init = node.init_of(doomed)
        kept = node.init_of(node.running(node.session(LONG_S)))
        if paused:
            node.sandbox.pause(doomed)
        node.start_warden()
        # One round at least has seen the containers while the engine could name their inits.
        stamp = (node.directory / "warden.json").read_bytes()
        assert eventually(lambda: (node.directory / "warden.json").read_bytes() != stamp)
        fault(engine)
        node.renew(session, ends_in_s=1.0)
        deadline = boottime_s() + 1.0
        assert eventually(lambda: not init.is_alive(), 20, every_s=0.01)
        # A round that asks a frozen engine takes two calls at most.
        assert boottime_s() - deadline < 5
        assert kept.is_alive()
        assert warden_is_alive(node.directory)
    finally:
        engine.thaw()
        if not engine.runs:
            engine.start()
        node.close()


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_a_worker_kills_without_the_engine_as_well(engine: PrivateEngine, paused: bool) -> None:
    sandbox = DockerSandbox(
        instance="private", node="alpha", docker_host=engine.docker_host, call_timeout_s=1
    )
    handle = sandbox.prepare(container_spec(FOREVER))
    sandbox.start(handle)
    pid = sandbox.init_pid(handle.container_id)
    assert pid is not None
    init = identify_container_init(pid, handle.container_id)
    assert init is not None
    if paused:
        sandbox.pause(handle)
    engine.freeze()
    killed = sandbox.kill(handle)
    assert killed.exit_code is None
    assert not init.is_alive()
    engine.thaw()
    sandbox.close()


def test_an_init_is_recorded_only_if_it_is_of_that_container(node: Node) -> None:
    handle = node.running(node.session(LONG_S))
    init = node.init_of(handle)
    assert identify_container_init(os.getpid(), handle.container_id) is None
    assert not ProcessIdentity(init.pid, init.start_ticks - 1).kill()
    assert init.is_alive()


def test_two_wardens_on_one_node_do_no_harm(node: Node) -> None:
    kept = node.running(node.session(LONG_S))
    node.running(node.session(ends_in_s=0.1))
    wardens = [Warden(node.sandbox, node.directory, node="alpha") for _ in range(2)]

    def cleared() -> bool:
        for warden in wardens:
            warden.round_once()
        return node.left() == [kept]

    assert eventually(cleared)
