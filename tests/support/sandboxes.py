"""Both sandboxes behind one story: each program as busybox runs it and as the fake plays it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from scheduler_project.stack.image import DEMO_IMAGE
from workers.sandbox.base import BadCommand, ContainerSpec, PermissionDenied
from workers.sandbox.fake import FakeProgram

_fences = itertools.count(1)


@dataclass(frozen=True)
class Program:
    """One behaviour, twice."""

    args: tuple[str, ...]
    fake: FakeProgram


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


SILENT = Program(("true",), FakeProgram())
PRINTS_AND_FAILS = Program(
    shell("echo out; echo err >&2; exit 3"), FakeProgram(exit_code=3, output=b"out\nerr\n")
)
FOREVER = Program(("sleep", "600"), FakeProgram(duration_s=None))
HALF_A_SECOND = Program(("sleep", "0.5"), FakeProgram(duration_s=0.5))
TWO_SECONDS = Program(("sleep", "2"), FakeProgram(duration_s=2))
LEAVES_ON_TERM = Program(
    shell("trap 'exit 0' TERM; while :; do sleep 0.1; done"),
    FakeProgram(duration_s=None, term_exit_code=0),
)
IGNORES_TERM = Program(
    shell("trap '' TERM; while :; do sleep 0.1; done"),
    FakeProgram(duration_s=None, term_exit_code=None),
)
TALKATIVE = Program(
    ("seq", "100000", "199999"),
    FakeProgram(output=b"".join(b"%d\n" % number for number in range(100000, 200000))),
)
NO_SUCH_PROGRAM = Program(
    ("no-such-program",), FakeProgram(cannot_run=BadCommand("cannot execute no-such-program"))
)
NOT_EXECUTABLE = Program(
    ("/etc",), FakeProgram(cannot_run=PermissionDenied("cannot execute /etc: Permission denied"))
)
EATS_MEMORY = Program(("tail", "/dev/zero"), FakeProgram(exit_code=137, oom_killed=True))
CHILD_EATS_MEMORY = Program(
    shell("tail /dev/zero; exit 0"), FakeProgram(exit_code=0, oom_killed=True)
)

PROGRAMS = (
    SILENT,
    PRINTS_AND_FAILS,
    FOREVER,
    HALF_A_SECOND,
    TWO_SECONDS,
    LEAVES_ON_TERM,
    IGNORES_TERM,
    TALKATIVE,
    NO_SUCH_PROGRAM,
    NOT_EXECUTABLE,
    EATS_MEMORY,
    CHILD_EATS_MEMORY,
)


def container_spec(args: tuple[str, ...] | None = SILENT.args, **changes: object) -> ContainerSpec:
    """A small container for one attempt of a new run; each call has a later fence."""
    spec = ContainerSpec(
        run_id=uuid4(),
        attempt=1,
        fence=next(_fences),
        session_id=uuid4(),
        tenant_id=uuid4(),
        job_id=uuid4(),
        image=DEMO_IMAGE,
        args=args,
        memory_mb=32,
        tmp_mb=4,
        pids_limit=32,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def new_session() -> UUID:
    return uuid4()


def eventually(holds: Callable[[], bool], within_s: float = 10.0, every_s: float = 0.02) -> bool:
    """Whether it comes to hold in that time."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
