"""One campaign: strike by plan, heal, wait until all is final, and judge.

1. Start the stack, its witness and its supervisor. 2. Make the jobs. 3. Each lane of faults in a
thread, customers in another. 4. Heal what is left. 5. Wait until every run that is due is final.
6. Compare three accounts: the record with itself (`verify_history`), what clients were told with
the record, and what the engine saw with what may run at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from scheduler_project.stack.engine import Engine
from tests.chaos.clock import SkewedClock
from tests.chaos.faults import INJURIES, Field
from tests.chaos.network import CutNetwork
from tests.chaos.plan import Fault, FaultClass, Kind, Lease, plan_faults
from tests.chaos.witness import Life, Witness, lives_together
from tests.chaos.world import HABITS, NAPPERS, Journal, World
from tests.support.images import ensure_demo_image
from tests.support.polling import poll
from tests.support.private_engine import PrivateEngine
from tests.support.stack_under_test import StackUnderTest
from tests.support.template import Template

# Four seconds between the warden's kill and the reaper: room for a machine that is busy.
LEASE = Lease(lease_s=10, warden_margin_s=3)
SETTINGS = {
    "LEASE_S": f"{LEASE.lease_s:g}",
    "HEARTBEAT_S": "2",
    "WORKER_MARGIN_S": "5",
    "WARDEN_MARGIN_S": f"{LEASE.warden_margin_s:g}",
    "REAP_AFTER_S": "1",
    "WORKER_SLOTS": "6",
    "WORKER_PREPARED_LIMIT": "6",
    # No run may end as lost by us: how often one is struck is the dice's affair.
    "MAX_LEASE_LOSSES": "50",
}
# A killed server must not forget what it has confirmed; the disk itself stays whole.
_DURABLE = {"synchronous_commit": "on"}
_WORKERS, _SCHEDULERS = 3, 2
_CLIENT_PAUSE_S = 0.35
# A thread for each lane, for the customers and for the supervisor.
_MOST_THREADS = 16
_HEAL_S = 60
# Of violations in the table.
_MOST_SHOWN, _LINE = 40, 300
# All final after the last heal: a backlog on a slow machine, back-offs, a lease time.
_SETTLE_S = 300


@dataclass(frozen=True)
class Options:
    """What a campaign is told. `guard` False: the fence's guard is off, and must be missed.

    `jobs`: each is due once a minute. Two cores start four or five containers a second.
    """

    seed: int
    seconds: float
    fault_class: FaultClass = FaultClass.SINGLE
    guard: bool = True
    jobs: int = 180

    @property
    def command(self) -> str:
        words = [f"SEED={self.seed}", f"SECONDS={self.seconds:g}"]
        if self.fault_class is not FaultClass.SINGLE:
            words.append(f"CLASS={self.fault_class}")
        if not self.guard:
            words.append("GUARD=off")
        return f"make chaos {' '.join(words)}"


@dataclass
class Result:
    """What happened. `violations` empty: every promise was kept."""

    options: Options
    faults: Counter[Kind] = field(default_factory=Counter)
    journal: Journal = field(default_factory=Journal)
    runs: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    containers: int = 0
    # Of first attempts that wait for no other run of their job: half, 95 % and all are below.
    late_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    settled_in_s: float = 0.0
    violations: list[str] = field(default_factory=list)


def run_campaign(options: Options, directory: Path, template: Template) -> Result:
    """Run one campaign with its files below `directory`; everything is ended and removed."""
    result = Result(options)
    with _field(directory, template, options) as world:
        _Campaign(options, world, result).run()
    return result


@contextmanager
def _field(directory: Path, template: Template, options: Options) -> Iterator[Field]:
    """A stack on an engine of its own, one worker behind a network that can be cut."""
    with ExitStack() as things:
        engine = PrivateEngine()
        things.callback(engine.destroy)
        ensure_demo_image(engine.docker_host)
        guard_off = {"UNSAFE_NO_FENCE_GUARD": "1", "DEBUG": "1"}
        stack = StackUnderTest(
            directory,
            template,
            Engine(engine.docker_host),
            schedulers=_SCHEDULERS,
            workers=_WORKERS,
            database=_DURABLE,
            env=SETTINGS | ({} if options.guard else guard_off),
        )
        things.enter_context(closing(stack))
        network = things.enter_context(
            closing(CutNetwork([stack.postgres.server.port, stack.redis.server.port]))
        )
        stack.workers[0].command = [*network.prefix, *stack.workers[0].command]
        clocks = [_own_clock(directory, stack, n) for n in range(_SCHEDULERS)]
        stack.start()
        yield Field(stack, engine, network, clocks)


def _own_clock(directory: Path, stack: StackUnderTest, n: int) -> SkewedClock:
    process = stack.schedulers[n]
    clock = SkewedClock(directory, process.name)
    process.environment = {**process.environment, **clock.environment}
    return clock


class _Campaign:
    def __init__(self, options: Options, field_: Field, result: Result) -> None:
        self._options, self._field, self._result = options, field_, result
        self._stack = field_.stack
        naps = options.fault_class is FaultClass.NAPS
        self._world = World(self._stack, options.seed, NAPPERS if naps else HABITS)
        result.journal = self._world.journal
        self._stop = threading.Event()
        self._stop_supervising = threading.Event()
        self._begun_s = 0.0
        self._begun_at = datetime.now(UTC)

    def run(self) -> None:
        witness = Witness(self._field.engine.docker_host, self._stack.instance)
        witness.start()
        # Its threads outlive their tasks: what a thread has started, the kernel kills with it.
        with ThreadPoolExecutor(thread_name_prefix="chaos", max_workers=_MOST_THREADS) as threads:
            try:
                self._live(threads)
                self._settle()
            finally:
                witness.stop()
            self._count()
            self._judge(witness.lives)

    def _live(self, threads: ThreadPoolExecutor) -> None:
        """The part with faults. Ends with everything healed, whatever happened."""
        seconds = self._options.seconds
        ((now,),) = self._stack.rows("SELECT now()")
        begin = now + timedelta(seconds=5)
        self._world.populate(self._options.jobs, begin, begin + timedelta(seconds=seconds))
        plans = plan_faults(self._options.seed, seconds, LEASE, self._options.fault_class)
        self._begun_s = time.monotonic()
        ((self._begun_at,),) = self._stack.rows("SELECT now()")
        working: list[Future[Any]] = [
            *(threads.submit(self._lane, lane) for lane in plans.values()),
            threads.submit(self._world.act, self._stop, _CLIENT_PAUSE_S),
        ]
        supervising = threads.submit(self._supervise)
        try:
            # The first that fails ends the campaign: its error is raised below.
            timer = threading.Timer(seconds, self._stop.set)
            timer.start()
            while not self._stop.wait(0.5):
                if any(each.done() and each.exception() for each in [supervising, *working]):
                    self._stop.set()
            timer.cancel()
            # Servers that are down come up again, and what clients asked for is answered.
            wait(working, timeout=_HEAL_S)
        finally:
            self._stop.set()
            self._world.give_up()
            self._stop_supervising.set()
        for each in [*working, supervising]:
            each.result()

    def _lane(self, faults: list[Fault]) -> None:
        """Strike and heal one fault after the other; late healing pushes the others back."""
        late_s = 0.0
        for fault in faults:
            while (pause_s := self._begun_s + fault.at_s + late_s - time.monotonic()) > 0:
                if self._stop.wait(pause_s):
                    return
            injury = INJURIES[fault.kind]
            begun = time.monotonic()
            try:
                injury.strike(self._field, fault)
                self._result.faults[fault.kind] += 1
                self._stop.wait(fault.lasts_s)
            finally:
                injury.heal(self._field, fault)
            late_s += max(0.0, time.monotonic() - begun - fault.lasts_s)
            if self._stop.is_set():
                return

    def _supervise(self) -> None:
        while not self._stop_supervising.wait(0.3):
            self._field.supervise()

    def _settle(self) -> None:
        """Wait until every run that is due is final, and every planned one is due."""
        begun = time.monotonic()

        def is_settled() -> bool:
            self._field.supervise()
            try:
                ((left,),) = self._stack.rows("SELECT count(*) FROM runs WHERE finished_at IS NULL")
                ((due,),) = self._stack.rows(
                    "SELECT count(*) FROM schedule_cursors WHERE next_run_at IS NOT NULL"
                )
            except psycopg.OperationalError:
                return False
            return bool(left == 0 and due == 0)

        try:
            poll(is_settled, _SETTLE_S, "every run is final", every_s=1)
        except AssertionError:
            rows = self._stack.rows(
                "SELECT status, count(*), min(due_at) FROM runs"
                " WHERE finished_at IS NULL GROUP BY 1"
            )
            self._result.violations.append(f"not final {_SETTLE_S} s after the last heal: {rows}")
        self._result.settled_in_s = time.monotonic() - begun

    def _count(self) -> None:
        rows, result = self._stack.rows, self._result
        result.runs.update(dict(rows("SELECT status, count(*) FROM runs GROUP BY 1")))
        result.attempts.update(dict(rows("SELECT outcome, count(*) FROM run_attempts GROUP BY 1")))
        result.events.update(dict(rows("SELECT kind, count(*) FROM run_events GROUP BY 1")))
        ((half, most, worst),) = rows(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), "
            "       percentile_cont(0.95) WITHIN GROUP (ORDER BY late), max(late) FROM ("
            " SELECT extract(epoch FROM a.started_at - r.due_at)::float8 AS late FROM runs r"
            " JOIN run_attempts a USING (run_id, scheduled_for) JOIN jobs j USING (job_id)"
            " WHERE a.attempt = 1 AND j.overlap = 'allow' AND a.started_at IS NOT NULL) lags"
        )
        result.late_s = (half or 0.0, most or 0.0, worst or 0.0)

    # --- judging --------------------------------------------------------------------------------

    def _judge(self, lives: list[Life]) -> None:
        self._result.containers = len(lives)
        self._result.violations += [
            *self._record(),
            *self._promises(),
            *self._fates(),
            *self._obedience(),
            *self._engine_s_account(lives),
            *self._result.journal.broken,
        ]

    def _record(self) -> list[str]:
        """What `manage.py verify_history` finds."""
        done = self._stack.command("verify_history")
        if done.returncode == 0:
            return []
        found = [line for line in done.stdout.splitlines() if line]
        return found or [f"verify_history failed:\n{done.stderr[-2000:]}"]

    def _promises(self) -> Iterator[str]:
        """Every run that a client was told it has is there and over; none was made twice."""
        journal = self._result.journal
        known = {
            str(run_id): (str(job_id), status)
            for run_id, job_id, status in self._stack.rows(
                "SELECT run_id, job_id, status FROM runs WHERE trigger = 'manual'"
            )
        }
        for run_id, job_id in journal.promised_runs.items():
            if run_id not in known:
                yield f"lost: run {run_id} of job {job_id} was promised to a client"
        for run_id in known.keys() - journal.promised_runs.keys():
            yield f"made twice: run {run_id} answers no request of a client"

    def _fates(self) -> Iterator[str]:
        """No customer's run ends otherwise than its program does, whatever befell our machines."""
        for job_id, run_id, status, outcome, exit_code, at_s in self._stack.rows(
            "SELECT job_id, run_id, status, outcome, exit_code,"
            " extract(epoch FROM finished_at - %s)::float8 FROM runs"
            " WHERE status IN ('succeeded', 'failed')",
            self._begun_at,
        ):
            habit = self._result.journal.habits.get(str(job_id))
            if habit is not None and habit.fate not in (None, status):
                how = f"{outcome}, exit code {exit_code}, after {at_s:.0f} s"
                yield f"wrong fate: run {run_id} of a {habit.name} job {status} ({how})"

    def _obedience(self) -> Iterator[str]:
        """No attempt begins long after a cancel of its run, nor after the delete of its job.

        Whoever holds the run learns of a cancel with its next look, at the latest when its lease
        is over; a delete is read by the go itself.
        """
        cancelled_ids = sorted(self._result.journal.cancelled_runs)
        for run_id, late_s in self._stack.rows(
            "SELECT r.run_id, extract(epoch FROM a.go_at - r.cancel_requested_at)::float8"
            " FROM runs r JOIN run_attempts a USING (run_id, scheduled_for)"
            " WHERE r.run_id = ANY(%s::uuid[])"
            " AND a.go_at > r.cancel_requested_at + make_interval(secs => %s)",
            cancelled_ids,
            LEASE.lease_s + 2,
        ):
            yield f"disobeyed: run {run_id} began {late_s:.1f} s after its cancel"
        for job_id, run_id, late_s in self._stack.rows(
            "SELECT job_id, run_id, extract(epoch FROM a.go_at - j.deleted_at)::float8"
            " FROM jobs j JOIN runs r USING (job_id)"
            " JOIN run_attempts a USING (run_id, scheduled_for)"
            " WHERE a.go_at > j.deleted_at + interval '1 second'"
        ):
            yield f"disobeyed: run {run_id} began {late_s:.1f} s after job {job_id} was deleted"

    def _engine_s_account(self, lives: list[Life]) -> Iterator[str]:
        """No two containers of one run at once, nor of one job whose runs must not overlap."""
        for earlier, later, both_s in lives_together(lives, lambda life: life.run):
            yield f"by the engine: {earlier} and {later} ran at once for {both_s:.1f} s"
        bound = [life for life in lives if life.job not in self._result.journal.free_jobs]
        for earlier, later, both_s in lives_together(bound, lambda life: life.job):
            if earlier.run != later.run:
                yield f"by the engine: {earlier} and {later} of one job, together {both_s:.1f} s"


def table(result: Result) -> str:
    """One table for people: what was done, what came of it, what was broken."""
    rows = [(kind.value, str(result.faults[kind])) for kind in Kind if result.faults[kind]]
    total = sum(result.faults.values())
    rows.append(("faults", f"{total} of {len(result.faults)} kinds"))
    for name, counts in (
        ("clients", result.journal.actions),
        ("runs", result.runs),
        ("attempts", result.attempts),
        ("events", result.events),
    ):
        parts = ", ".join(f"{counts[key]} {key or 'open'}" for key in sorted(counts))
        rows.append((name, f"{sum(counts.values())} ({parts})"))
    rows += [
        ("containers by the engine", str(result.containers)),
        ("lateness: half, 95 %, worst", ", ".join(f"{late:.1f} s" for late in result.late_s)),
        ("all final after", f"{result.settled_in_s:.0f} s"),
        ("violations", str(len(result.violations))),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    shown = [f"  {each[:_LINE]}" for each in result.violations[:_MOST_SHOWN]]
    if len(result.violations) > _MOST_SHOWN:
        shown.append(f"  … and {len(result.violations) - _MOST_SHOWN} more")
    return "\n".join([*lines, *shown])
