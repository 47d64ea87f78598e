"""Whatever happens in whatever order: never two containers of a job, and nothing waits for ever.

Random interleavings of all that can happen to a job's runs, carried out by the real functions on
the real database. Containers are counted as a node would have them: one lives from its go until its
worker saw it end, or until the lease of a dead worker is over.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.test import override_settings
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jobs.services import job_delete, job_set_enabled
from runs import dispatcher, leases
from runs.domain.outcome import OutcomeCode, outcome
from runs.domain.run_id import to_milliseconds
from runs.domain.state import FINAL, RunStatus
from runs.errors import RunIsFinalError
from runs.leases import CompleteAnswer, Completion, GoAnswer, Leased
from runs.models import JobGuard, Run
from runs.reaper import reap_dead_sessions, release_stale_guards, requeue_unstarted
from runs.services import run_cancel, run_now
from tests.support.factories import (
    database_now,
    end_lease_of,
    go_request,
    lease,
    make_due_job,
    make_run,
    make_session,
)

pytestmark = pytest.mark.django_db

WAITING_OUTCOMES = [
    OutcomeCode.SUCCEEDED,
    OutcomeCode.NON_ZERO_EXIT,
    OutcomeCode.TIMED_OUT,
    OutcomeCode.ENGINE_UNREACHABLE,
]
RETRY = {"max_attempts": 3, "backoff": "fixed", "base_s": 60, "jitter": "none"}


class World:
    """One job with its runs, two workers, and the containers that are alive."""

    def __init__(self, overlap: str) -> None:
        self.overlap = overlap
        self.job = make_due_job(due_in_s=3_600, overlap=overlap, queue_limit=2, retry=RETRY)
        self.is_deleted = False
        self.live = [make_session(slots=50), make_session(slots=50)]
        self.dead: list[UUID] = []
        self.prepared: list[tuple[UUID, Leased]] = []
        self.containers: dict[UUID, tuple[UUID, Leased]] = {}  # by run
        self.begin = to_milliseconds(database_now() - timedelta(hours=1))
        self.arrived = 0

    # --- what can happen ----------------------------------------------------------------------

    def arrive(self, pick: int) -> None:
        """A run's time comes; now and then that of one that is older than those before it."""
        self.arrived += 1
        seconds = self.arrived * 10 if pick % 4 else 1_000 - self.arrived * 10
        trigger = "catch_up" if pick % 5 == 4 else "schedule"
        if not self.is_deleted:
            make_run(
                self.job, scheduled_for=self.begin + timedelta(seconds=seconds), trigger=trigger
            )

    def begin_one(self, pick: int) -> None:
        """A run comes and gets as far as it may: without this, few stories come to a guard."""
        self.arrive(pick)
        self.prepare(pick)
        self.go(3 + pick % 2 * 3)

    def fail(self, pick: int) -> None:
        """What runs fails, and waits for its next attempt if it has one."""
        self.end(4 * pick + 1)

    def too_late(self, pick: int) -> None:
        """The deadline of a run that has not begun passes; sometimes the duty comes first."""
        waiting = self._runs(status__in=["queued", "leased", "blocked"], attempt=1)
        if waiting:
            run_id = waiting[pick % len(waiting)].run_id
            Run.objects.filter(run_id=run_id).update(deadline_at=database_now())
        if pick % 2:
            dispatcher.expire_once()

    def by_hand(self, pick: int) -> None:
        if not self.is_deleted:
            run_now(self.job.tenant, self.job.job_id)

    def prepare(self, pick: int) -> None:
        waiting = self._runs(status="queued", lease_owner=None, ready_at__lte=database_now())
        if waiting:
            session = self.live[pick % 2]
            self.prepared.append((session, lease(waiting[pick % len(waiting)], session)))

    def go(self, pick: int) -> None:
        """A worker asks for one of its runs, or for all of them at once."""
        session = self.live[pick % 2]
        mine = [leased for owner, leased in self.prepared if owner == session]
        asking = mine if pick % 3 == 0 else mine[pick % len(mine) :][:1] if mine else []
        self._go(session, asking)

    def late_go(self, pick: int) -> None:
        """A frozen worker wakes up, after its lease."""
        for session in self.dead:
            self._go(session, [leased for owner, leased in self.prepared if owner == session])

    def _go(self, session: UUID, asking: list[Leased]) -> None:
        if not asking:
            return
        replies = leases.go(session, "node-1", [go_request(leased) for leased in asking])
        for leased in asking:
            answer = replies[leased.run_id].answer
            assert answer is not GoAnswer.NOT_YET
            assert session in self.live or answer is GoAnswer.LEASE_LOST
            self.prepared.remove((session, leased))
            if answer is GoAnswer.TASK_CHANGED:  # of a version that has no row here
                leases.hand_back(session, [leased])
            if answer is GoAnswer.GO:
                assert leased.run_id not in self.containers, "two containers of one run"
                self.containers[leased.run_id] = (session, leased)

    def end(self, pick: int) -> None:
        """A container ends and its worker reports it; one that was to stop was stopped."""
        mine = [pair for pair in self.containers.values() if pair[0] in self.live]
        if not mine:
            return
        session, leased = mine[pick % len(mine)]
        run = Run.objects.get(run_id=leased.run_id)
        code = WAITING_OUTCOMES[pick % 4]
        if run.cancel_requested_at is not None and pick % 3:
            code = OutcomeCode.CANCELLED
        del self.containers[leased.run_id]
        assert self._complete(session, leased, code) is CompleteAnswer.OK

    def late_end(self, pick: int) -> None:
        """The worker of a dead session saw its container end by itself, and says so late."""
        of_dead = [pair for pair in self.containers.values() if pair[0] in self.dead]
        if of_dead:
            session, leased = of_dead[pick % len(of_dead)]
            del self.containers[leased.run_id]
            self._complete(session, leased, WAITING_OUTCOMES[pick % 4])

    def _complete(self, session: UUID, leased: Leased, code: OutcomeCode) -> CompleteAnswer:
        completion = Completion(
            leased.run_id, leased.scheduled_for, leased.job_id, leased.fence,
            outcome(code, ""), exit_code=0 if code is OutcomeCode.SUCCEEDED else 1,
        )  # fmt: skip
        return leases.complete(session, "node-1", [completion])[leased.run_id]

    def hand_back(self, pick: int) -> None:
        if self.prepared:
            session, leased = self.prepared.pop(pick % len(self.prepared))
            leases.hand_back(session, [leased])

    def cancel(self, pick: int) -> None:
        runs = self._runs()
        if runs:
            try:
                run_cancel(self.job.tenant, runs[pick % len(runs)].run_id)
            except RunIsFinalError:
                raise AssertionError("it was not final a moment ago") from None

    def kill(self, pick: int) -> None:
        """A worker dies, with containers that go on until its lease is over."""
        session = self.live[pick % 2]
        end_lease_of(session)
        self.dead.append(session)
        self.live[pick % 2] = make_session(slots=50)

    def die(self, pick: int) -> None:
        """The worker of what runs dies, half of the time after somebody asked for a cancel."""
        running = [session for session, _ in self.containers.values() if session in self.live]
        if running:
            if pick % 2:
                run_cancel(self.job.tenant, next(iter(self.containers)))
            self.kill(self.live.index(running[0]))

    def reap(self, pick: int) -> None:
        """After the leases: the wardens have killed what was left of the dead."""
        self.containers = {
            run_id: pair for run_id, pair in self.containers.items() if pair[0] in self.live
        }
        requeue_unstarted()
        reap_dead_sessions()

    def wait(self, pick: int) -> None:
        """Backoffs are over."""
        Run.objects.filter(job=self.job, status="queued").update(ready_at=database_now())

    def switch(self, pick: int) -> None:
        """The job is switched off, and on again: what waits past its time is skipped."""
        if not self.is_deleted:
            for enabled in (False, True):
                job_set_enabled(self.job.tenant, self.job.job_id, enabled, changed_by="test")

    def delete(self, pick: int) -> None:
        if pick % 4 == 0 and not self.is_deleted:
            job_delete(
                self.job.tenant, self.job.job_id, cancel_running=pick % 8 == 0, changed_by="test"
            )
            self.is_deleted = True

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        running = set(self._runs(status="running").values_list("run_id", flat=True))
        assert set(self.containers) <= running, "a container of a run that isn't running"
        assert len(self.containers) <= 1, "two containers of a job at once"
        guard = JobGuard.objects.filter(job_id=self.job.job_id).first()
        holder = guard.holder_run_id if guard else None
        if holder is not None:
            assert Run.objects.get(run_id=holder).status not in FINAL, "held by what is over"
        blocked = list(self._runs(status="blocked"))
        assert not blocked or holder is not None, "blocked behind nobody"
        live = [run for run in blocked if run.trigger != "catch_up"]
        assert self.overlap != "replace" or len(live) <= 1, "only the newest waits"
        assert self.overlap != "queue" or len(live) <= 2, "more wait than the limit"
        assert self.overlap != "skip" or not live
        assert not running or running == {holder}

    def finish(self) -> None:
        """Nothing more comes: all that waits has its turn, without any help of the second net."""
        self.reap(0)
        for _ in range(4 * self.arrived + 20):
            if not self._runs():
                break
            for session, leased in list(self.containers.values()):
                del self.containers[leased.run_id]
                self._complete(session, leased, OutcomeCode.SUCCEEDED)
            self.wait(0)
            for n in range(2):
                self.prepare(n)
            for session in self.live:
                self._go(session, [leased for owner, leased in self.prepared if owner == session])
            self.check()
        left = Counter(run.status for run in self._runs())
        assert not left, f"for ever: {left}"
        assert release_stale_guards() == {"guards": 0}
        holder = JobGuard.objects.filter(job_id=self.job.job_id).exclude(holder_run_id=None)
        assert not holder.exists()
        for run in Run.objects.filter(job=self.job, skip_reason="replaced"):
            assert run.replaced_by is not None

    def _runs(self, **conditions: Any) -> Any:
        """The job's runs that are not over, oldest first."""
        rows = Run.objects.filter(job=self.job, finished_at=None, **conditions)
        return rows.order_by("due_at", "run_id")


HAPPENINGS: list[Callable[[World, int], None]] = [
    World.begin_one, World.begin_one, World.arrive, World.by_hand,
    World.prepare, World.prepare, World.prepare, World.go, World.go, World.go,
    World.end, World.fail, World.fail, World.late_end, World.late_go, World.hand_back,
    World.cancel, World.cancel, World.too_late, World.kill, World.die, World.die,
    World.reap, World.reap, World.reap,
    World.wait, World.wait, World.switch, World.delete,
]  # fmt: skip


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 23)), min_size=20, max_size=60
    )
)
def test_any_order_of_events_keeps_runs_apart_and_strands_none(
    overlap: str, steps: list[tuple[Callable[[World, int], None], int]]
) -> None:
    # The database is up for long, by this setting; each story is undone at its end.
    with override_settings(LEASE_S=0.5, MAX_LEASE_LOSSES=3), transaction.atomic():
        leases_that_last = override_settings(LEASE_S=60)
        with leases_that_last:
            world = World(overlap)
        for happening, pick in steps:
            with leases_that_last if happening in (World.kill, World.die) else override_settings():
                happening(world, pick)
            world.check()
        world.finish()
        transaction.set_rollback(True)


def test_the_story_ends_in_every_way_that_there_is() -> None:
    """Not a law of the runs but of the test above: its stories are not all the same."""
    ends: Counter[str] = Counter()
    with override_settings(LEASE_S=60), transaction.atomic():
        world = World("replace")
        for happening, pick in [
            (World.arrive, 1), (World.prepare, 0), (World.go, 0),  # the first runs
            (World.arrive, 2), (World.prepare, 0), (World.go, 0),  # the second waits for it
            (World.arrive, 3), (World.prepare, 0), (World.go, 0),  # the third replaces the second
            (World.end, 2),  # the first is stopped
        ]:  # fmt: skip
            happening(world, pick)
            world.check()
        world.finish()
        ends.update(Run.objects.filter(job=world.job).values_list("status", flat=True))
        transaction.set_rollback(True)
    assert ends == {RunStatus.CANCELLED: 1, RunStatus.SKIPPED: 1, RunStatus.SUCCEEDED: 1}
