"""Pages of lists from a replica, where there is one; its rule: never one too old, never an error.

How old? Again and again the primary is asked how far its log has come, and the replica how far it
has replayed it. What the replica shows is at least as new as the latest such mark that it has
reached. That is timed by this process's own clock, so that nothing deceives it: neither a primary
that has written nothing for hours, nor a replica that was cut off without noticing, which believes
that it is at the end. Whatever goes wrong, the primary is asked instead.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Final, TypeVar

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import Error as DatabaseError

from scheduler_project.lib.duty import Duty
from scheduler_project.lib.events import emit
from scheduler_project.lib.metrics import set_gauge
from scheduler_project.lib.read_watch import ReadWatch

REPLICA: Final = "replica"
# A list takes milliseconds; one that takes this long is read from the primary.
READ_LIMIT_S: Final = 2.0
# Both say whose log it is: that of another installation would compare as well. One that is no
# replica any more has its own log by now.
_WRITTEN: Final = (
    "SELECT system_identifier, pg_current_wal_insert_lsn() - '0/0'::pg_lsn FROM pg_control_system()"
)
_REPLAYED: Final = (
    "SELECT system_identifier, CASE WHEN pg_is_in_recovery()"
    " THEN pg_last_wal_replay_lsn() - '0/0'::pg_lsn END FROM pg_control_system()"
)

T = TypeVar("T")


class Freshness:
    """How old what the replica shows is at most; one per process, fed by `look_once`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: deque[tuple[int, float]] = deque()
        self._reached_at = -inf

    def lag_s(self) -> float:
        """Return the age in seconds; infinite while nothing is known."""
        return time.monotonic() - self._reached_at

    def is_good(self) -> bool:
        """Return whether lists may be read from the replica now."""
        return self.lag_s() <= settings.REPLICA_MAX_LAG_S

    def forget(self) -> None:
        """Trust the replica no more, until the next look finds it well."""
        with self._lock:
            self._marks.clear()
            self._reached_at = -inf

    def note(self, written: int, written_at: float, replayed: int) -> None:
        """Take in that the log stood at `written` at that time, and how far it is replayed now."""
        with self._lock:
            self._marks.append((written, written_at))
            while self._marks and self._marks[0][0] <= replayed:
                _, self._reached_at = self._marks.popleft()
            # A replica that stands still would gather marks for ever; the newest are enough.
            while len(self._marks) > _MOST_MARKS:
                self._marks.pop()

    def look_once(self) -> dict[str, int]:
        """Ask both servers; raises DatabaseError when one doesn't answer."""
        was_good = self.is_good()
        try:
            written_at = time.monotonic()
            primary, written = _ask(DEFAULT_DB_ALIAS, _WRITTEN)
            replica, replayed = _ask(REPLICA, _REPLAYED)
            if primary != replica or written is None or replayed is None:
                self.forget()
            else:
                self.note(int(written), written_at, int(replayed))
        finally:
            set_gauge("replica_lag_seconds", self.lag_s())
            if self.is_good() != was_good:
                emit("replica.serves", "Lists are read from the replica again." if self.is_good()
                     else "The replica is away or behind; lists are read from the primary.",
                     serves=self.is_good(), lag_s=round(self.lag_s(), 1))  # fmt: skip
        return {}


_MOST_MARKS: Final = 1_000
freshness: Final = Freshness()
_watch: Final = ReadWatch(READ_LIMIT_S)


def replica_duties() -> list[Duty]:
    """Return what looks at the replica, often enough for the bound to mean something, and at who
    waits for it."""
    interval_s = min(1.0, settings.REPLICA_MAX_LAG_S / 4)
    return [
        Duty("replica", freshness.look_once, interval_s=interval_s),
        Duty("replica-watch", _watch.check_once, interval_s=0.25),
    ]


def read_list(read: Callable[[str], T]) -> T:
    """Return what `read(alias)` reads from the replica or, where that can't be, from the primary.

    Only for lists: a customer may look for the very object that was written a moment ago.
    """
    if freshness.is_good():
        try:
            with _watch.over(connections[REPLICA]):
                return read(REPLICA)
        except DatabaseError as error:
            # Also what a replica alone refuses: a row's version that its replay has to remove.
            freshness.forget()
            forget_connection()
            emit("replica.failed_read", "A list could not be read from the replica.",
                 error=f"{type(error).__name__}: {str(error).strip()!r}")  # fmt: skip
    return read(DEFAULT_DB_ALIAS)


def forget_connection() -> None:
    """Close this thread's connection to the replica: one that failed must not be used again."""
    with suppress(DatabaseError):
        connections[REPLICA].close()


def _ask(alias: str, statement: str) -> tuple[int, int | None]:
    with _watch.over(connections[alias]), connections[alias].cursor() as cursor:
        cursor.execute(statement)
        identifier, position = cursor.fetchone()
    return identifier, position
