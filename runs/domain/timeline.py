"""What did a job promise, and when? Its rule: the version in force at an instant promises it.

A version is in force from the moment after its `effective_from` up to and including the next
one's. So an edit changes nothing about the past, and the occurrence at the very moment of an edit
belongs to the old version, as in the services (`scheduled_for > now()` is withdrawn).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from jobs.domain.counting import count_occurrences, latest_occurrences
from jobs.domain.schedule import (
    ScheduleError,
    next_occurrence,
    parse_dst,
    parse_wall,
    schedule_from_json,
)
from jobs.domain.schedule_kinds import DEFAULT_DST, DstPolicy, Schedule
from runs.domain.backoff import RetryPolicy

RESOLUTION: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a job. `schedule` None: what is stored can't be read, so nothing is promised.

    `is_on`: its occurrences are to run. `ends_at`: when the next one began; None for the last.
    """

    version: int
    effective_from: datetime
    schedule: Schedule | None
    is_on: bool
    is_deleted: bool = False
    ends_at: datetime | None = None
    dst: DstPolicy = DEFAULT_DST
    start_at: datetime | None = None
    end_at: datetime | None = None
    # A pause of this version holds back what lies after the first and before the second instant.
    held_from: datetime | None = None
    held_until: datetime | None = None
    overlap: str = "skip"
    max_attempts: int = 1
    tzdata: str = ""

    def first_after(self, after: datetime, until: datetime) -> datetime | None:
        """The first occurrence in (after, until] while the version was in force."""
        if self.schedule is None:
            return None
        found = next_occurrence(
            self.schedule, max(after, self.effective_from), dst=self.dst,
            start_at=self.start_at, end_at=self.end_at,
        )  # fmt: skip
        return None if found is None or found > self._until(until) else found

    def count(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (after, until] while the version was in force."""
        if self.schedule is None:
            return 0
        after, until = self._after(after), self._until(until)
        return count_occurrences(self.schedule, after, until, dst=self.dst)

    def last_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence in (after, until] while the version was in force."""
        if self.schedule is None:
            return None
        after, until = self._after(after), self._until(until)
        found = latest_occurrences(self.schedule, after, until, 1, dst=self.dst)
        return found[0] if found else None

    def _after(self, after: datetime) -> datetime:
        begin = max(after, self.effective_from)
        return begin if self.start_at is None else max(begin, self.start_at - RESOLUTION)

    def _until(self, until: datetime) -> datetime:
        return min(each for each in (until, self.ends_at, self.end_at) if each is not None)


@dataclass(frozen=True)
class Timeline:
    """A job's versions in order. Instants are aware; ranges leave out `after`, include `until`."""

    versions: Sequence[Version]

    @classmethod
    def of(cls, versions: Sequence[Version]) -> Timeline:
        """The timeline of versions in any order; each ends where the next begins."""
        ordered = sorted(versions, key=lambda each: each.version)
        ended = [replace(each, ends_at=later.effective_from) for each, later in pairwise(ordered)]
        return cls([*ended, *ordered[-1:]])

    def first_after(self, after: datetime, until: datetime) -> datetime | None:
        """The first promised occurrence in (after, until]; None when there is none."""
        for begin, end in self._not_held(after, until):
            for each in self._on(begin, end):
                found = each.first_after(begin, end)
                if found is not None:
                    return found
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """How many occurrences were promised in (after, until]."""
        return sum(
            each.count(begin, end)
            for begin, end in self._not_held(after, until)
            for each in self._on(begin, end)
        )

    def last_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last promised occurrence in (after, until]; None when there is none."""
        for begin, end in reversed(self._not_held(after, until)):
            for each in reversed([*self._on(begin, end)]):
                found = each.last_in(begin, end)
                if found is not None:
                    return found
        return None

    def promises(self, at: datetime) -> bool:
        """Whether `at` is a promised occurrence."""
        return self.first_after(at - RESOLUTION, at) == at

    def schedules(self, at: datetime) -> bool:
        """Whether `at` is an occurrence by the version in force, off and paused ones included."""
        before = (each for each in reversed(self.versions) if each.effective_from < at)
        version = next(before, None)
        return version is not None and version.first_after(at - RESOLUTION, at) == at

    def around(self, at: datetime, slack: timedelta) -> list[Version]:
        """The versions in force some time within `slack` of `at`.

        An edit's `effective_from` is a little before its commit, when it took effect.
        """
        return [
            each
            for each in self.versions
            if each.effective_from < at + slack
            and (each.ends_at is None or each.ends_at >= at - slack)
        ]

    def once_promised(self, at: datetime) -> Version | None:
        """The latest version before the one in force that promised `at` for later, or None."""
        for each in reversed(self.versions):
            if each.ends_at is None or each.ends_at >= at or not each.is_on:
                continue
            unended = replace(each, ends_at=None)
            if unended.first_after(at - RESOLUTION, at) == at:
                return each
        return None

    def _not_held(self, after: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
        """(after, until] without what a pause still holds back: that is accounted for at its end.

        Only the last version's pause: a change that ends one accounts for what it held back, and
        one that doesn't carries it on.
        """
        last = self.versions[-1] if self.versions else None
        if last is None or last.held_from is None:
            return [(after, until)] if after < until else []
        ranges = [(after, min(until, last.held_from))]
        if last.held_until is not None:  # the occurrence at a pause's own end runs again
            ranges.append((max(after, last.held_until - RESOLUTION), until))
        return [(begin, end) for begin, end in ranges if begin < end]

    def _on(self, after: datetime, until: datetime) -> Iterator[Version]:
        for each in self.versions:
            is_within = each.effective_from < until and (
                each.ends_at is None or each.ends_at > after
            )
            if each.is_on and is_within:
                yield each


def version_from_row(row: Mapping[str, Any]) -> Version:
    """Read a stored version (`version, effective_from, schedule, policies, enabled, deleted,
    tzdata`), instants as ISO text or datetime."""
    policies = row["policies"] or {}
    try:
        schedule = schedule_from_json(row["schedule"])
        dst = parse_dst(policies.get("dst") or {})
    except ScheduleError:
        schedule, dst = None, DEFAULT_DST
    pause = policies.get("pause") or {}
    start_at = _instant(policies.get("start_at"))
    wall = parse_wall(policies.get("last_wall_time") or "")
    if schedule is not None and wall is not None:
        # It goes on where the version before stood on the wall (new zone data): a local day that
        # was shown again by the new rules was never promised twice.
        first = next_occurrence(
            schedule, _required(row["effective_from"]), dst=dst, start_at=start_at,
            last_wall_time=wall,
        )  # fmt: skip
        start_at = first or start_at
    return Version(
        version=row["version"],
        effective_from=_required(row["effective_from"]),
        schedule=schedule,
        is_on=row["enabled"] and not row["deleted"],
        is_deleted=row["deleted"],
        dst=dst,
        start_at=start_at,
        end_at=_instant(policies.get("end_at")),
        # The planner says in the same place why it switched a job off: that is no pause.
        held_from=_instant(pause.get("since")),
        held_until=_instant(pause.get("until")),
        overlap=policies.get("overlap", "skip"),
        max_attempts=RetryPolicy.from_json(policies.get("retry")).max_attempts,
        tzdata=row["tzdata"],
    )


def _required(value: str | datetime) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def _instant(value: str | datetime | None) -> datetime | None:
    return None if value is None else _required(value)
