"""The warden's rules, round by round, on a pretended engine and a clock that we turn."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support.sandboxes import FOREVER, HALF_A_SECOND, container_spec
from workers.deadlines import read_deadlines, warden_is_alive, write_deadline
from workers.sandbox.base import ContainerHandle
from workers.sandbox.fake import FakeEngine, FakeSandbox
from workers.warden import EXITED_KEEP_S, FILE_KEEP_S, NO_FILE_GRACE_S, Warden

# Some time after boot.
NOON_S = 50_000.0


@dataclass
class Node:
    """One machine: its engine, its worker's sandbox, its warden and the time of day."""

    sandbox: FakeSandbox
    warden: Warden
    directory: Path
    now: float = NOON_S

    def session(self, *, ends_in_s: float, pid: int | None = None) -> UUID:
        session_id = uuid4()
        self.renew(session_id, ends_in_s=ends_in_s, pid=pid)
        return session_id

    def renew(self, session_id: UUID, *, ends_in_s: float, pid: int | None = None) -> None:
        write_deadline(
            self.directory,
            session_id,
            pid or os.getpid(),
            worker_deadline=self.now + ends_in_s - 5,
            warden_deadline=self.now + ends_in_s,
        )

    def created(self, session_id: UUID) -> ContainerHandle:
        return self.sandbox.prepare(container_spec(FOREVER.args, session_id=session_id))

    def running(self, session_id: UUID) -> ContainerHandle:
        handle = self.created(session_id)
        self.sandbox.start(handle)
        return handle

    def left(self) -> list[ContainerHandle]:
        return [each.handle for each in self.sandbox.list_ours()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    engine = FakeEngine()
    engine.programs = {each.args: each.fake for each in (FOREVER, HALF_A_SECOND)}
    sandbox = FakeSandbox(engine)
    directory = tmp_path / "deadlines"
    node = Node(sandbox, None, directory)  # type: ignore[arg-type]
    node.warden = Warden(sandbox, directory, node="node", now=lambda: node.now)
    return node


def test_containers_of_a_session_in_time_are_left_alone(node: Node) -> None:
    session = node.session(ends_in_s=25)
    handles = [node.running(session), node.created(session)]
    node.now += 24.9
    assert not node.warden.round_once().did_something
    assert node.left() == handles


def test_running_and_created_containers_go_when_the_deadline_passes(node: Node) -> None:
    late, fresh = node.session(ends_in_s=25), node.session(ends_in_s=50)
    node.running(late)
    node.created(late)
    kept = node.running(fresh)
    node.now += 25
    assert node.warden.round_once().removed == 2
    assert node.left() == [kept]


def test_a_renewed_deadline_counts_from_its_renewal(node: Node) -> None:
    session = node.session(ends_in_s=25)
    handle = node.running(session)
    node.now += 20
    node.renew(session, ends_in_s=25)
    node.now += 20
    node.warden.round_once()
    assert node.left() == [handle]


def test_a_container_without_a_file_has_a_short_grace_and_then_goes(node: Node) -> None:
    node.running(uuid4())
    node.warden.round_once()
    node.now += NO_FILE_GRACE_S - 0.1
    node.warden.round_once()
    assert len(node.left()) == 1
    node.now += 0.1
    node.warden.round_once()
    assert node.left() == []


def test_a_file_that_cannot_be_read_neither_extends_nor_ends_the_deadline(node: Node) -> None:
    session = node.session(ends_in_s=25)
    handle = node.running(session)
    node.warden.round_once()
    (node.directory / f"{session}.json").write_text('{"session": ')
    node.now += 24
    node.warden.round_once()
    assert node.left() == [handle]
    node.now += 1
    node.warden.round_once()
    assert node.left() == []


def test_a_file_that_was_never_readable_is_like_none(node: Node) -> None:
    session = uuid4()
    node.directory.mkdir()
    (node.directory / f"{session}.json").write_bytes(b"\xff")
    node.running(session)
    node.warden.round_once()
    node.now += NO_FILE_GRACE_S
    node.warden.round_once()
    assert node.left() == []


def test_a_session_that_took_its_file_away_keeps_nothing(node: Node) -> None:
    session = node.session(ends_in_s=1000)
    node.running(session)
    node.warden.round_once()
    (node.directory / f"{session}.json").unlink()
    node.now += NO_FILE_GRACE_S
    node.warden.round_once()
    assert node.left() == []


def test_containers_of_a_dead_process_need_not_wait_for_its_deadline(node: Node) -> None:
    worker = subprocess.Popen(["sleep", "60"])
    session = node.session(ends_in_s=1000, pid=worker.pid)
    handle = node.running(session)
    node.warden.round_once()
    assert node.left() == [handle]
    worker.kill()
    worker.wait()
    node.warden.round_once()
    assert node.left() == []


def test_a_process_of_another_namespace_is_not_taken_for_dead(node: Node) -> None:
    session = node.session(ends_in_s=1000)
    path = node.directory / f"{session}.json"
    path.write_text(path.read_text().replace("pid:[", "pid:[9").replace(
        f'"pid": {os.getpid()}', '"pid": 1999999999'))  # fmt: skip
    handle = node.running(session)
    node.warden.round_once()
    assert node.left() == [handle]


def test_a_container_that_ended_by_itself_waits_for_its_frozen_worker(node: Node) -> None:
    session = node.session(ends_in_s=25)
    handle = node.running(session)
    node.sandbox.finish(handle, exit_code=0)
    node.now += 25
    node.warden.round_once()
    assert node.left() == [handle]
    node.now += EXITED_KEEP_S
    node.warden.round_once()
    assert node.left() == []


def test_other_instances_and_nodes_are_not_ours(node: Node) -> None:
    strangers = [
        FakeSandbox(node.sandbox.engine, instance="other"),
        FakeSandbox(node.sandbox.engine, node="other"),
    ]
    for stranger in strangers:
        stranger.start(stranger.prepare(container_spec(FOREVER.args)))
    node.warden.round_once()
    node.now += 1000
    node.warden.round_once()
    assert [len(stranger.list_ours()) for stranger in strangers] == [1, 1]


def test_files_without_containers_are_cleared_long_after_their_deadline(node: Node) -> None:
    session = node.session(ends_in_s=25)
    node.now += 25 + FILE_KEEP_S - 1
    node.warden.round_once()
    assert set(read_deadlines(node.directory)) == {session}
    node.now += 1
    assert node.warden.round_once().files_removed == 1
    assert read_deadlines(node.directory) == {}


def test_a_dead_sessions_file_stays_while_it_has_a_container(node: Node) -> None:
    session = node.session(ends_in_s=25)
    node.sandbox.finish(node.running(session))
    node.now += 25 + FILE_KEEP_S
    node.warden.round_once()
    assert set(read_deadlines(node.directory)) == {session}


def test_a_silent_engine_stops_no_round_and_is_caught_up_with_later(node: Node) -> None:
    session = node.session(ends_in_s=25)
    node.running(session)
    node.now += 25
    node.sandbox.engine.silent = True
    assert not node.warden.round_once().engine_answers
    assert warden_is_alive(node.directory)
    node.sandbox.engine.silent = False
    assert node.warden.round_once().removed == 1


def test_each_round_says_that_the_warden_lives(node: Node) -> None:
    assert not warden_is_alive(node.directory)
    node.warden.round_once()
    assert warden_is_alive(node.directory)
