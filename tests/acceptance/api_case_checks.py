"""What `holds_after` says in the case file, as checks: each sentence is one function."""

import html
import re
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx

from tests.acceptance.api_case_steps import fill
from tests.support.api_world import Answer, World
from tests.support.polling import poll

Check = Callable[[World], None]
_checks: dict[str, Check] = {}

GUIDE = Path(__file__).parent.parent.parent / "docs" / "api.md"
FINAL = {"succeeded", "failed", "cancelled", "skipped"}

# The sentences that only workers and containers can prove.
NEEDS_WORKERS = {
    "argv is exactly these items; no shell takes part",
    "the image's own command runs",
    "argv keeps both empty items",
    "values arrive unchanged",
    "the same reference is used for the pull",
    "inside the container the true run id and attempt are seen",
}


def check(world: World, sentence: str) -> None:
    """Check what the sentence says; one that nobody has explained fails."""
    assert sentence in _checks, f"no check is written for {sentence!r}"
    _checks[sentence](world)


def holds(*sentences: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        _checks.update(dict.fromkeys(sentences, function))
        return function

    return register


def documented(*words: str) -> None:
    """The guide says so, in these words."""
    guide = " ".join(GUIDE.read_text(encoding="utf-8").split())
    for text in words:
        assert text in guide, f"docs/api.md does not say: {text}"


# --- every answer ---------------------------------------------------------------------------------


@holds("no 5xx, no traceback or SQL text in the answer", "no 5xx")
def no_secrets(world: World) -> None:
    for answer in world.answers:
        assert answer.status < 500
        for secret in ("Traceback", 'File "', "psycopg", "SELECT ", "INSERT ", "django."):
            assert secret not in answer.text


@holds("the error names the offending field")
def field_is_named(world: World) -> None:
    prefix = {"at": "schedule.at", "timeout_s": "task.timeout_s", "image": "task.image"}
    prefix |= {"args": "task.args"}
    about = world.case["title"].partition(":")[0]
    fields = [error["field"] for error in world.answer.body["errors"]]
    assert any(field.startswith(prefix.get(about, about)) for field in fields), fields


@holds("no job row is added for the tenant")
def no_row_added(world: World) -> None:
    assert world.jobs_of(world.a) == world.notes["jobs of A"]


@holds("nothing was pulled or started")
def nothing_started(world: World) -> None:
    # A worker pulls only for a run, and there is none.
    assert world.rows("SELECT FROM runs WHERE tenant_id = %s", world.a.tenant_id) == []


@holds("same body as for an id that does not exist")
def looks_like_nothing(world: World) -> None:
    request = world.case["request"]
    path = request["path"].replace("{job}", str(uuid.uuid4()))
    headers = {name: fill(value, world) for name, value in request["headers"].items()}
    nothing = world.send(request["method"], path, request.get("body"), headers=headers)
    assert nothing.status == world.answer.status
    assert _without_request_id(nothing) == _without_request_id(world.answer)


def _without_request_id(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.body.items() if name != "request_id"}


@holds("tenant A's job, version and runs unchanged", "job unchanged")
def nothing_changed(world: World) -> None:
    assert world.everything_of(world.a) == world.notes["everything of A"]


@holds("405 lists Allow")
def allow_is_listed(world: World) -> None:
    assert world.answer.status == 405
    assert set(world.answer.headers["Allow"].split(", ")) == {"GET", "PATCH", "DELETE", "HEAD"}


# --- created jobs ---------------------------------------------------------------------------------


@holds("body has job_id and next_run_at")
def has_id_and_time(world: World) -> None:
    assert uuid.UUID(world.answer.body["job_id"])
    assert world.answer.body["next_run_at"]


@holds("next_run_at is the next weekday 03:30:00Z")
def next_weekday(world: World) -> None:
    # 09:00 in Kolkata is 03:30 in UTC, on the same weekday, all year.
    expected = _next_weekday(world.now(), 9, "Asia/Kolkata")
    assert _instant(world.answer.body["next_run_at"]) == expected
    assert world.answer.body["next_run_at"].endswith("T03:30:00Z")


@holds("GET of the job shows the cron text and zone unchanged and five next times")
def shown_unchanged(world: World) -> None:
    job = world.job(world.answer.body["job_id"])
    assert job["schedule"] == {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"}
    assert len(job["next_runs"]) == 5
    assert job["next_runs"][0] == job["next_run_at"]
    assert job["next_runs"] == sorted(set(job["next_runs"]))


@holds("next_run_at equals at")
def next_is_at(world: World) -> None:
    assert world.answer.body["next_run_at"] == world.answer.body["schedule"]["at"]


@holds("exactly one run is made; afterwards next_run_at is null")
def one_run(world: World) -> None:
    _one_run_at(world, world.answer.body["job_id"], world.answer.body["next_run_at"])


def _one_run_at(world: World, job_id: str, at: str) -> None:
    for seconds in (-1, 1, 3_600):  # just before its time, just after, much later
        world.move_clock(_instant(at) + timedelta(seconds=seconds))
        world.plan()
        assert [run["scheduled_for"] for run in world.runs(job_id)] == [at]
    assert world.job(job_id)["next_run_at"] is None


@holds(
    "either refused, or the same instant is stored, shown and fired (not earlier than at);"
    " documented"
)
def fraction_is_kept(world: World) -> None:
    documented("`at` is kept to the millisecond")
    assert world.answer.status == 201
    at = world.case["request"]["body"]["schedule"]["at"]
    assert at.endswith(".750Z")
    assert world.answer.body["schedule"]["at"] == world.answer.body["next_run_at"] == at
    # A day with partitions, the same fraction: the run is for that very instant.
    at = f"{world.now().date() + timedelta(days=1)}T15:00:00.750Z"
    job = world.create(schedule={"at": at})
    _one_run_at(world, job["job_id"], at)
    ((due_at,),) = world.rows("SELECT due_at FROM runs WHERE job_id = %s", job["job_id"])
    assert due_at == _instant(at)


@holds("RFC 3339 allows it; if taken, next_run_at is 2027-03-01T15:00:00Z")
def lower_case_is_read(world: World) -> None:
    if world.answer.status == 201:
        sent = world.case["request"]["body"]["schedule"]["at"]
        assert world.answer.body["next_run_at"] == sent.upper()


@holds("if defaults exist they are shown in GET")
def defaults_are_shown(world: World) -> None:
    job = world.job(world.answer.body["job_id"])
    assert job["overlap"] == "skip"
    assert job["enabled"] is True
    assert job["queue_limit"] == 10
    assert job["retry"] == {
        "max_attempts": 1,
        "backoff": "exponential",
        "base_s": 5,
        "max_s": 3600,
        "jitter": "full",
        "exit_codes": {"fail": [], "ignore": []},
    }
    assert job["task"]["env"] == {}
    assert job["task"]["resources"] == {"cpu": 1, "memory_mb": 512}


@holds("name is returned byte for byte")
def name_is_kept(world: World) -> None:
    sent = world.case["request"]["body"]["name"]
    assert world.answer.body["name"].encode() == sent.encode()
    assert world.job(world.answer.body["job_id"])["name"].encode() == sent.encode()


@holds("the operators' page shows it")
def operators_see_it(world: World) -> None:
    sent = world.case["request"]["body"]["name"]
    page = _admin_page(world, f"/admin/jobs/job/?q={world.answer.body['job_id']}")
    assert html.escape(sent) in page


def _admin_page(world: World, path: str) -> str:
    """A page of the operators' console, by somebody who is logged in."""
    base = str(world.stack.client.base_url)
    with httpx.Client(base_url=base, trust_env=False, follow_redirects=True) as browser:
        form = browser.get("/admin/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
        assert token is not None
        fields = {"username": "admin", "password": "only-for-tests", "next": path}
        answer = browser.post(
            "/admin/login/",
            data=fields | {"csrfmiddlewaretoken": token[1]},
            headers={"Referer": f"{base}/admin/login/"},
        )
    assert answer.status_code == 200, answer.text[:500]
    assert answer.url.path == path.partition("?")[0], f"not logged in: {answer.url}"
    return answer.text


@holds("accepted")
def is_accepted(world: World) -> None:
    sent = world.case["request"]["body"]["task"]["image"]
    assert world.job(world.answer.body["job_id"])["task"]["image"] == sent


@holds("documented; if taken, at stays 15:00:00Z")
def at_with_zone(world: World) -> None:
    documented("`time_zone` belongs to `cron` alone")
    assert world.answer.status == 400
    assert [error["field"] for error in world.answer.body["errors"]] == ["schedule.time_zone"]


@holds("stored values are those of one clear reading; the same on every server")
def one_reading(world: World) -> None:
    documented("a key given twice")
    assert world.answer.status == 400
    assert world.answer.body["errors"][0]["code"] == "duplicate_key"
    no_row_added(world)


# --- what a container gets ------------------------------------------------------------------------


@holds("argv is exactly these items; no shell takes part", "argv keeps both empty items")
def argv_is_exact(world: World) -> None:
    sent = world.case["request"]["body"]["task"]["args"]
    printed = _printed_by(world, world.answer.body["job_id"])
    expected = [f"{len(sent)} arguments", *(f"<{arg}>" for arg in sent)]
    assert printed.splitlines()[: len(expected)] == expected


@holds("the image's own command runs")
def own_command(world: World) -> None:
    printed = _printed_by(world, world.answer.body["job_id"])
    assert printed.startswith("2 arguments\n<own>\n<command>\n")


@holds("values arrive unchanged")
def env_is_exact(world: World) -> None:
    printed = _printed_by(world, world.answer.body["job_id"])
    for name, value in world.case["request"]["body"]["task"]["env"].items():
        assert f"\n{name}={value}\n" in printed


@holds("inside the container the true run id and attempt are seen")
def our_names_are_ours(world: World) -> None:
    documented("`RUN_ID`, `JOB_ID`, `ATTEMPT`, `SCHEDULED_FOR` and `FENCE` are set by us")
    assert world.answer.status == 400
    codes = {error["field"]: error["code"] for error in world.answer.body["errors"]}
    assert codes == dict.fromkeys(["task.env.RUN_ID", "task.env.ATTEMPT"], "reserved_env_name")
    job = world.create()
    printed = _printed_by(world, job["job_id"])
    ((run_id,),) = world.rows("SELECT run_id FROM runs WHERE job_id = %s", job["job_id"])
    assert f"\nRUN_ID={run_id}\n" in printed
    assert "\nATTEMPT=1\n" in printed


@holds("the same reference is used for the pull")
def reference_is_exact(world: World) -> None:
    sent = world.case["request"]["body"]["task"]["image"]
    job_id = world.answer.body["job_id"]
    assert world.job(job_id)["task"]["image"] == sent
    run = world.ask("POST", f"/v1/jobs/{job_id}/runs", {}).body

    def message() -> str:
        # No registry can be reached from here: the engine's complaint names what it asked for.
        attempts = world.ask("GET", f"/v1/runs/{run['run_id']}").body["attempts"]
        return str(attempts[0]["message"] or "") if attempts else ""

    assert sent in poll(message, 60, "the pull was tried")
    world.ask("POST", f"/v1/runs/{run['run_id']}/cancel")


def _printed_by(world: World, job_id: str) -> str:
    """What a run of the job prints: its arguments, then its environment."""
    run = world.ask("POST", f"/v1/jobs/{job_id}/runs", {}).body
    seen = poll(lambda: _final(world, run["run_id"]), 60, "the run has ended")
    assert seen["status"] == "succeeded", seen
    assert seen["output_tail"].endswith("\nend\n"), seen
    return str(seen["output_tail"])


# --- tenants and idempotency ----------------------------------------------------------------------


@holds("B gets a new job of its own")
def job_of_b(world: World) -> None:
    assert [job_id for job_id, _ in world.jobs_of(world.b)] == [world.answer.body["job_id"]]


@holds("A's job id is not shown")
def job_of_a_is_hidden(world: World) -> None:
    assert world.notes["job of A"] not in world.answer.text


@holds("no row of A")
def runs_of_a_are_hidden(world: World) -> None:
    assert not any(run_id in world.answer.text for run_id in world.notes["runs of A"])


@holds("one row", "one job")
def one_row(world: World) -> None:
    assert len(world.jobs_of(world.a)) == 1


@holds("every 201 carries the same job_id")
def same_id_for_all(world: World) -> None:
    created = {answer.body["job_id"] for answer in world.answers if answer.status == 201}
    assert created == {job_id for job_id, _ in world.jobs_of(world.a)}


@holds("same job_id")
def same_id(world: World) -> None:
    assert world.answer.body["job_id"] == world.values["job"]
    one_row(world)


@holds("the answer is the stored first answer, or the current next_run_at; documented")
def first_answer(world: World) -> None:
    documented("gets the first answer again, word for word")
    assert world.answer.text == world.notes["first answer"]
    assert world.answer.headers["Idempotency-Replayed"] == "true"


@holds("the key was not used up by the 400")
def key_was_free(world: World) -> None:
    assert "Idempotency-Replayed" not in world.answer.headers
    one_row(world)


@holds("documented: required or not")
def key_is_optional(world: World) -> None:
    documented("`Idempotency-Key` is optional")
    assert world.answer.status == 201


@holds("does not return the create answer")
def other_route(world: World) -> None:
    assert world.answer.text != world.notes["first answer"]
    assert world.answer.status == 422
    assert world.answer.body["code"] == "idempotency_key_reused"


# --- changed and deleted jobs ---------------------------------------------------------------------


@holds("2028, 2032, 2036, 2040, 2044")
def leap_days(world: World) -> None:
    days = (datetime(year, 2, 29, tzinfo=UTC) for year in range(2028, 2090, 4))
    ahead = [f"{day:%Y-%m-%d}T00:00:00Z" for day in days if day > world.now()]
    assert world.answer.body["next_runs"] == ahead[:5]


@holds("next_run_at after now")
def next_is_ahead(world: World) -> None:
    ahead = _instant(world.answer.body["next_run_at"]) - world.now()
    assert timedelta(0) < ahead <= timedelta(minutes=1)


@holds("no catch-up run")
def no_catch_up(world: World) -> None:
    enabled_at = world.now()
    world.plan()
    assert all(_instant(run["scheduled_for"]) > enabled_at for run in world.runs())
    assert {run["trigger"] for run in world.runs()} == {"schedule"}


@holds("200 only if it really names the current version or is *")
def precondition_is_kept(world: World) -> None:
    named = {'"1"': True, "*": True, "1": True}
    expected = named.get(world.case["request"]["headers"]["If-Match"], False)
    assert (world.answer.status == 200) == expected
    if not expected:
        nothing_changed(world)


@holds("no run for the old 09:00 slot")
def old_slot_is_withdrawn(world: World) -> None:
    assert world.runs() == []
    at_ten_past = _instant(world.notes["planned"]["scheduled_for"]) + timedelta(minutes=10)
    world.move_clock(at_ten_past)
    world.plan()
    assert world.runs() == []


@holds("next_run_at 10:00")
def next_is_ten(world: World) -> None:
    planned = _instant(world.notes["planned"]["scheduled_for"])
    assert _instant(world.answer.body["next_run_at"]) == planned + timedelta(hours=1)


@holds("no run now; next is tomorrow")
def next_is_tomorrow(world: World) -> None:
    tomorrow = world.now().date() + timedelta(days=1)
    assert world.answer.body["next_run_at"] == f"{tomorrow}T16:34:00Z"
    world.plan()
    assert world.runs() == []


@holds("if taken, cron stays and next_run_at is recomputed at once")
def zone_is_changed(world: World) -> None:
    schedule = world.answer.body["schedule"]
    assert schedule == {"cron": "0 9 * * MON-FRI", "time_zone": "Europe/Paris"}
    expected = _next_weekday(world.now(), 9, "Europe/Paris")
    assert _instant(world.answer.body["next_run_at"]) == expected


@holds("cron and zone are gone; one run only")
def kind_is_changed(world: World) -> None:
    assert list(world.answer.body["schedule"]) == ["at"]
    _one_run_at(world, world.values["job"], world.answer.body["schedule"]["at"])


@holds("job and version unchanged; still fires on the old rule")
def old_rule_stays(world: World) -> None:
    nothing_changed(world)
    job = world.job()
    world.move_clock(_instant(job["next_run_at"]) - timedelta(seconds=10))
    world.plan()
    assert [run["scheduled_for"] for run in world.runs()] == [job["next_run_at"]]


@holds("GET is 404 (or shows deleted)")
def is_gone(world: World) -> None:
    assert world.ask("GET", f"/v1/jobs/{world.values['job']}").status == 404
    assert world.runs() == []  # its history stays readable


@holds("no run starts afterwards, not even one in the look-ahead queue")
def queue_is_emptied(world: World) -> None:
    job = world.create()
    world.move_clock(_instant(job["next_run_at"]) - timedelta(seconds=30))
    world.plan()
    assert len(world.runs(job["job_id"])) == 1
    assert world.ask("DELETE", f"/v1/jobs/{job['job_id']}").status == 204
    assert world.runs(job["job_id"]) == []
    world.plan()
    world.move_clock(_instant(job["next_run_at"]) + timedelta(seconds=30))
    world.plan()
    assert world.runs(job["job_id"]) == world.runs() == []


# --- run now --------------------------------------------------------------------------------------


@holds("two runs: the manual one does not swallow the slot, nor hit the (job, slot) key as a 500")
def both_runs(world: World) -> None:
    runs = world.runs()
    (manual,) = [run for run in runs if run["trigger"] == "manual"]
    asked_at = _instant(manual["scheduled_for"])
    in_that_second = [
        run["trigger"]
        for run in runs
        if abs(_instant(run["scheduled_for"]) - asked_at) < timedelta(seconds=1)
    ]
    assert sorted(in_that_second) == ["manual", "schedule"], runs


@holds("never two active; a skipped run is visible, or 409")
def second_is_skipped(world: World) -> None:
    second = world.answer.body["run_id"]
    seen = poll(lambda: _final(world, second), 30, "the second run was decided")
    assert (seen["status"], seen["skip_reason"]) == ("skipped", "overlap")
    assert seen["attempts"] == []
    first = world.ask("GET", f"/v1/runs/{world.notes['active']}").body
    assert first["status"] == "running"
    world.ask("POST", f"/v1/runs/{world.notes['active']}/cancel")


@holds("at most one container at any time")
def one_container(world: World) -> None:
    job_id = world.values["job"]
    counts: list[int] = []
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            # Of this job only: a container of the case before may still be going.
            running = world.stack.containers(running_only=True)
            counts.append(sum(c.labels["scheduler.job_id"] == job_id for c in running))
            stopped.wait(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        poll(lambda: all(r["status"] in FINAL for r in world.runs(job_id)), 90, "all are decided")
    finally:
        stopped.set()
        watcher.join()
    assert max(counts) == 1, counts
    # By the engine's own times, too: each attempt ended before the next began.
    spans = world.rows(
        "SELECT a.started_at, a.finished_at FROM run_attempts a JOIN runs r USING (run_id)"
        " WHERE r.job_id = %s ORDER BY a.started_at",
        job_id,
    )
    assert spans
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
    statuses = {run["status"] for run in world.runs(job_id)}
    assert statuses == {"succeeded", "skipped"}


def _final(world: World, run_id: str) -> dict[str, Any]:
    """The run once it has ended; nothing before."""
    seen: dict[str, Any] = world.ask("GET", f"/v1/runs/{run_id}").body
    return seen if seen["status"] in FINAL else {}


# --- lists of runs --------------------------------------------------------------------------------


@holds("following next_cursor to the end gives each run once")
def each_once(world: World) -> None:
    seen = [run["run_id"] for run in _all_pages(world)]
    assert sorted(seen) == sorted(world.notes["runs"])


@holds("no repeat and no gap among the runs that existed at the first page")
def no_repeat_no_gap(world: World) -> None:
    start = _instant(world.notes["first page"][0]["scheduled_for"])

    def insert() -> None:
        world.add_runs(world.values["job"], ["queued", "succeeded"], start)
        world.add_runs(world.values["job"], ["queued"], start + timedelta(seconds=2))

    seen = [run["run_id"] for run in world.notes["first page"]]
    seen += [run["run_id"] for run in _all_pages(world, after_page=insert, first=world.answer)]
    assert len(seen) == len(set(seen))
    assert set(world.notes["runs"]) <= set(seen)


def _all_pages(
    world: World,
    *,
    after_page: Callable[[], None] = lambda: None,
    first: Answer | None = None,
) -> list[dict[str, Any]]:
    path = f"/v1/jobs/{world.values['job']}/runs"
    answer = first or world.ask("GET", path)
    runs = list(answer.body["runs"])
    while cursor := answer.body["next_cursor"]:
        after_page()
        answer = world.ask("GET", f"{path}?cursor={cursor}")
        assert answer.status == 200
        runs += answer.body["runs"]
    return runs


@holds("only failed; next_cursor null at the end")
def only_failed(world: World) -> None:
    assert [run["status"] for run in world.answer.body["runs"]] == ["failed", "failed"]
    assert world.answer.body["next_cursor"] is None


@holds("runs is [] and next_cursor null")
def empty_page(world: World) -> None:
    assert world.answer.body == {"runs": [], "next_cursor": None}


@holds("never rows of another job or tenant; a bound on page size")
def only_own_rows(world: World) -> None:
    assert not any(run_id in world.answer.text for run_id in world.notes["runs of other"])
    assert world.answer.status == 400
    bounded = world.ask("GET", f"/v1/jobs/{world.values['job']}/runs?limit=201")
    assert bounded.status == 400


# --- results --------------------------------------------------------------------------------------


@holds("run succeeded; valid JSON; bytes replaced")
def bytes_are_replaced(world: World) -> None:
    assert [run["status"] for run in world.answer.body["runs"]] == ["succeeded"]
    assert world.notes["run"]["output_tail"] == "before \ufffd\ufffd \ufffd"


@holds("bounded text, marked as truncated; worker memory flat")
def output_is_bounded(world: World) -> None:
    assert [run["status"] for run in world.answer.body["runs"]] == ["succeeded"]
    run = world.notes["run"]
    assert run["output_truncated"] is True
    assert len(run["output_tail"].encode()) <= 16_384
    assert run["output_tail"].endswith("y\ny\nend\n")
    assert world.notes["memory grew by"] < 32 * 1024 * 1024


@holds("succeeded")
def has_succeeded(world: World) -> None:
    assert [run["status"] for run in world.answer.body["runs"]] == ["succeeded"]
    assert "main process goes on" in world.notes["run"]["output_tail"]
    assert world.notes["run"]["exit_code"] == 0


# --- faults ---------------------------------------------------------------------------------------


@holds("the job is stored and fires when due, at the latest when Redis is back")
def fires_without_redis(world: World) -> None:
    assert world.job(world.answer.body["job_id"])["next_run_at"]
    at = (world.now() + timedelta(seconds=2)).astimezone(UTC).isoformat(timespec="seconds")
    task = {"image": world.stack.demo_image, "args": ["true"], "timeout_s": 60}
    due = world.create(schedule={"at": at}, task=task)
    world.stack.redis.start()
    poll(lambda: _statuses(world, due["job_id"]) == ["succeeded"], 60, "it fired")


@holds("if accepted, the run starts later without another call")
def starts_without_redis(world: World) -> None:
    if world.answer.status == 503:
        return
    # The case's image can't be had here, the way to its pull is the same as to a start.
    task = {"image": world.stack.demo_image, "args": ["true"], "timeout_s": 60}
    job = world.create(task=task)
    assert world.ask("POST", f"/v1/jobs/{job['job_id']}/runs", {}).status == 201
    world.stack.redis.start()
    poll(lambda: _statuses(world, job["job_id"]) == ["succeeded"], 60, "it started")
    first = world.answer.body["run_id"]
    poll(lambda: _final(world, first), 60, "the case's own run was worked on")


def _statuses(world: World, job_id: str) -> list[str]:
    return [run["status"] for run in world.runs(job_id)]


# --- instants -------------------------------------------------------------------------------------


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _next_weekday(after: datetime, hour: int, zone: str) -> datetime:
    """The next Monday-to-Friday at the hour on that zone's wall, found day by day."""
    local = after.astimezone(ZoneInfo(zone)).replace(hour=hour, minute=0, second=0, microsecond=0)
    while local.astimezone(UTC) <= after or local.isoweekday() > 5:
        local += timedelta(days=1)
    return local.astimezone(UTC)
