"""Finds what is left over where no duty should leave anything, says what it means, and mends it.

Nothing here is a rule of its own: it asks the rows, and repairs by the services and duties that
would have done it. Finding something is a reason to look why they did not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import redis
from django.conf import settings
from django.db import connection
from django.db.models import Max
from django.db.models.functions import Now

from jobs.cursors import IS_OFF, cursor_make, cursor_stop
from jobs.models import Job, JobVersion, MissedSpan, ScheduleCursor
from runs import store, transport
from runs.domain.state import HELD
from runs.models import NIL, JobGuard, Run
from runs.partitions import TABLES, database_today, partition_name
from runs.reaper import reap_once, release_stale_guards
from runs.retention import create_partitions_once, drop_old_partitions_once
from workers.models import WorkerSession
from workers.sandbox.base import OwnedContainer, Sandbox, SandboxError

# Far above what NTP leaves, far below what a lease's margins bear.
MOST_CLOCK_SKEW_S: Final = 1.0
# A live worker removes a container within moments of its run's end.
SETTLE_S: Final = 3.0
_QUEUES: Final = "runs.*"


@dataclass(frozen=True)
class Complaint:
    """One kind of trouble: what it means, what a repair does, how it is found and mended.

    `find` names what is affected, a line each. `repair` None: nobody here can mend it.
    """

    code: str
    means: str
    remedy: str
    find: Callable[[], list[str]]
    repair: Callable[[], object] | None = None


@dataclass(frozen=True)
class Diagnosis:
    """A complaint and what it was found about."""

    complaint: Complaint
    about: Sequence[str]


class Doctor:
    """Examines the database, the broker, and the engine of this node."""

    def __init__(self, sandbox: Sandbox, *, settle_s: float = SETTLE_S) -> None:
        """`settle_s`: how long a container of a live session may be without its run."""
        self._sandbox = sandbox
        self._settle_s = settle_s

    def examine(self) -> list[Diagnosis]:
        """Look at everything; what is well is missing from the answer."""
        looked = [Diagnosis(complaint, complaint.find()) for complaint in self.complaints()]
        return [diagnosis for diagnosis in looked if diagnosis.about]

    def complaints(self) -> list[Complaint]:
        """Every kind of trouble, in the order in which they are repaired."""
        return [
            Complaint(
                "run_of_the_dead",
                "runs are held by worker sessions that have ended or lost their lease; "
                "the reaper takes such runs within seconds, if a scheduler runs",
                "take them back, as the reaper does",
                _runs_of_the_dead,
                reap_once,
            ),
            Complaint(
                "stale_guard",
                "a job's guard is held by a run that is over or gone: the job's other runs are "
                "skipped or wait behind it",
                "pass the guards on, as the duty `guards` does",
                _stale_guards,
                release_stale_guards,
            ),
            Complaint(
                "engine_silent",
                "the container engine of this node does not answer, so its containers were not "
                "looked at",
                "start the engine, or run this on a node that has one",
                self._engine_silent,
            ),
            Complaint(
                "container_without_run",
                "containers of ours belong to no run that is under way under their fence: the "
                "warden of this node does not run, or could not remove them",
                "remove the containers",
                lambda: [_named(container) for container in self._lone_containers()],
                self._remove_lone,
            ),
            Complaint(
                "broker_silent",
                "Redis does not answer: workers find their runs by themselves, a second later",
                "start Redis",
                _broker_silent,
            ),
            Complaint(
                "queue_of_the_dead",
                "queues of worker sessions that are over still hold messages; nobody reads them, "
                "and the runs have other owners by now",
                "delete the queues",
                _dead_queues,
                lambda: transport.forget_queues(_dead_queues()),
            ),
            Complaint(
                "missing_partition",
                "days ahead have no partition: on the first of them no run can be written",
                "make them, as the duty `partitions` does",
                _missing_partitions,
                create_partitions_once,
            ),
            Complaint(
                "half_dropped_partition",
                "days were being dropped when that was interrupted; they are in nobody's way, but "
                "take space, and a pending detach holds up the next",
                "finish dropping them, as the duty `retention` does; one younger than "
                "RETENTION_DAYS stays (attach it again by hand)",
                _half_dropped_partitions,
                drop_old_partitions_once,
            ),
            Complaint(
                "clock_skew",
                f"this host's clock is more than {MOST_CLOCK_SKEW_S:g} s from the database's: "
                "nothing is decided by it, but log lines and engine times are off",
                "set the clock (NTP)",
                _clock_skew,
            ),
            Complaint(
                "cursor_of_the_off",
                "jobs are off or deleted, and their cursors stand at an occurrence; the planner "
                "would come to it in vain",
                "let the cursors stand nowhere",
                lambda: [str(job_id) for job_id in _cursors_of_the_off()],
                lambda: [cursor_stop(job_id) for job_id in _cursors_of_the_off()],
            ),
            Complaint(
                "no_cursor",
                "jobs have no cursor: they are never planned, and cannot be changed",
                "give them one that stands after the last occurrence accounted for; what fell due "
                "since is late, and the job's misfire policy decides",
                lambda: [str(job_id) for job_id in _jobs_without_cursor()],
                _make_cursors,
            ),
        ]

    # --- the engine ---------------------------------------------------------------------------

    def _engine_silent(self) -> list[str]:
        return [] if self._sandbox.ping() else [settings.DOCKER_HOST]

    def _lone_containers(self) -> list[OwnedContainer]:
        """Containers without a run, seen twice: a live worker is just about to remove its own."""
        try:
            lone = _without_run(self._sandbox.list_ours())
            if any(container.handle.session_id in _live_sessions() for container in lone):
                time.sleep(self._settle_s)  # a grace for others, not a wait for a state
                lone = _without_run(self._sandbox.list_ours())
        except SandboxError:
            return []
        return lone

    def _remove_lone(self) -> None:
        for container in self._lone_containers():
            self._sandbox.remove(container.handle)


def _named(container: OwnedContainer) -> str:
    handle = container.handle
    return f"{handle.name} ({container.state}), of session {handle.session_id}"


def _without_run(containers: Sequence[OwnedContainer]) -> list[OwnedContainer]:
    """Those whose run is not under way under their very fence; asked after they were listed."""
    run_ids = [container.handle.run_id for container in containers]
    held = set(
        Run.objects.filter(
            run_id__in=run_ids, status__in=HELD, lease_owner__in=_live_sessions()
        ).values_list("run_id", "fence")
    )
    return [each for each in containers if (each.handle.run_id, each.handle.fence) not in held]


def _live_sessions() -> set[UUID]:
    live = WorkerSession.objects.filter(ended_at=None, lease_expires_at__gt=Now())
    return set(live.values_list("session_id", flat=True))


# --- runs, guards, cursors --------------------------------------------------------------------


def _runs_of_the_dead() -> list[str]:
    held = Run.objects.filter(lease_owner__isnull=False, finished_at=None)
    lost = held.exclude(lease_owner__in=_live_sessions()).order_by("run_id")
    return [
        f"{run.run_id} ({run.status}), held by session {run.lease_owner}" for run in lost.iterator()
    ]


def _stale_guards() -> list[str]:
    held = JobGuard.objects.filter(holder_run_id__isnull=False).values_list("job_id", flat=True)
    stale = store.fetch("stale_guards", job_ids=list(held))
    return [f"job {row.job_id}, held by run {row.holder_run_id}" for row in stale]


def _cursors_of_the_off() -> list[UUID]:
    off = ScheduleCursor.objects.filter(
        job_id__in=Job.objects.filter(IS_OFF).values("job_id"), next_run_at__isnull=False
    )
    return list(off.order_by("job_id").values_list("job_id", flat=True))


def _jobs_without_cursor() -> list[UUID]:
    lone = Job.objects.filter(schedulecursor=None, deleted_at=None).order_by("job_id")
    return list(lone.values_list("job_id", flat=True))


def _make_cursors() -> None:
    for job_id in _jobs_without_cursor():
        job = Job.objects.get(job_id=job_id)
        version = JobVersion.objects.filter(job=job, version=job.version).first()
        run = Run.objects.filter(job=job, manual_key=NIL).aggregate(last=Max("scheduled_for"))
        span = MissedSpan.objects.filter(job=job).aggregate(last=Max("to_at"))
        begun = version.effective_from if version else job.created_at
        cursor_make(job_id, max(at for at in (begun, run["last"], span["last"]) if at is not None))


# --- broker, partitions, clock ----------------------------------------------------------------


def _redis() -> redis.Redis | None:
    """A client, or None when another broker than Redis is used: its queues expire by themselves."""
    if not settings.CELERY_BROKER_URL.startswith(("redis:", "rediss:", "unix:")):
        return None
    return redis.Redis.from_url(
        settings.CELERY_BROKER_URL, socket_timeout=5, socket_connect_timeout=2
    )


def _broker_silent() -> list[str]:
    try:
        if client := _redis():
            client.ping()
    except redis.RedisError as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def _dead_queues() -> list[str]:
    client = _redis()
    if client is None:
        return []
    try:
        queues = {key.decode() for key in client.scan_iter(match=_QUEUES, _type="list")}
    except redis.RedisError:
        return []
    # Asked afterwards: a session is registered before its queue exists.
    live = set(WorkerSession.objects.filter(ended_at=None).values_list("queue", flat=True))
    return sorted(queues - live)


def _missing_partitions() -> list[str]:
    today = database_today(connection)
    # The duty runs each hour, so that the last day may be missing for a while after midnight.
    days = [today + timedelta(days=n) for n in range(settings.PARTITION_DAYS_AHEAD)]
    names = [partition_name(table, day) for day in days for table in TABLES]
    return _names(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL", names
    )


def _half_dropped_partitions() -> list[str]:
    return _names(
        "SELECT c.relname FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
        " WHERE c.relkind = 'r' AND c.relname ~ %s AND i.inhdetachpending IS NOT FALSE"
        " ORDER BY c.relname",
        f"^({'|'.join(TABLES)})_[0-9]{{8}}$",
    )


def _names(statement: str, parameter: Any) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [parameter])
        return [name for (name,) in cursor.fetchall()]


def _clock_skew() -> list[str]:
    before = time.time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        (database,) = cursor.fetchone()
    after = time.time()
    # Half the round trip is what can't be known.
    skew_s = database - (before + after) / 2
    if abs(skew_s) - (after - before) / 2 <= MOST_CLOCK_SKEW_S:
        return []
    return [f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database"]
