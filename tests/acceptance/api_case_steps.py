"""What `before` says in the case file, as steps: each phrase is one function."""

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler_project.stack import programs
from scheduler_project.stack.layout import MARKER
from scheduler_project.stack.ports import first_free
from tests.support.api_world import GOOD_BODY, World
from tests.support.polling import poll
from tests.support.processes import Process

Step = Callable[..., None]
_steps: list[tuple[re.Pattern[str], Step]] = []

# The phrases that need workers and containers, or a Redis that may be stopped.
NEEDS_WORKERS = (
    "job with overlap skip",
    "run printing",
    "run whose child",
    "stop Redis",
)


def take_step(world: World, phrase: str) -> None:
    """Do what the phrase says; a phrase that nobody has explained fails."""
    for pattern, step in _steps:
        if match := pattern.fullmatch(phrase):
            step(world, *match.groups())
            return
    raise AssertionError(f"no step is written for {phrase!r}")


def before(phrase: str) -> Callable[[Step], Step]:
    def register(step: Step) -> Step:
        _steps.append((re.compile(phrase), step))
        return step

    return register


# --- jobs -----------------------------------------------------------------------------------------


@before("create a good job as tenant A")
def create_good_job(world: World) -> None:
    world.use_job(world.create())


@before(r"create (\S+ \S+ \S+ \S+ \S+)(?: (\S+))?")
def create_cron_job(world: World, cron: str, zone: str | None) -> None:
    world.use_job(world.create(schedule={"cron": cron, "time_zone": zone or "UTC"}))


@before("disable")
def disable(world: World) -> None:
    _patch(world, {"enabled": False})


@before("PATCH its schedule")
def patch_schedule(world: World) -> None:
    _patch(world, {"schedule": {"cron": "0 10 * * *", "time_zone": "UTC"}})


@before("PATCH twice so that the version is 3")
def patch_twice(world: World) -> None:
    _patch(world, {"description": "second"})
    _patch(world, {"description": "third"})
    assert world.values["ver"] == "3"


@before("DELETE it")
def delete(world: World) -> None:
    assert world.ask("DELETE", f"/v1/jobs/{world.values['job']}").status == 204


def _patch(world: World, changes: dict[str, Any]) -> None:
    answer = world.ask(
        "PATCH", f"/v1/jobs/{world.values['job']}", changes, If_Match=world.values["ver"]
    )
    assert answer.status == 200, answer.text
    world.use_job(answer.body)


# --- idempotency keys -----------------------------------------------------------------------------


@before("tenant A POSTs the same body with Idempotency-Key shared-key-1")
def post_with_shared_key(world: World) -> None:
    answer = world.ask("POST", "/v1/jobs", GOOD_BODY, Idempotency_Key="shared-key-1")
    assert answer.status == 201
    world.notes["job of A"] = answer.body["job_id"]


@before(r"POST good body with (k\d)")
def post_with_key(world: World, key: str) -> None:
    answer = world.ask("POST", "/v1/jobs", GOOD_BODY, Idempotency_Key=key)
    assert answer.status == 201
    world.notes["first answer"] = answer.text
    world.use_job(answer.body)


@before(r"POST a bad body with (k\d), answered 400")
def post_bad_body(world: World, key: str) -> None:
    bad = GOOD_BODY | {"overlap": "never"}
    assert world.ask("POST", "/v1/jobs", bad, Idempotency_Key=key).status == 400


@before(r"POST with (k\d); kill the API process after the commit, before the answer")
def post_and_die(world: World, key: str) -> None:
    port = first_free(30_000)
    command = programs.api_command(port, processes=1)
    command[-1] = "tests.support.dying_wsgi:application"
    own = {MARKER: str(world.stack.directory), **world.stack.own_metrics("dying-api")}
    environment = {**world.stack.environment, **own}
    log = world.stack.directory / "dying-api.log"
    api = Process("dying-api", command, environment | {"PROCESS_ROLE": "api"}, log)
    api.start()
    try:
        poll(lambda: _answers(world, port), 20, "the second API server answers")
        headers = {
            "Authorization": f"Bearer {world.a.key}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "X-Die-Before-Answer": "1",
        }
        try:
            answer = world.send("POST", "/v1/jobs", GOOD_BODY, headers=headers, port=port)
        except OSError:
            answer = None
        assert answer is None, f"it answered {answer}"
    finally:
        api.kill()
    assert len(world.jobs_of(world.a)) == 1, "the work was not committed before the death"


def _answers(world: World, port: int) -> bool:
    try:
        return world.send("GET", "/healthz", port=port).status == 200
    except OSError:
        return False


# --- the clock ------------------------------------------------------------------------------------


@before(r"advance the clock (\d+) days")
def advance_days(world: World, days: str) -> None:
    world.advance_clock(timedelta(days=int(days)))


@before(r"clock at (\d\d:\d\d:\d\d)(, run already in the look-ahead queue)?")
def clock_at(world: World, time_of_day: str, is_planned: str | None) -> None:
    tomorrow = world.now().astimezone(UTC).date() + timedelta(days=1)
    world.move_clock(datetime.fromisoformat(f"{tomorrow}T{time_of_day}+00:00"))
    # So that only what the phrase says lies in the queue, and no catch-up of what we jumped over:
    # of one day or of two, depending on whether today's time is past already.
    with world.stack.db() as connection:
        connection.execute(
            "UPDATE schedule_cursors SET next_run_at = next_run_at + interval '1 day'"
            " * ceil(extract(epoch FROM now() - next_run_at) / 86400)"
            " WHERE job_id = %s AND next_run_at < now()",
            [world.values["job"]],
        )
    if is_planned:
        world.plan()
        planned = world.runs()
        assert [run["status"] for run in planned] == ["queued"], planned
        world.notes["planned"] = planned[0]


@before(r"clock at :59\.9")
def clock_at_end_of_minute(world: World) -> None:
    minute = world.now().replace(second=0, microsecond=0) + timedelta(minutes=2)
    world.move_clock(minute + timedelta(seconds=50))
    world.plan()
    world.move_clock(minute + timedelta(seconds=59.9))


# --- lists of runs --------------------------------------------------------------------------------


@before("insert 300 runs with equal scheduled_for, mixed statuses")
def insert_300(world: World) -> None:
    world.use_job(world.create())
    statuses = ["queued", "leased", "running", "succeeded", "failed", "cancelled"] * 50
    world.notes["runs"] = world.add_runs(world.values["job"], statuses, world.now())
    world.values["next"] = _first_page(world)["next_cursor"]


@before("100 runs; insert one after each page")
def insert_100(world: World) -> None:
    world.use_job(world.create())
    start = world.now()
    world.notes["runs"] = [
        run_id
        for n in range(50)
        for run_id in world.add_runs(
            world.values["job"], ["succeeded", "queued"], start - timedelta(minutes=n)
        )
    ]
    world.values["next"] = _first_page(world)["next_cursor"]
    world.add_runs(world.values["job"], ["queued"], start + timedelta(seconds=1))


@before("runs in each status")
def insert_each_status(world: World) -> None:
    world.use_job(world.create())
    statuses = [
        "queued",
        "leased",
        "running",
        "blocked",
        "succeeded",
        "failed",
        "cancelled",
        "skipped",
        "failed",
    ]
    world.add_runs(world.values["job"], statuses, world.now())


@before("30 runs")
def insert_30(world: World) -> None:
    world.use_job(world.create())
    statuses = ["succeeded", "failed", "skipped"] * 10
    world.notes["runs"] = world.add_runs(world.values["job"], statuses, world.now())
    other = world.create()["job_id"]
    world.notes["runs of other"] = world.add_runs(other, statuses, world.now())
    page = world.ask("GET", f"/v1/jobs/{other}/runs?limit=5").body
    world.values["cursor_of_other_job"] = page["next_cursor"]


@before("A pages through runs and keeps next_cursor")
def keep_cursor(world: World) -> None:
    job = world.create()["job_id"]
    world.notes["runs of A"] = world.add_runs(job, ["succeeded"] * 10, world.now())
    page = world.ask("GET", f"/v1/jobs/{job}/runs?limit=5").body
    world.values["cursor_of_A"] = page["next_cursor"]
    world.values["job_of_B"] = world.create(key=world.b.key)["job_id"]


def _first_page(world: World) -> dict[str, Any]:
    answer = world.ask("GET", f"/v1/jobs/{world.values['job']}/runs")
    assert answer.status == 200
    world.notes["first page"] = answer.body["runs"]
    page: dict[str, Any] = answer.body
    return page


# --- containers and faults ------------------------------------------------------------------------


@before("job with overlap skip and an active run")
def active_run(world: World) -> None:
    _sleeping_job(world, 20)
    run = world.ask("POST", f"/v1/jobs/{world.values['job']}/runs", {}).body
    poll(lambda: _status(world, run["run_id"]) == "running", 30, "the first run is active")
    world.notes["active"] = run["run_id"]


@before("job with overlap skip, image sleeps 5 s")
def sleeping_job(world: World) -> None:
    _sleeping_job(world, 5)


@before("run printing FE FF and a cut 3-byte character")
def print_broken_text(world: World) -> None:
    _run_to_end(world, "printf 'before \\376\\377 \\342\\202'")


@before(r"run printing y for (\d+) s")
def print_without_end(world: World, seconds: str) -> None:
    memory = _worker_memory(world)
    _run_to_end(world, f"timeout {seconds} yes; echo end", within_s=int(seconds) + 60)
    world.notes["memory grew by"] = _worker_memory(world) - memory


@before("run whose child is OOM-killed and whose main process exits 0")
def child_out_of_memory(world: World) -> None:
    # `tail` keeps what has no line end in memory, until there is none left.
    _run_to_end(world, "tail /dev/zero; echo main process goes on; exit 0", memory_mb=32)


@before("stop Redis")
def stop_redis(world: World) -> None:
    world.stack.redis.stop()


def _sleeping_job(world: World, seconds: int) -> None:
    task = _task(world, f"sleep {seconds}")
    world.use_job(world.create(task=task, overlap="skip", retry={"max_attempts": 1}))


def _run_to_end(world: World, script: str, *, within_s: float = 60, memory_mb: int = 64) -> None:
    task = _task(world, script, memory_mb=memory_mb)
    world.use_job(world.create(task=task, retry={"max_attempts": 1}))
    run = world.ask("POST", f"/v1/jobs/{world.values['job']}/runs", {}).body
    final = {"succeeded", "failed", "cancelled", "skipped"}
    poll(lambda: _status(world, run["run_id"]) in final, within_s, "the run has ended")
    world.notes["run"] = world.ask("GET", f"/v1/runs/{run['run_id']}").body


def _task(world: World, script: str, memory_mb: int = 64) -> dict[str, Any]:
    return {
        "image": world.stack.demo_image,
        "args": ["sh", "-c", script],
        "timeout_s": 300,
        "resources": {"cpu": 0.5, "memory_mb": memory_mb},
    }


def _status(world: World, run_id: str) -> str:
    return str(world.ask("GET", f"/v1/runs/{run_id}").body["status"])


def _worker_memory(world: World) -> int:
    """Resident memory of the worker processes, in bytes."""
    total = 0
    for worker in world.stack.workers:
        with open(f"/proc/{worker.pid}/statm", encoding="ascii") as statm:
            total += int(statm.read().split()[1]) * 4096
    return total


def fill(text: str, world: World) -> str:
    """`text` with its {placeholders} filled; `{now+60s}` is an instant by the database's clock."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "uuid":
            return str(uuid.uuid4())
        if later := re.fullmatch(r"now\+(\d+)s", name):
            moment = world.now() + timedelta(seconds=int(later[1]))
            return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return world.values[name]

    return re.sub(r"\{([a-zA-Z_]+|now\+\d+s)\}", value, text)
