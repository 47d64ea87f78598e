"""Races on real second connections: each racer has a thread and a connection of its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import connection, connections

from tests.support.polling import poll

_DEADLINE_S = 30


def race(racers: Sequence[Callable[[], Any]]) -> list[Any]:
    """Let all racers begin at the same moment; return their results, in order.

    An exception of a racer is raised here. The test must use transactional tables
    (`django_db(transaction=True)`): racers see only what is committed.
    """
    barrier = threading.Barrier(len(racers))

    def run(racer: Callable[[], Any]) -> Any:
        try:
            barrier.wait(_DEADLINE_S)
            return racer()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=len(racers)) as pool:
        futures = [pool.submit(run, racer) for racer in racers]
        return [future.result(_DEADLINE_S) for future in futures]


def blocked_by_us(action: Callable[[], Any]) -> "Future[Any]":
    """Begin `action` on a connection of its own; returns once it waits for a lock that we hold."""

    def run() -> Any:
        try:
            return action()
        finally:
            connections.close_all()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    poll(_somebody_waits_for_a_lock, 10, "the other waits for our lock")
    return future


def _somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        # Not pg_stat_activity, which shows one transaction the same picture all the time.
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
