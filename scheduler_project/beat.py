"""Our celery beat: it starts the scheduler's duties, watches them, and goes when one is stale.

The loop itself does no work. Each duty has its own thread and connection, so that one that waits
for a lock holds up no other; a duty that has not finished a round in time can't be ended from
outside, so the process ends and its supervisor starts a fresh one.
"""

import time
from typing import Any

from celery.beat import Scheduler
from django.conf import settings
from django.db.utils import Error as DatabaseError

from jobs import pauses
from runs import dispatcher, notifications, planner, reaper, retention, webhook_delivery
from runs.fleet_metrics import FleetMetrics
from runs.shards import ShardLeases
from runs.wakeups import WakeListener
from scheduler_project.checks import refuse_unsound_start
from scheduler_project.lib.duty import Duty
from scheduler_project.lib.events import emit
from scheduler_project.lib.garbage import collect_rarely
from scheduler_project.lib.metrics_http import serve_metrics
from scheduler_project.lib.process_metrics import metrics_duty
from tenants.idempotency import purge_expired

_WATCH_INTERVAL_S = 1.0
_STOP_TIMEOUT_S = 5.0


def scheduler_duties(shards: ShardLeases) -> list[Duty]:
    """Return the duties of one scheduler process, not yet started."""
    plan = planner.Planner(shards.held)
    return [
        Duty("shards", shards.tick, interval_s=settings.SHARD_TICK_S),
        Duty("planner", plan.run_once, interval_s=1.0, busy=plan.is_behind),
        Duty("zone-data", lambda: planner.watch_newer_zone_data(shards.held()), interval_s=60.0),
        Duty(
            "dispatcher",
            dispatcher.dispatch_once,
            interval_s=0.25,
            busy=dispatcher.is_behind,
            shortest_pause_s=0.02,
        ),
        Duty("deadlines", dispatcher.expire_once, interval_s=1.0),
        Duty("pauses", pauses.end_pauses_once, interval_s=1.0, busy=pauses.is_behind),
        Duty("reaper", reaper.reap_once, interval_s=1.0),
        Duty("guards", reaper.release_stale_guards, interval_s=30.0),
        Duty("partitions", retention.create_partitions_once, interval_s=3_600.0),
        Duty("idempotency-keys", _purge_idempotency_keys, interval_s=60.0),
        Duty(
            "notifier",
            webhook_delivery.notify_once,
            interval_s=0.25,
            busy=webhook_delivery.is_behind,
        ),
        Duty("late-runs", notifications.note_late_once, interval_s=2.0),
        Duty("auto-pause", notifications.auto_pause_once, interval_s=1.0),
        Duty("notification-retention", notifications.purge_once, interval_s=60.0),
        Duty("retention", retention.drop_old_partitions_once, interval_s=3_600.0),
    ]


def _purge_idempotency_keys() -> dict[str, int]:
    return {"purged": purge_expired()}


def _metrics_duty(shards: ShardLeases) -> Duty:
    """Serve this process's metrics; return the duty that keeps them fresh."""
    fleet = FleetMetrics(shards)
    fleet.show()
    serve_metrics()
    return metrics_duty(fleet.look_once)


class StaleDuty(SystemExit):
    """A duty hangs: the process ends with an error, so that its supervisor starts it again."""


class ShardedScheduler(Scheduler):
    """Celery beat's scheduler, replaced: `beat -S scheduler_project.beat:ShardedScheduler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._duties: list[Duty] = []
        self._wakes: list[WakeListener] = []
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Start the duties; beat calls this once, before its first tick."""
        refuse_unsound_start()
        self._shards = ShardLeases()
        self._duties = [*scheduler_duties(self._shards), _metrics_duty(self._shards)]
        collect_rarely()
        for duty in self._duties:
            duty.start()
        self._wakes = [
            WakeListener(duty.wake) for duty in self._duties if duty.name == "dispatcher"
        ]
        for listener in self._wakes:
            listener.start()
        emit("scheduler.started", "The scheduler has started its duties.", duties=len(self._duties))

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Watch the duties; return the seconds until the next look. Raises StaleDuty."""
        for duty in self._duties:
            silent_s = duty.silent_for_s()
            longest_s = settings.DUTY_STALE_S + _round_gap_s(duty)
            if not duty.is_alive() or silent_s > longest_s:
                emit("scheduler.stale_duty", "A duty hangs; this scheduler ends to be restarted.",
                     duty=duty.name, silent_s=round(silent_s, 1))  # fmt: skip
                raise StaleDuty(1)
        return _WATCH_INTERVAL_S

    def close(self) -> None:
        """Stop the duties in order; called by beat when it ends."""
        for listener in self._wakes:
            listener.stop()
        for duty in self._duties:
            duty.stop(0)
        until = time.monotonic() + _STOP_TIMEOUT_S
        for duty in self._duties:
            duty.stop(max(0.0, until - time.monotonic()))
        if self._duties:
            self._resign()
        self._duties = []

    def _resign(self) -> None:
        try:
            self._shards.resign_all()
        except DatabaseError as error:
            emit("scheduler.not_resigned", "The shards were not given up; their term ends them.",
                 error=str(error).strip())  # fmt: skip


def _round_gap_s(duty: Duty) -> float:
    return duty.interval_s
