"""What does a customer say about a job? Its rule: what is left out has a default, or stays.

A new job takes defaults for what is left out. A change keeps it, member by member in `task`,
`task.resources`, `retry`, `dst` and `misfire`; lists, maps (`args`, `env`, `labels`) and `pause`
are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from jobs.domain.misfire import Misfire
from jobs.domain.policies import (
    DEFAULT_CPU,
    DEFAULT_MEMORY_MB,
    DEFAULT_QUEUE_LIMIT,
    Ceilings,
    Retry,
    Task,
)
from jobs.domain.schedule_kinds import DEFAULT_DST, DstPolicy
from jobs.domain.timing import CatchUp, Pause

_CRON_MEMBERS: Final = frozenset({"cron", "time_zone"})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything a customer says about a job, with every default filled in.

    `schedule` is the API's object as sent; the schedule engine is its only reader.
    """

    schedule: object
    task: Task
    retry: Retry = field(default_factory=Retry)
    overlap: str = "skip"
    queue_limit: int = DEFAULT_QUEUE_LIMIT
    name: str = ""
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True
    start_at: datetime | None = None
    end_at: datetime | None = None
    dst: DstPolicy = DEFAULT_DST
    misfire: Misfire = field(default_factory=Misfire)
    pause: Pause | None = None
    late_after_s: int | None = None
    auto_pause_after: int | None = None


class NotSaid(Enum):
    """Stands where a request says nothing and null would be a value."""

    NOT_SAID = "not said"


NOT_SAID: Final = NotSaid.NOT_SAID


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What a request says about a job; None (or NOT_SAID) is what it doesn't mention.

    `task`, `retry`, `dst` and `misfire` hold the members given, by the names of their classes.
    `resume` says what runs of the occurrences that a pause held back; it is a member of its own,
    because it is said as well at the pause as at its end.
    """

    schedule: object | None = None
    task: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None
    overlap: str | None = None
    queue_limit: int | None = None
    name: str | None = None
    description: str | None = None
    labels: Mapping[str, str] | None = None
    enabled: bool | None = None
    start_at: datetime | NotSaid | None = NOT_SAID
    end_at: datetime | NotSaid | None = NOT_SAID
    dst: Mapping[str, Any] | None = None
    misfire: Mapping[str, Any] | None = None
    pause: Pause | NotSaid | None = NOT_SAID
    resume: CatchUp | None = None
    late_after_s: int | NotSaid | None = NOT_SAID
    auto_pause_after: int | NotSaid | None = NOT_SAID

    def _given(self) -> dict[str, Any]:
        """The members that are taken over as they are."""
        names = ("overlap", "queue_limit", "name", "description", "labels", "enabled")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        nullable = ("start_at", "end_at", "late_after_s", "auto_pause_after")
        values = {name: getattr(self, name) for name in nullable}
        return given | {name: value for name, value in values.items() if value is not NOT_SAID}


def spec_of_new(said: JobChanges, ceilings: Ceilings) -> JobSpec:
    """The whole of a new job; `said` has a schedule and a task with image and timeout.

    The default resources never exceed the tenant's ceilings: nobody is refused for what they
    didn't ask for.
    """
    resources = {
        "cpu": min(DEFAULT_CPU, ceilings.cpu),
        "memory_mb": min(DEFAULT_MEMORY_MB, ceilings.memory_mb),
    }
    return JobSpec(
        schedule=said.schedule,
        task=Task(**{**resources, **(said.task or {})}),
        retry=Retry(**(said.retry or {})),
        dst=DstPolicy(**(said.dst or {})),
        misfire=Misfire(**(said.misfire or {})),
        pause=_changed_pause(None, said),
        **said._given(),
    )


def changed_spec(before: JobSpec, changes: JobChanges) -> JobSpec:
    """`before` with the changes in it."""
    return replace(
        before,
        schedule=_merged_schedule(before.schedule, changes.schedule),
        task=replace(before.task, **(changes.task or {})),
        retry=replace(before.retry, **(changes.retry or {})),
        dst=replace(before.dst, **(changes.dst or {})),
        misfire=replace(before.misfire, **(changes.misfire or {})),
        pause=_changed_pause(before.pause, changes),
        **changes._given(),
    )


def resuming(before: Pause | None, changes: JobChanges) -> CatchUp:
    """What runs of the held-back occurrences if these changes end the pause: the later word."""
    if changes.resume is not None:
        return changes.resume
    return CatchUp.NONE if before is None else before.catch_up


def _changed_pause(before: Pause | None, changes: JobChanges) -> Pause | None:
    pause = before if isinstance(changes.pause, NotSaid) else changes.pause
    return None if pause is None else replace(pause, catch_up=resuming(before, changes))


def _merged_schedule(before: object, change: object | None) -> object:
    """A schedule is replaced as a whole, save that a cron job may change only text or zone."""
    if change is None:
        return before
    if isinstance(before, Mapping) and isinstance(change, Mapping) and "cron" in before:
        members = set(change)
        if members and members < _CRON_MEMBERS:
            return {**before, **change}
    return change
