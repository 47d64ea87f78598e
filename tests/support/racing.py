"""Races on real second connections: each racer has a thread and a connection of its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

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
