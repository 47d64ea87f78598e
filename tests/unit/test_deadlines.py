"""Deadline files: written whole, read sceptically."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from workers.deadlines import (
    WARDEN_FILE,
    WARDEN_SILENT_AFTER_S,
    boottime_s,
    read_deadlines,
    remove_deadline,
    warden_is_alive,
    write_deadline,
    write_warden_alive,
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    session = uuid4()
    written = write_deadline(
        tmp_path, session, os.getpid(), worker_deadline=20.5, warden_deadline=25.5
    )
    assert read_deadlines(tmp_path) == {session: written}
    assert (written.worker_deadline, written.warden_deadline) == (20.5, 25.5)
    assert not written.process_is_gone()


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "deadlines"
    write_deadline(directory, uuid4(), 1, worker_deadline=1, warden_deadline=2)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_directory_that_is_not_there_holds_no_session(tmp_path: Path) -> None:
    assert read_deadlines(tmp_path / "nowhere") == {}


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    session, stop = uuid4(), threading.Event()
    write_deadline(tmp_path, session, 1, worker_deadline=0, warden_deadline=0)

    def write_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write_deadline(tmp_path, session, 1, worker_deadline=number, warden_deadline=number)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        read = [read_deadlines(tmp_path) for _ in range(500)]
    finally:
        stop.set()
        writer.join()
    assert all(set(each) == {session} and each[session] is not None for each in read)


def test_no_litter_is_left_beside_the_file(tmp_path: Path) -> None:
    session = uuid4()
    for _ in range(3):
        write_deadline(tmp_path, session, 1, worker_deadline=1, warden_deadline=2)
    assert [path.name for path in tmp_path.iterdir()] == [f"{session}.json"]
    remove_deadline(tmp_path, session)
    remove_deadline(tmp_path, session)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'"text"', b'{"session": 5}', b"{}"],
)
def test_what_cannot_be_understood_is_none_and_not_an_error(tmp_path: Path, content: bytes) -> None:
    session = uuid4()
    (tmp_path / f"{session}.json").write_bytes(content)
    assert read_deadlines(tmp_path) == {session: None}


@pytest.mark.parametrize("never", ["NaN", "Infinity"])
def test_a_deadline_that_would_never_pass_is_not_understood(tmp_path: Path, never: str) -> None:
    session = uuid4()
    write_deadline(tmp_path, session, 1, worker_deadline=1, warden_deadline=float(never))
    assert read_deadlines(tmp_path) == {session: None}


def test_a_file_of_another_session_under_this_name_is_not_believed(tmp_path: Path) -> None:
    session, other = uuid4(), uuid4()
    write_deadline(tmp_path, other, 1, worker_deadline=1, warden_deadline=2)
    (tmp_path / f"{other}.json").rename(tmp_path / f"{session}.json")
    assert read_deadlines(tmp_path) == {session: None}


def test_other_files_are_nobodys_session(tmp_path: Path) -> None:
    write_warden_alive(tmp_path, node="alpha", engine_answers=True)
    (tmp_path / "readme.json").write_text("{}")
    assert read_deadlines(tmp_path) == {}


def test_a_process_whose_number_was_passed_on_is_gone(tmp_path: Path) -> None:
    session = uuid4()
    write_deadline(tmp_path, session, os.getpid(), worker_deadline=1, warden_deadline=2)
    path = tmp_path / f"{session}.json"
    data = json.loads(path.read_text())
    data["start_ticks"] -= 1
    path.write_text(json.dumps(data))
    found = read_deadlines(tmp_path)[session]
    assert found is not None
    assert found.process_is_gone()


def test_the_warden_is_alive_while_its_stamp_is_fresh(tmp_path: Path) -> None:
    write_warden_alive(tmp_path, node="alpha", engine_answers=False)
    now = boottime_s()
    assert warden_is_alive(tmp_path, now)
    assert not warden_is_alive(tmp_path, now + WARDEN_SILENT_AFTER_S + 1)


def test_a_stamp_from_before_a_reboot_is_not_alive(tmp_path: Path) -> None:
    (tmp_path / WARDEN_FILE).write_text(json.dumps({"seen_at": boottime_s() + 1000}))
    assert not warden_is_alive(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"seen_at": null}'])
def test_a_stamp_that_cannot_be_understood_is_not_alive(tmp_path: Path, content: str) -> None:
    (tmp_path / WARDEN_FILE).write_text(content)
    assert not warden_is_alive(tmp_path)
