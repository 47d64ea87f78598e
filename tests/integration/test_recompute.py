"""A country changes its clock: the instants that move are found, said and planned anew."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
import tzdata
from django.core.management import call_command

from jobs.domain.schedule import load_zone
from jobs.domain.spec import JobChanges
from jobs.domain.timing import Pause
from jobs.models import Job, JobVersion, ScheduleCursor
from jobs.recompute import recompute_schedules
from jobs.services import job_create, job_update
from runs.models import Run
from runs.planner import plan_once, watch_newer_zone_data
from tests.support.factories import make_tenant
from tests.support.story_clock import StoryClock, story_clock
from tests.support.zone_data import Edition, ZoneData, forget_zones

pytestmark = pytest.mark.django_db

ZONE = "Africa/Lusaka"
NINE = {"cron": "0 9 * * *", "time_zone": ZONE}
TASK = {"image": "a/b:1", "timeout_s": 60}
HOUR = timedelta(hours=1)


def at(hour: int, minute: int = 0, day: int = 1, second: int = 0) -> datetime:
    return datetime(2031, 12, day, hour, minute, second, tzinfo=UTC)


# The country is two hours east of Greenwich; from 3 December on it is one hour (it moves west, and
# shows an hour twice) or three (it moves east, and leaves one out).
OLD = Edition("2031a", {ZONE: [(None, 2 * HOUR)]})
WEST = Edition("2031b", {ZONE: [(None, 2 * HOUR), (at(0, day=3), HOUR)]})
EAST = Edition("2031b", {ZONE: [(None, 2 * HOUR), (at(0, day=3), 3 * HOUR)]})


@pytest.fixture
def zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneData]:
    data = ZoneData(monkeypatch)
    data.install(OLD)
    yield data
    monkeypatch.undo()
    forget_zones()


@pytest.fixture
def clock(zone_data: ZoneData) -> Iterator[StoryClock]:
    with story_clock(at(0), days=9) as clock:
        yield clock


def create(schedule: dict[str, str] = NINE, **said: Any) -> Job:
    changes = JobChanges(schedule=schedule, task=TASK, **said)
    return job_create(make_tenant(), changes, changed_by="test")


def live(clock: StoryClock, until: datetime) -> None:
    """Let the planner come by every minute until then."""
    while clock.now < until:
        clock.advance(timedelta(minutes=1))
        plan_once()


def scheduled(job: Job) -> list[datetime]:
    runs = Run.objects.filter(job=job).order_by("scheduled_for")
    return list(runs.values_list("scheduled_for", flat=True))


def cursor(job: Job) -> ScheduleCursor:
    return ScheduleCursor.objects.get(job=job)


def test_the_made_up_editions_are_what_they_say(zone_data: ZoneData) -> None:
    assert at(7, day=9).astimezone(load_zone(ZONE)).hour == 9
    zone_data.install(WEST)
    assert tzdata.IANA_VERSION == "2031b"
    zone = load_zone(ZONE)
    assert [at(7, day=day).astimezone(zone).hour for day in (2, 3, 9)] == [9, 8, 8]


def test_a_moved_job_is_listed_and_nothing_is_changed_until_apply(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    job = create()
    other = create({"cron": "0 9 * * *", "time_zone": "UTC"})
    clock.set(at(8, day=2))
    plan_once()  # the runs of today; next is 3 December, 09:00 by the old rules
    assert cursor(job).next_run_at == at(7, day=3)
    zone_data.install(WEST)

    out = StringIO()
    call_command("recompute_schedules", stdout=out)
    lines = out.getvalue().splitlines()
    assert str(job.job_id) in lines[0]
    assert "2031-12-03T07:00:00Z -> 2031-12-03T08:00:00Z" in lines[0]
    assert str(other.job_id) not in out.getvalue()
    assert "1 jobs would be planned anew" in lines[1]
    assert cursor(job).next_run_at == at(7, day=3)
    assert JobVersion.objects.filter(job=job).count() == 1

    call_command("recompute_schedules", "--apply", stdout=StringIO())
    assert cursor(job).next_run_at == at(8, day=3)
    assert {cursor(one).tzdata for one in (job, other)} == {"2031b"}
    version = JobVersion.objects.get(job=job, version=2)
    assert version.changed_by == "recompute_schedules"
    assert version.cause == "tzdata 2031a → 2031b: 2031-12-03T07:00:00Z → 2031-12-03T08:00:00Z"
    assert JobVersion.objects.filter(job=other).count() == 1
    assert list(recompute_schedules(apply=True)) == []


def test_runs_planned_ahead_by_the_old_rules_are_planned_anew(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    job = create()
    live(clock, at(6, 59, day=3))
    assert scheduled(job)[-1] == at(7, day=3)  # a minute ahead, by the old rules
    zone_data.install(WEST)
    (moved,) = recompute_schedules(apply=True)
    assert moved.before[0] == at(7, day=3)
    assert scheduled(job)[-1] == at(7, day=2)
    live(clock, at(8, 1, day=3))
    assert scheduled(job) == [at(7), at(7, day=2), at(8, day=3)]


@pytest.mark.parametrize("is_planner_first", [True, False])
def test_a_local_day_is_never_doubled(
    zone_data: ZoneData, clock: StoryClock, is_planner_first: bool
) -> None:
    """The new rules are in force since midnight, and come to us after the day's run."""
    job = create()
    live(clock, at(7, 5, day=3))
    zone_data.install(WEST)
    if not is_planner_first:
        list(recompute_schedules(apply=True))
    # By the new rules the wall shows 08:05 now, and 09:00 again in an hour.
    live(clock, at(8, 1, day=4))
    assert scheduled(job) == [at(7), at(7, day=2), at(7, day=3), at(8, day=4)]


def test_a_move_to_the_east_lets_a_day_s_run_come_sooner(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    job = create()
    live(clock, at(12, day=2))
    zone_data.install(EAST)
    live(clock, at(12, day=4))
    assert scheduled(job) == [at(7), at(7, day=2), at(6, day=3), at(6, day=4)]


def test_a_planner_with_new_data_fixes_what_it_comes_to(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    job = create()
    live(clock, at(6, 58, day=3))
    zone_data.install(WEST)
    clock.advance(timedelta(minutes=1))
    counts = plan_once()
    assert (counts["jobs"], counts["rezoned"]) == (1, 1)
    assert cursor(job).next_run_at == at(8, day=3)
    assert JobVersion.objects.get(job=job, version=2).cause.startswith("tzdata 2031a → 2031b")


def test_a_planner_with_older_data_leaves_the_job_alone_and_says_so(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    zone_data.install(WEST)
    job = create()
    clock.set(at(6, 59, second=30))
    zone_data.install(OLD)
    assert plan_once() == {"jobs": 0}
    assert watch_newer_zone_data() == {"left": 1}
    assert scheduled(job) == []
    zone_data.install(WEST)
    assert watch_newer_zone_data() == {"left": 0}
    assert plan_once()["runs"] == 1


def test_after_an_outage_over_the_upgrade_the_new_rules_hold_from_what_was_not_planned(
    zone_data: ZoneData, clock: StoryClock
) -> None:
    job = create(misfire={"grace": timedelta(hours=20)})
    live(clock, at(12, day=2))
    zone_data.install(WEST)
    clock.set(at(12, day=3))  # nobody planned on 3 December
    (moved,) = recompute_schedules(apply=True)
    assert (moved.before, moved.after) == ((at(7, day=3),), (at(8, day=3),))
    plan_once()
    assert scheduled(job)[-1] == at(8, day=3)
    version = JobVersion.objects.get(job=job, version=2)
    assert at(7, day=2) < version.effective_from < at(8, day=3)


def test_a_paused_job_goes_on_by_the_new_rules(zone_data: ZoneData, clock: StoryClock) -> None:
    job = create()
    changes = JobChanges(pause=Pause(until=at(7, day=3)))
    job_update(job.tenant, job.job_id, changes, expected_version=None, changed_by="test")
    assert cursor(job).next_run_at == at(7, day=3)
    zone_data.install(WEST)
    list(recompute_schedules(apply=True))
    assert cursor(job).next_run_at == at(8, day=3)


def test_wildcards_and_intervals_keep_their_cadence(zone_data: ZoneData, clock: StoryClock) -> None:
    hourly = create({"cron": "0 * * * *", "time_zone": ZONE})
    interval = create({"every": "90m"})
    zone_data.install(WEST)
    assert list(recompute_schedules(apply=True)) == []
    assert cursor(interval).tzdata == "2031b"
    assert cursor(hourly).next_run_at == at(1)
