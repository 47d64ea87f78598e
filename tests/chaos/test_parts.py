"""A fault that does not bite finds nothing: each means of chaos is seen to do what it says."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.clock import SkewedClock
from tests.chaos.faults import INJURIES
from tests.chaos.network import CutNetwork
from tests.chaos.plan import Kind
from tests.chaos.witness import TOLERANCE_S, Life, lives_together
from tests.support.polling import poll

LIFE = Life("c1", job="j", run="r", attempt=1, fence=1, started_at=100, ended_at=110)


def test_every_kind_has_its_injury() -> None:
    assert set(INJURIES) == set(Kind)


# --- the clock ------------------------------------------------------------------------------------

TELLS_TIME = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def test_a_skewed_clock_moves_under_a_running_process_and_only_the_wall_clock(
    tmp_path: Path,
) -> None:
    clock = SkewedClock(tmp_path, "one")
    with subprocess.Popen(
        [sys.executable, "-c", TELLS_TIME],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def off_by() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            return wall - time.time(), monotonic - time.monotonic()

        for skew_s in (0, 3_600, -86_400, 5, 0):
            clock.skew(skew_s)
            assert off_by() == pytest.approx((skew_s, 0), abs=1)
        process.kill()


# --- the network ----------------------------------------------------------------------------------

SAYS_BACK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as line:
    for word in sys.stdin:
        line.settimeout(1.5)
        try:
            line.sendall(word.encode())
            print(line.recv(100).decode().strip() or "closed", flush=True)
        except TimeoutError:
            print("nothing", flush=True)
"""


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that says back what it hears, on the machine's own loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                while data := line.recv(100):
                    line.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def test_a_cut_swallows_packets_and_closes_nothing(echo_port: int) -> None:
    with (
        closing(CutNetwork([echo_port])) as network,
        subprocess.Popen(
            [*network.prefix, sys.executable, "-c", SAYS_BACK, str(echo_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):

        def say(word: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert say("one") == "one"
        network.cut(echo_port)
        assert say("two") == "nothing"
        network.mend()
        # The kernel sends again what it got no answer to: the same connection goes on.
        poll(lambda: "three" in say("three"), 10, "the connection goes on")
        process.kill()


# --- the witness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started_at", "ended_at", "is_found"),
    [
        (105.0, 115.0, True),
        (105.0, 108.0, True),
        (105.0, None, True),
        (110.0, 120.0, False),
        # The engine tells of a death a little after it.
        (110 - TOLERANCE_S, 120.0, False),
    ],
)
def test_two_lives_at_once_are_found(
    started_at: float, ended_at: float | None, is_found: bool
) -> None:
    later = dataclasses.replace(
        LIFE, container="c2", attempt=2, started_at=started_at, ended_at=ended_at
    )
    assert bool(list(lives_together([later, LIFE], lambda life: life.run))) is is_found


def test_a_life_that_outlasts_many_is_found_with_each_of_them() -> None:
    others = [
        dataclasses.replace(LIFE, container=f"c{n}", started_at=100 + n, ended_at=102.5 + n)
        for n in (2, 5)
    ]
    pairs = list(lives_together([LIFE, *others], lambda life: life.run))
    assert [(one.container, other.container) for one, other, _ in pairs] == [
        ("c1", "c2"),
        ("c1", "c5"),
    ]


def test_lives_of_other_runs_may_be_at_once() -> None:
    other = dataclasses.replace(LIFE, container="c2", run="r2")
    assert not list(lives_together([LIFE, other], lambda life: life.run))
    assert list(lives_together([LIFE, other], lambda life: life.job))
