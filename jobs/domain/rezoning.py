"""Zone rules have changed: which instants move, and from where does a job go on?

Its rule: nothing that was decided is decided again, no local day comes twice, and an instant that
moved into the time just gone by is late, not lost. The old rules are gone by now; what they made is
known from the cursor and the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from jobs.domain.schedule import DstPolicy, Schedule, next_occurrences

_RESOLUTION: Final = timedelta(microseconds=1)
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a job stands, by the old rules.

    `planned` are the runs ahead of their time that can still be withdrawn, in order; after them
    comes `next_run_at` (None: no further one). `last_wall_time` is what the wall showed, by those
    rules, at the last occurrence before `next_run_at`. `decided_to` is an instant, not after now,
    up to which every occurrence by those rules was decided, or the schedule was another.
    """

    next_run_at: datetime | None
    decided_to: datetime
    planned: tuple[datetime, ...] = ()
    last_wall_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rezoned:
    """The next instants by the old rules and by the new, and how to go on by the new.

    `effective_from`: later occurrences are those of the new rules. `last_wall_time`: for the
    cursor, once what was planned is withdrawn.
    """

    before: tuple[datetime, ...]
    after: tuple[datetime, ...]
    effective_from: datetime
    last_wall_time: datetime | None

    @property
    def is_moved(self) -> bool:
        """True when the new rules give other instants."""
        return self.before != self.after


def rezone(
    schedule: Schedule,
    position: Position,
    *,
    dst: DstPolicy,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    paused_until: datetime | None = None,
) -> Rezoned:
    """Compare what stands ahead of the job with what the rules in force give."""
    before = (*position.planned, *([position.next_run_at] if position.next_run_at else []))
    wall = _wall_before_planned(position)
    effective_from = position.decided_to
    if position.next_run_at is not None:  # in an outage: short of what was never planned
        effective_from = min(effective_from, position.next_run_at - _RESOLUTION)
    after = effective_from
    if paused_until is not None:
        after = max(after, paused_until - _RESOLUTION)
    found = next_occurrences(
        schedule, after, len(before), dst=dst, start_at=start_at, end_at=end_at,
        last_wall_time=wall,
    )  # fmt: skip
    return Rezoned(before, tuple(found), effective_from, wall)


def _wall_before_planned(position: Position) -> datetime | None:
    """The wall time after which the withdrawn ones begin, by the rules that planned them.

    What the wall showed at the last planned one is known, and so is its instant: that is the old
    offset. The occurrence before the first planned one showed an earlier time than that one did.
    """
    wall = position.last_wall_time
    if wall is None or not position.planned:
        return wall
    offset = wall - position.planned[-1].replace(tzinfo=None)
    return position.planned[0].replace(tzinfo=None) + offset - _MINUTE
