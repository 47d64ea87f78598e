"""The case file about the API, each case against a live server: set-up, request, what must hold.

A phrase of the file that no step or check explains fails its case.
"""

import calendar
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler_project.stack.engine import Engine
from tests.acceptance.api_case_checks import NEEDS_WORKERS as CHECKS_WITH_WORKERS
from tests.acceptance.api_case_checks import check
from tests.acceptance.api_case_steps import NEEDS_WORKERS as STEPS_WITH_WORKERS
from tests.acceptance.api_case_steps import fill, take_step
from tests.support.api_world import GOOD_BODY, Answer, World
from tests.support.database_clock import DatabaseClock
from tests.support.images import ensure_image
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template

CASES = Path(__file__).parent.parent / "cases" / "api_cases.jsonl"
# The image of the cases, told apart from the demo image: it prints what it was given.
PRINTING_IMAGE = "registry.example/acme/report:3"
_PRINT = 'echo "$# arguments"; for a in "$@"; do printf "<%s>\\n" "$a"; done; env; echo end'


def cases() -> list[Any]:
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["request"] = json.loads(_not_yet_past(json.dumps(row["request"])))
    return [pytest.param(row, id=f"{row['id']} {row['title'][:40]}") for row in rows]


def _not_yet_past(text: str) -> str:
    """The dates of the file moved to a year where they are ahead: it was written for 2027.

    To a common year, since one case wants a 29 February that does not exist.
    """
    year = 2027
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    while calendar.isleap(year) or datetime(year, 2, 28, tzinfo=UTC) < tomorrow:
        year += 1
    return text.replace("2027-", f"{year}-")


@pytest.fixture(scope="module")
def stacks(
    services_directory: Path, stack_template: Template, engine: Engine
) -> Iterator["Stacks"]:
    with ExitStack() as open_stacks:
        yield Stacks(services_directory, stack_template, engine, open_stacks)


class Stacks:
    """Two stacks, each started when the first case needs it.

    One has no workers, so that its database's clock can be moved; the other runs containers.
    """

    def __init__(
        self, directory: Path, template: Template, engine: Engine, opened: ExitStack
    ) -> None:
        self._directory, self._template, self._engine = directory, template, engine
        self._opened = opened
        self._still: tuple[StackUnderTest, DatabaseClock] | None = None
        self._running: StackUnderTest | None = None

    def still(self) -> World:
        """A world whose clock can be moved, and where nothing runs by itself."""
        if self._still is None:
            stack = self._make(schedulers=0, workers=0, warden=False)
            clock = DatabaseClock(stack.db)
            clock.install()
            stack.start()
            self._still = stack, clock
        stack, clock = self._still
        clock.reset()
        return World(stack, clock)

    def running(self) -> World:
        """A world with a scheduler and a worker."""
        if self._running is None:
            entrypoint = json.dumps(["/bin/sh", "-c", _PRINT, "printing"])
            ensure_image(
                PRINTING_IMAGE,
                changes=(f"ENTRYPOINT {entrypoint}", 'CMD ["own", "command"]'),
                docker_host=self._engine.host,
            )
            self._running = self._make(schedulers=1, workers=1, env={"WORKER_SLOTS": "4"})
            self._running.start()
        self._running.redis.start()
        self._running.revive()
        poll(lambda: self._running and self._running.accepting_workers() == 1, 30, "a worker")
        return World(self._running)

    def _make(self, **options: Any) -> StackUnderTest:
        directory = self._directory / f"stack-{uuid.uuid4().hex[:8]}"
        stack = StackUnderTest(directory, self._template, self._engine, **options)
        self._opened.enter_context(closing(stack))
        return stack


def _needs_workers(case: dict[str, Any]) -> bool:
    return any(phrase.startswith(STEPS_WITH_WORKERS) for phrase in case["before"]) or any(
        phrase in CHECKS_WITH_WORKERS for phrase in case["holds_after"]
    )


@pytest.mark.parametrize("case", cases())
def test_a_reported_case_of_the_api_has_its_right_outcome(
    case: dict[str, Any], stacks: Stacks
) -> None:
    world = stacks.running() if _needs_workers(case) else stacks.still()
    _run_case(case, world)


@pytest.mark.parametrize("time_of_day", ["00:00:00", "12:00:00", "16:33:30", "23:59:57"])
@pytest.mark.parametrize("case", [each for each in cases() if "clock at" in str(each.values)])
def test_a_case_with_a_time_of_day_has_its_outcome_whatever_time_it_is_now(
    case: dict[str, Any], time_of_day: str, stacks: Stacks
) -> None:
    world = stacks.still()
    today = world.now().astimezone(UTC).date() + timedelta(days=1)
    world.move_clock(datetime.fromisoformat(f"{today}T{time_of_day}+00:00"))
    _run_case(case, world)


def _run_case(case: dict[str, Any], world: World) -> None:
    world.case = case
    for phrase in case["before"]:
        take_step(world, phrase)
    world.notes["everything of A"] = world.everything_of(world.a)
    world.notes["jobs of A"] = world.jobs_of(world.a)
    world.answers = _send(case["request"], world)
    for answer in world.answers:
        assert answer.status in case["expect"]["status"], answer.text
        assert f"{answer.status // 100}xx" in case["expect"]["status_class"]
    for phrase in case["holds_after"]:
        check(world, phrase)


def _send(request: dict[str, Any], world: World) -> list[Answer]:
    headers = {name: fill(value, world) for name, value in request["headers"].items()}
    path = fill(request["path"], world)
    count = request.get("send_in_parallel", 1)
    return world.send_many(count, request["method"], path, _body(request, world), headers=headers)


def _body(request: dict[str, Any], world: World) -> Any:
    if "body_raw" in request:
        raw: str = request["body_raw"]
        if raw.startswith("(send "):
            raw = raw.removeprefix("(send ").removesuffix(" as raw bytes)")
            return raw.encode("ascii").replace(rb"\xff", b"\xff")
        return raw.encode("utf-8")
    body = request.get("body")
    if isinstance(body, dict) and "_generate" in body:
        return _generated(body["_generate"])
    return None if body is None else json.loads(fill(json.dumps(body), world))


def _generated(what: str) -> dict[str, Any]:
    assert what == "name of 100,000 characters", f"no body is written for {what!r}"
    return GOOD_BODY | {"name": "n" * 100_000}
