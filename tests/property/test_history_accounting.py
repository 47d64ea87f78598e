"""The law of accounting over whole histories, on PostgreSQL.

Whatever happens to a job (planners at work and away, pauses, edits, switching off and on, deletes,
backfills, new zone data), the occurrences that its versions say are its rows and counts: each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from jobs.domain.misfire import MissedPolicy
from jobs.domain.schedule import (
    DstPolicy,
    occurrences,
    parse_dst,
    parse_wall,
    schedule_from_json,
    wall_time,
)
from jobs.domain.spec import JobChanges
from jobs.domain.timing import CatchUp, Pause, stored_instant
from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from jobs.pauses import end_pauses_once
from jobs.recompute import recompute_schedules
from jobs.services import job_create, job_delete, job_update
from runs.backfill import job_backfill
from runs.domain.violation import Kind
from runs.history import Checked, Scope, check_history
from runs.models import NIL, Run
from runs.planner import plan_once
from tests.support.factories import make_tenant
from tests.support.story_clock import StoryClock, story_clock
from tests.support.zone_data import Edition, ZoneData, forget_zones

pytestmark = pytest.mark.django_db

BEGIN = datetime(2031, 12, 1, 0, 0, 20, tzinfo=UTC)
DAYS = 9
ZONE = "Africa/Lusaka"
HOUR = timedelta(hours=1)
CHANGE = datetime(2031, 12, 3, tzinfo=UTC)
OLD = Edition("2031a", {ZONE: [(None, 2 * HOUR)]})
NEW = {
    move: Edition("2031b", {ZONE: [(None, 2 * HOUR), (CHANGE, 2 * HOUR + move * HOUR)]})
    for move in (-1, 1)
}
SCHEDULES = [
    {"cron": "0 9 * * *", "time_zone": ZONE},
    {"cron": "15,45 0-5 * * *", "time_zone": ZONE},
    {"cron": "0 * * * *", "time_zone": ZONE},
    {"cron": "*/7 * * * *", "time_zone": "America/New_York"},
    {"every": "95m"},
]

ACCOUNTING = (
    Kind.MISSING, Kind.DOUBLED, Kind.WRONG_SPAN, Kind.UNPROMISED, Kind.NOT_WITHDRAWN,
    Kind.CURSOR_ASTRAY,
)  # fmt: skip

spans_of_time = st.sampled_from([20, 70, 600, 3 * 3_600, 26 * 3_600]).map(
    lambda seconds: timedelta(seconds=seconds)
)
catch_ups = st.sampled_from(list(CatchUp))
steps = st.one_of(
    st.tuples(st.just("tick"), spans_of_time),
    st.tuples(st.just("live"), st.integers(1, 4)),
    st.tuples(st.just("away"), spans_of_time),
    st.tuples(st.just("pause"), st.one_of(st.none(), spans_of_time), catch_ups),
    st.tuples(st.just("resume"), catch_ups),
    st.tuples(st.just("edit"), st.sampled_from(SCHEDULES)),
    st.tuples(st.just("enable"), st.booleans()),
    st.tuples(st.just("rename"), st.text("ab", max_size=2)),
    st.tuples(
        st.just("misfire"),
        st.sampled_from(list(MissedPolicy)),
        st.sampled_from([0, 60, 7_200]),
        st.sampled_from([None, 300, 40_000]),
        st.sampled_from([0, 3, 100]),
    ),
    st.tuples(st.just("dst"), st.sampled_from(["first", "second", "both"])),
    st.tuples(st.just("bounds"), st.sampled_from([None, 2, 6])),
    st.tuples(st.just("finish")),
    st.tuples(st.just("backfill"), spans_of_time),
    st.tuples(st.just("upgrade"), st.sampled_from([-1, 1])),
)


@dataclass
class History:
    """A job, the clock it lives by, and what the world does to it."""

    clock: StoryClock
    zone_data: ZoneData
    job: Job
    edition: Edition = OLD
    upgraded_at: datetime | None = None

    def step(self, name: str, *how: Any) -> None:
        event(name)
        getattr(self, name)(*how)

    def tick(self, by: timedelta) -> None:
        self.clock.advance(by)
        plan_once()
        end_pauses_once()

    def live(self, minutes: int) -> None:
        for _ in range(minutes):
            self.tick(timedelta(minutes=1))

    def away(self, by: timedelta) -> None:
        self.clock.advance(by)

    def pause(self, until: timedelta | None, catch_up: CatchUp) -> None:
        end = None if until is None else self.clock.now + until
        self._update(pause=Pause(until=end), resume=catch_up)

    def resume(self, catch_up: CatchUp) -> None:
        if Job.objects.get(pk=self.job.pk).pause is not None:
            self._update(pause=None, resume=catch_up)

    def edit(self, schedule: dict[str, str]) -> None:
        self._update(schedule=schedule)

    def enable(self, enabled: bool) -> None:
        self._update(enabled=enabled)

    def rename(self, name: str) -> None:
        self._update(name=name)

    def misfire(self, policy: MissedPolicy, grace_s: int, deadline_s: Any, most: int) -> None:
        deadline = None if deadline_s is None else timedelta(seconds=deadline_s)
        grace = timedelta(seconds=grace_s)
        self._update(
            misfire={"policy": policy, "grace": grace, "deadline": deadline, "max_catch_up": most}
        )

    def dst(self, fold: str) -> None:
        self._update(dst={"fold": fold})

    def bounds(self, days: int | None) -> None:
        end_at = None if days is None else BEGIN + timedelta(days=days)
        self._update(end_at=None if end_at is None else end_at.replace(microsecond=0))

    def finish(self) -> None:
        """What is due has run."""
        Run.objects.filter(status="queued", ready_at__lte=self.clock.now).update(
            status="succeeded", finished_at=self.clock.now
        )

    def backfill(self, back: timedelta) -> None:
        now = self.clock.now
        since = max(self.job.created_at, now - min(back, timedelta(hours=3)))
        if since < now:
            job_backfill(self.job.tenant, self.job.pk, since, now, rate_per_minute=60)

    def upgrade(self, move: int) -> None:
        """The operator upgrades, in the middle of whatever, and runs the command."""
        if self.upgraded_at is not None:
            return
        # What a pause has held back is counted when it ends, by the rules in force then.
        self.resume(CatchUp.NONE)
        self.edition = NEW[move]
        self.upgraded_at = self.clock.now
        self.zone_data.install(self.edition)
        list(recompute_schedules(apply=True))

    def _update(self, **said: Any) -> None:
        job_update(
            self.job.tenant, self.job.pk, JobChanges(**said), expected_version=None,
            changed_by="story",
        )  # fmt: skip


def expected_occurrences(history: History, until: datetime) -> set[datetime]:
    """What the job's versions say, up to `until`, each by the zone data of its time."""
    versions = list(JobVersion.objects.filter(job=history.job).order_by("version"))
    ends = [version.effective_from for version in versions[1:]] + [until]
    found: list[datetime] = []
    for version, end in zip(versions, ends, strict=True):
        begin, end = version.effective_from, min(end, until)
        if not version.enabled or version.deleted or begin >= end:
            continue
        wall = parse_wall(version.policies.get("last_wall_time", ""))
        for edition, part_begin, part_end in _by_edition(history, version.tzdata, begin, end):
            history.zone_data.install(edition)
            schedule = schedule_from_json(version.schedule)
            part = occurrences(
                schedule,
                part_begin,
                part_end,
                limit=100_000,
                dst=parse_dst(version.policies["dst"]),
                start_at=stored_instant(version.policies["start_at"]),
                end_at=stored_instant(version.policies["end_at"]),
                last_wall_time=wall,
            )
            wall = wall_time(schedule, part[-1]) if part else wall
            found += part
    history.zone_data.install(history.edition)
    assert len(found) == len(set(found)), "versions overlap"
    return set(found)


def _by_edition(
    history: History, tzdata: str, begin: datetime, end: datetime
) -> Iterator[tuple[Edition, datetime, datetime]]:
    """The parts of (begin, end] with the edition in force in each."""
    upgraded_at = history.upgraded_at
    if upgraded_at is None or tzdata == history.edition.name:
        yield history.edition, begin, end
        return
    if begin < min(upgraded_at, end):
        yield OLD, begin, min(upgraded_at, end)
    if upgraded_at < end:
        yield history.edition, max(begin, upgraded_at), end


def decided_until(job: Job) -> datetime:
    """Up to when everything is decided: short of the cursor, or the time of the delete."""
    deleted = JobVersion.objects.filter(job=job, deleted=True).first()
    if deleted is not None:
        return deleted.effective_from
    cursor = ScheduleCursor.objects.get(job=job)
    if cursor.next_run_at is not None:
        return cursor.next_run_at - timedelta(microseconds=1)
    return BEGIN + timedelta(days=DAYS + 2)


def assert_each_occurrence_is_accounted_for_once(history: History) -> None:
    expected = expected_occurrences(history, decided_until(history.job))
    spans = list(MissedSpan.objects.filter(job=history.job).order_by("from_at"))
    rows = {
        run.scheduled_for: run.trigger
        for run in Run.objects.filter(job=history.job, manual_key=NIL)
    }
    own = {at for at, trigger in rows.items() if trigger != "backfill"}
    assert own <= expected, f"rows that no version says: {sorted(own - expected)[:5]}"
    covered: set[datetime] = set()
    for span in spans:
        inside = {at for at in expected if span.from_at <= at <= span.to_at}
        assert len(inside) == span.count, (span.from_at, span.to_at, span.count, len(inside))
        assert not inside & covered, "two spans count one occurrence"
        assert not inside & own, "a span counts what has a row"
        covered |= inside
    missing = expected - covered - set(rows)
    assert not missing, f"neither row nor count: {sorted(missing)[:5]}"


@pytest.fixture
def zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneData]:
    data = ZoneData(monkeypatch)
    data.install(OLD)
    yield data
    monkeypatch.undo()
    forget_zones()


@pytest.fixture
def clock(zone_data: ZoneData) -> Iterator[StoryClock]:
    with story_clock(BEGIN, days=DAYS + 4) as clock:
        yield clock


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(SCHEDULES),
    st.lists(steps, min_size=2, max_size=10),
    st.booleans(),
)
def test_expected_is_rows_and_counts_over_any_history(
    clock: StoryClock,
    zone_data: ZoneData,
    schedule: dict[str, str],
    story: list[tuple[Any, ...]],
    is_deleted: bool,
) -> None:
    with transaction.atomic():
        clock.set(BEGIN)
        zone_data.install(OLD)
        said = JobChanges(schedule=schedule, task={"image": "a/b:1", "timeout_s": 60})
        history = History(clock, zone_data, job_create(make_tenant(), said, changed_by="story"))
        for step in story:
            if clock.now < BEGIN + timedelta(days=DAYS - 2):
                history.step(*step)
        if is_deleted:
            job_delete(history.job.tenant, history.job.pk, changed_by="story")
        else:
            history.resume(CatchUp.NONE)
        history.tick(timedelta(seconds=1))
        assert_each_occurrence_is_accounted_for_once(history)
        if history.upgraded_at is None:  # the command knows one edition: that in force
            found = check_history(Scope(job=history.job.pk), Checked())
            assert [one for one in found if one.kind in ACCOUNTING] == []
        transaction.set_rollback(True)


def test_the_law_is_not_empty(clock: StoryClock, zone_data: ZoneData) -> None:
    """A history of everything at once, whose numbers are known."""
    said = JobChanges(
        schedule=SCHEDULES[2], task={"image": "a/b:1", "timeout_s": 60},
        dst={"fold": DstPolicy().fold},
    )  # fmt: skip
    history = History(clock, zone_data, job_create(make_tenant(), said, changed_by="story"))
    history.tick(timedelta(hours=5))  # 01:00 to 03:00 counted, 04:00 and 05:00 run
    history.pause(timedelta(hours=4), CatchUp.LATEST)
    history.tick(timedelta(hours=6))  # 06:00 to 09:00 held back, one of them runs; 10:00, 11:00
    history.upgrade(-1)
    history.tick(timedelta(hours=1))
    assert_each_occurrence_is_accounted_for_once(history)
    spans = MissedSpan.objects.filter(job=history.job).values_list("count", "reason")
    assert sorted(spans) == [(3, "outage"), (3, "paused")]
    assert len(expected_occurrences(history, decided_until(history.job))) == 12
