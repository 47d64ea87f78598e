"""A job at rest: nothing of it runs, all of it is counted, and it goes on by itself."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from jobs.domain.misfire import Misfire, MissedPolicy
from jobs.domain.spec import NOT_SAID, JobChanges
from jobs.domain.timing import CatchUp, Pause
from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from jobs.pauses import end_pauses_once
from jobs.selectors import shown_jobs
from jobs.services import job_create, job_delete, job_update
from runs.dispatcher import dispatch_once
from runs.models import Run
from runs.planner import plan_once
from runs.services import run_now
from tests.support.factories import make_session, make_tenant
from tests.support.story_clock import StoryClock, story_clock

pytestmark = pytest.mark.django_db

MORNING = datetime(2031, 12, 1, 9, 0, 30, tzinfo=UTC)
EVERY_MINUTE = {"cron": "* * * * *", "time_zone": "UTC"}
HOURLY = {"cron": "0 * * * *", "time_zone": "UTC"}
TASK = {"image": "a/b:1", "timeout_s": 60}


@pytest.fixture
def clock() -> Iterator[StoryClock]:
    with story_clock(MORNING, days=5) as clock:
        yield clock


def create(schedule: dict[str, str] = EVERY_MINUTE, **said: Any) -> Job:
    tenant = make_tenant()
    changes = JobChanges(schedule=schedule, task=TASK, overlap="allow", **said)
    return job_create(tenant, changes, changed_by="test")


def change(job: Job, **said: Any) -> Job:
    return job_update(
        job.tenant, job.job_id, JobChanges(**said), expected_version=None, changed_by="test"
    )


def runs(job: Job, **conditions: Any) -> list[datetime]:
    found = Run.objects.filter(job=job, **conditions).order_by("scheduled_for")
    return list(found.values_list("scheduled_for", flat=True))


def counted(job: Job) -> list[tuple[datetime, datetime, int, str]]:
    spans = MissedSpan.objects.filter(job=job).order_by("from_at")
    return list(spans.values_list("from_at", "to_at", "count", "reason"))


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    return datetime(2031, 12, day, hour, minute, tzinfo=UTC)


def test_a_pause_of_days_is_one_counted_span_and_the_next_run_is_the_first_after_it(
    clock: StoryClock,
) -> None:
    job = create()
    plan_once()
    assert runs(job) == [at(9, 1)]
    job = change(job, pause=Pause(reason="maintenance"))
    assert runs(job) == []  # planned ahead, and withdrawn
    assert ScheduleCursor.objects.get(job=job).next_run_at is None

    clock.set(MORNING + timedelta(days=3))
    plan_once()
    assert runs(job) == []
    job = change(job, pause=None)

    assert ScheduleCursor.objects.get(job=job).next_run_at == at(9, 1, day=4)
    assert counted(job) == [(at(9, 1), at(9, 0, day=4), 3 * 1440, "paused")]
    assert runs(job) == []


def test_a_pause_with_an_end_ends_by_itself_and_the_occurrence_at_its_end_is_on_time(
    clock: StoryClock,
) -> None:
    job = create()
    change(job, pause=Pause(until=at(11), reason="until eleven"))
    clock.set(at(10, 59))
    plan_once()
    # Planned ahead like any other: nothing waits for somebody to notice that the pause is over.
    assert runs(job) == [at(11)]
    assert end_pauses_once() == {"resumed": 0}

    clock.set(at(11) + timedelta(seconds=1))
    assert end_pauses_once() == {"resumed": 1}
    assert end_pauses_once() == {"resumed": 0}

    job.refresh_from_db()
    assert job.pause is None
    assert runs(job, status="queued") == [at(11)]
    assert counted(job) == [(at(9, 1), at(10, 59), 119, "paused")]
    version = JobVersion.objects.get(job=job, version=3)
    assert (version.changed_by, version.cause) == ("scheduler", "the pause ended")
    assert version.policies["pause"] is None


def test_one_held_back_occurrence_is_a_row_and_not_a_span(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause())
    clock.set(at(10, 30))
    change(job, pause=None)
    assert counted(job) == []
    (run,) = Run.objects.filter(job=job)
    assert (run.scheduled_for, run.status, run.skip_reason) == (at(10), "skipped", "paused")


@pytest.mark.parametrize("is_said_at_the_pause", [True, False])
@pytest.mark.parametrize(
    ("catch_up", "running", "spans"),
    [
        (CatchUp.NONE, [], [(at(10), at(13), 4, "paused")]),
        (CatchUp.LATEST, [at(13)], [(at(10), at(12), 3, "paused")]),
        (CatchUp.ALL, [at(10), at(11), at(12), at(13)], []),
    ],
)
def test_resuming_runs_what_was_said_and_counts_the_rest(
    clock: StoryClock,
    catch_up: CatchUp,
    running: list[datetime],
    spans: list[Any],
    is_said_at_the_pause: bool,
) -> None:
    job = create(HOURLY)
    change(job, pause=Pause(), resume=catch_up if is_said_at_the_pause else None)
    clock.set(at(13, 30))
    change(job, pause=None, resume=None if is_said_at_the_pause else catch_up)
    assert runs(job, trigger="catch_up", status="queued") == running
    assert counted(job) == spans
    assert ScheduleCursor.objects.get(job=job).next_run_at == at(14)


def test_a_pause_that_ends_by_itself_goes_by_the_word_it_was_given(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause(until=at(12)), resume=CatchUp.ALL)
    clock.set(at(12, 0) + timedelta(seconds=2))
    end_pauses_once()
    assert runs(job, trigger="catch_up") == [at(10), at(11)]
    assert runs(job, trigger="schedule") == [at(12)]


def test_catching_up_all_is_bounded_and_paced_at_sixty_a_minute(clock: StoryClock) -> None:
    job = create(misfire={"max_catch_up": 100})
    change(job, pause=Pause())
    clock.set(at(14, 0) + timedelta(seconds=30))
    change(job, pause=None, resume=CatchUp.ALL)
    caught_up = Run.objects.filter(job=job, trigger="catch_up").order_by("scheduled_for")
    assert len(caught_up) == 100
    assert [run.ready_at for run in caught_up] == [
        clock.now + timedelta(seconds=n) for n in range(100)
    ]
    assert all(run.due_at == run.scheduled_for for run in caught_up)
    assert counted(job) == [(at(9, 1), at(12, 20), 200, "beyond_catch_up")]

    # A second burst goes behind what the first has left waiting.
    change(job, pause=Pause())
    Run.objects.filter(job=job, status="skipped").update(status="queued", finished_at=None)
    clock.set(at(14, 3))
    change(job, pause=None, resume=CatchUp.ALL)
    releases = sorted(Run.objects.filter(job=job).values_list("ready_at", flat=True))
    gaps = {later - earlier for earlier, later in pairwise(releases)}
    assert min(gaps) >= timedelta(seconds=1)


def test_what_is_older_than_the_deadline_is_not_caught_up(clock: StoryClock) -> None:
    job = create(HOURLY, misfire={"deadline": timedelta(hours=2)})
    change(job, pause=Pause())
    clock.set(at(14, 30))
    change(job, pause=None, resume=CatchUp.ALL)
    assert runs(job, trigger="catch_up") == [at(13), at(14)]
    assert counted(job) == [(at(10), at(12), 3, "deadline")]


def test_a_pause_skips_what_waits_past_its_time_and_leaves_what_runs_by_hand(
    clock: StoryClock,
) -> None:
    job = create()
    plan_once()
    clock.advance(timedelta(minutes=1))
    by_hand = run_now(job.tenant, job.job_id)
    change(job, pause=Pause())
    (late,) = Run.objects.filter(job=job, trigger="schedule")
    assert (late.status, late.skip_reason) == ("skipped", "paused")
    again = run_now(job.tenant, job.job_id)  # also of a paused job
    make_session()
    assert dispatch_once()["placed"] == 2
    assert {run.status for run in Run.objects.filter(pk__in=[by_hand.pk, again.pk])} == {"queued"}


def test_another_end_keeps_what_is_held_back_and_moves_the_first_run(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause(until=at(12)), resume=CatchUp.ALL)
    clock.set(at(11, 30))
    job = change(job, pause=Pause(until=at(14)))
    assert ScheduleCursor.objects.get(job=job).next_run_at == at(14)
    assert counted(job) == []
    clock.set(at(14))
    end_pauses_once()
    assert runs(job, trigger="catch_up") == [at(10), at(11), at(12), at(13)]


def test_an_edit_in_the_pause_counts_what_the_old_schedule_held_back(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause())
    clock.set(at(12, 10))
    change(job, schedule={"cron": "30 * * * *", "time_zone": "UTC"})
    clock.set(at(14, 10))
    change(job, pause=None)
    assert counted(job) == [
        (at(10), at(12), 3, "paused"),
        (at(12, 30), at(13, 30), 2, "paused"),
    ]


def test_an_edit_that_finds_the_pause_over_before_the_duty_did_counts_it(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause(until=at(12)))
    clock.set(at(12, 20))  # the duty is late, and so is the planner
    job = change(job, schedule={"cron": "30 * * * *", "time_zone": "UTC"})
    assert job.pause is None
    assert counted(job) == [(at(10), at(11), 2, "paused")]
    assert runs(job) == [at(12)]  # missed by the planner: caught up, by the old schedule
    assert ScheduleCursor.objects.get(job=job).next_run_at == at(12, 30)
    assert end_pauses_once() == {"resumed": 0}


def test_a_delete_in_the_pause_counts_what_it_held_back(clock: StoryClock) -> None:
    job = create(HOURLY)
    change(job, pause=Pause(until=at(20)))
    clock.set(at(12, 10))
    job_delete(job.tenant, job.job_id, changed_by="test")
    assert counted(job) == [(at(10), at(12), 3, "paused")]
    clock.set(at(20, 1))
    assert end_pauses_once() == {"resumed": 0}
    assert plan_once() == {"jobs": 0}


def test_a_new_job_may_begin_at_rest(clock: StoryClock) -> None:
    job = create(HOURLY, pause=Pause(until=at(12)))
    (shown,) = shown_jobs([job])
    assert shown.pause == {
        "until": "2031-12-01T12:00:00Z", "reason": "", "since": "2031-12-01T09:00:30Z",
        "by": "test",
    }  # fmt: skip
    assert shown.next_run_at == at(12)


def test_a_job_switched_off_expects_nothing_and_switched_on_begins_anew(clock: StoryClock) -> None:
    job = create()
    change(job, enabled=False)
    clock.set(at(12, 0) + timedelta(seconds=10))
    job = change(job, enabled=True)
    assert (runs(job), counted(job)) == ([], [])
    assert ScheduleCursor.objects.get(job=job).next_run_at == at(12, 1)


def test_what_came_due_before_an_edit_is_settled_by_the_old_schedule(clock: StoryClock) -> None:
    """The planner was away: an edit at that time must not lose what it would have planned."""
    job = create(misfire={"policy": MissedPolicy.RUN_ONCE})
    clock.advance(timedelta(minutes=10))
    job = change(job, schedule={"cron": "0 0 * * *", "time_zone": "UTC"})
    assert counted(job) == [(at(9, 1), at(9, 8), 8, "outage")]
    assert runs(job, trigger="catch_up") == [at(9, 9)]
    assert runs(job, trigger="schedule") == [at(9, 10)]


def test_a_pause_is_nothing_that_is_said_by_leaving_it_out(clock: StoryClock) -> None:
    job = create()
    job = change(job, pause=Pause(reason="x"))
    again = change(job, pause=NOT_SAID, name="other")
    assert again.pause == job.pause
    assert change(again, pause=Pause(reason="x")).version == again.version


def test_the_default_policy_is_the_product_s() -> None:
    assert Misfire() == Misfire(MissedPolicy.RUN_ONCE, timedelta(seconds=60), None, 100)
