"""How each kind of fault is done and undone. Its rule: real signals, real servers, real packets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
import redis

from runs.messages import Message, redis_envelope
from tests.chaos.clock import SkewedClock
from tests.chaos.network import CutNetwork
from tests.chaos.plan import Fault, Kind
from tests.support.polling import poll
from tests.support.private_engine import PrivateEngine
from tests.support.processes import Process
from tests.support.stack_under_test import StackUnderTest

# How wrong a scheduler's clock is made, in seconds: minutes, hours, a day, both ways.
_SKEWS_S = (-86_400, -3_600, -90, -5, 5, 90, 3_600, 86_400)
_MOST_COPIES = 40
# A busy machine's: until a run that has lost its worker is under way on another.
_NEXT_ATTEMPT_S = 60


@dataclass
class Field:
    """What faults are done to. `lock`: one at a time starts and ends processes.

    `down` are processes that a fault keeps down; whatever else dies is started again at once.
    """

    stack: StackUnderTest
    engine: PrivateEngine
    network: CutNetwork
    clocks: list[SkewedClock]
    lock: threading.RLock = field(default_factory=threading.RLock)
    down: set[str] = field(default_factory=set)
    # Messages as Redis had them, to be delivered again, some of them long after their run.
    copies: list[tuple[str, bytes]] = field(default_factory=list)

    def supervise(self) -> list[str]:
        """Start what has died and is not kept down; returns the names."""
        stack = self.stack
        started = []
        with self.lock:
            for process in [stack.warden, *stack.workers, *stack.schedulers, stack.api]:
                if not process.is_alive and process.name not in self.down:
                    process.start()
                    started.append(process.name)
        return started


class Injury(Protocol):
    """One kind of fault. `heal` undoes it and returns when the thing works again."""

    def strike(self, world: Field, fault: Fault) -> None: ...

    def heal(self, world: Field, fault: Fault) -> None: ...


Choose = Callable[[StackUnderTest, int], Process]


@dataclass(frozen=True)
class Killed:
    """SIGKILL to a process and its children; started again as a supervisor would."""

    choose: Choose

    def strike(self, world: Field, fault: Fault) -> None:
        process = self.choose(world.stack, fault.target)
        with world.lock:
            world.down.add(process.name)
            process.kill()

    def heal(self, world: Field, fault: Fault) -> None:
        process = self.choose(world.stack, fault.target)
        with world.lock:
            world.down.discard(process.name)
            process.start()


@dataclass
class Frozen:
    """SIGSTOP, and SIGCONT at the end."""

    choose: Choose

    def strike(self, world: Field, fault: Fault) -> None:
        with world.lock:
            self.choose(world.stack, fault.target).freeze()

    def heal(self, world: Field, fault: Fault) -> None:
        with world.lock:
            self.choose(world.stack, fault.target).thaw()


@dataclass
class Asleep(Frozen):
    """SIGSTOP while it has containers that end by themselves; SIGCONT once a run of theirs is
    under way elsewhere, however long that takes on a busy machine."""

    _had: list[tuple[Any, int]] = field(default_factory=list)

    def strike(self, world: Field, fault: Fault) -> None:
        with suppress(AssertionError):  # nothing to run just now: an ordinary nap
            poll(lambda: self._running(world, fault), _NEXT_ATTEMPT_S, "it runs something")
        super().strike(world, fault)
        self._had = self._running(world, fault)

    def heal(self, world: Field, fault: Fault) -> None:
        with suppress(AssertionError):
            poll(lambda: self._runs_elsewhere(world), _NEXT_ATTEMPT_S, "it runs elsewhere")
        super().heal(world, fault)

    def _running(self, world: Field, fault: Fault) -> list[tuple[Any, int]]:
        return world.stack.rows(
            "SELECT r.run_id, r.attempt FROM runs r"
            " JOIN worker_sessions s ON s.session_id = r.lease_owner"
            " WHERE s.pid = %s AND s.ended_at IS NULL AND r.status = 'running'"
            " AND r.started_at IS NOT NULL",
            self.choose(world.stack, fault.target).pid,
        )

    def _runs_elsewhere(self, world: Field) -> bool:
        # A moment ago at the least, so that the other worker has written down its start.
        later = world.stack.rows(
            "SELECT r.run_id, r.attempt FROM runs r WHERE r.run_id = ANY(%s)"
            " AND r.status = 'running' AND r.go_at < now() - interval '1 second'",
            [run_id for run_id, _ in self._had],
        )
        had = dict(self._had)
        return any(attempt > had[run_id] for run_id, attempt in later)


class EngineRestarted:
    """dockerd is killed; without its live-restore option it ends what runs when it comes back."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.engine.kill()

    def heal(self, world: Field, fault: Fault) -> None:
        world.engine.start()


class EngineFrozen:
    """dockerd takes connections and answers none."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.engine.freeze()

    def heal(self, world: Field, fault: Fault) -> None:
        world.engine.thaw()


class NetworkCut:
    """The first worker's packets to and from the database are dropped."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.network.cut(world.stack.postgres.server.port)

    def heal(self, world: Field, fault: Fault) -> None:
        world.network.mend()


class DatabaseRestarted:
    """A fast shutdown: every client is thrown out."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.stack.postgres.stop()

    def heal(self, world: Field, fault: Fault) -> None:
        world.stack.postgres.start()


class DatabaseKilled(DatabaseRestarted):
    """SIGKILL: it recovers from its log when it comes back."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.stack.postgres.kill()


class BrokerEmptied:
    """FLUSHALL: messages, queues, bindings, counters of rates."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.stack.redis.flush()

    def heal(self, world: Field, fault: Fault) -> None:
        """Nothing to undo."""


class BrokerRestarted:
    """It comes back empty; half of the times it was killed, else asked to end."""

    def strike(self, world: Field, fault: Fault) -> None:
        if fault.luck % 2:
            world.stack.redis.kill()
        else:
            world.stack.redis.stop()

    def heal(self, world: Field, fault: Fault) -> None:
        world.stack.redis.start()


class MessagesDelayed:
    """The broker is asleep: what was sent before and meanwhile arrives when it wakes up."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.stack.redis.process.freeze()

    def heal(self, world: Field, fault: Fault) -> None:
        world.stack.redis.process.thaw()


class MessagesDoubled:
    """Messages are delivered again, now and much later, to their own queue and to others'.

    Taken are those in queues and those fetched and not acknowledged, as Redis has them; a worker
    holds each for so short a time that few are there, so messages of runs in every state are
    added, made by the function that makes them for the dispatcher.
    """

    def strike(self, world: Field, fault: Fault) -> None:
        with suppress(redis.RedisError, psycopg.Error), world.stack.redis.connect() as connected:
            client: Any = connected  # its types leave open whether it is awaited
            queues = [key for key in client.keys("runs.*") if client.type(key) == b"list"]
            fresh = [(q.decode(), raw) for q in queues for raw in client.lrange(q, 0, _MOST_COPIES)]
            fresh += _unacknowledged(client)
            names, made = _made(world)
            world.copies += [*fresh, *made]
            chosen = [*world.copies[-_MOST_COPIES:], *world.copies[: fault.luck % _MOST_COPIES]]
            for n, (queue, raw) in enumerate(chosen):
                client.lpush(queue, raw)
                if names:
                    client.lpush(names[(fault.luck + n) % len(names)], raw)

    def heal(self, world: Field, fault: Fault) -> None:
        """Nothing to undo: it is up to the product that they do no harm."""


def _unacknowledged(client: Any) -> list[tuple[str, bytes]]:
    """Messages that workers have fetched and hold: kombu keeps a copy of each."""
    found = []
    for text in client.hvals("unacked"):
        message, _, routing_key = json.loads(text)
        if str(routing_key).startswith("runs."):
            found.append((str(routing_key), json.dumps(message).encode()))
    return found[:_MOST_COPIES]


def _made(world: Field) -> tuple[list[str], list[tuple[str, bytes]]]:
    """The queues of living sessions, and messages of runs in any state for their owner's queue."""
    queues = world.stack.rows(
        "SELECT session_id, queue FROM worker_sessions WHERE ended_at IS NULL"
    )
    by_session = {session_id: str(queue) for session_id, queue in queues}
    names = sorted(by_session.values())
    runs = world.stack.rows(
        "SELECT run_id, attempt, lease_owner FROM runs WHERE due_at < now() + interval '1 minute'"
        " ORDER BY finished_at IS NULL DESC, due_at DESC LIMIT %s",
        _MOST_COPIES,
    )
    made = []
    for n, (run_id, attempt, owner) in enumerate(runs):
        queue = by_session.get(owner) or (names[n % len(names)] if names else None)
        if queue is not None:
            made.append((queue, redis_envelope(Message(run_id, attempt, queue, None))))
    return names, made


class ClockSkewed:
    """A scheduler's wall clock jumps by minutes, hours or a day, and jumps back at the end."""

    def strike(self, world: Field, fault: Fault) -> None:
        world.clocks[fault.target % len(world.clocks)].skew(_SKEWS_S[fault.luck % len(_SKEWS_S)])

    def heal(self, world: Field, fault: Fault) -> None:
        world.clocks[fault.target % len(world.clocks)].skew(0)


def _worker(stack: StackUnderTest, target: int) -> Process:
    return stack.workers[target % len(stack.workers)]


def _scheduler(stack: StackUnderTest, target: int) -> Process:
    return stack.schedulers[target % len(stack.schedulers)]


def _warden(stack: StackUnderTest, target: int) -> Process:
    return stack.warden


def _api(stack: StackUnderTest, target: int) -> Process:
    return stack.api


INJURIES: dict[Kind, Injury] = {
    Kind.WORKER_KILLED: Killed(_worker),
    Kind.WORKER_FROZEN: Frozen(_worker),
    Kind.WORKER_ASLEEP: Asleep(_worker),
    Kind.WARDEN_KILLED: Killed(_warden),
    Kind.WARDEN_FROZEN: Frozen(_warden),
    Kind.ENGINE_RESTARTED: EngineRestarted(),
    Kind.ENGINE_FROZEN: EngineFrozen(),
    Kind.NETWORK_CUT: NetworkCut(),
    Kind.DATABASE_RESTARTED: DatabaseRestarted(),
    Kind.DATABASE_KILLED: DatabaseKilled(),
    Kind.BROKER_EMPTIED: BrokerEmptied(),
    Kind.BROKER_RESTARTED: BrokerRestarted(),
    Kind.MESSAGES_DELAYED: MessagesDelayed(),
    Kind.MESSAGES_DOUBLED: MessagesDoubled(),
    Kind.SCHEDULER_KILLED: Killed(_scheduler),
    Kind.SCHEDULER_FROZEN: Frozen(_scheduler),
    Kind.CLOCK_SKEWED: ClockSkewed(),
    Kind.API_KILLED: Killed(_api),
}
