"""What does a customer say about a job? Its rule: what is left out has a default, or stays.

A new job takes defaults for what is left out. A change keeps it, member by member in `task`,
`task.resources` and `retry`; lists and maps (`args`, `env`, `labels`) are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jobs.domain.policies import DEFAULT_CPU, DEFAULT_MEMORY_MB, Ceilings, Retry, Task

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
    name: str = ""
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What a request says about a job; None is what it doesn't mention.

    `task` and `retry` hold the members given, by the names of `Task` and `Retry`.
    """

    schedule: object | None = None
    task: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None
    overlap: str | None = None
    name: str | None = None
    description: str | None = None
    labels: Mapping[str, str] | None = None
    enabled: bool | None = None

    def _given(self) -> dict[str, Any]:
        """The members that are taken over as they are."""
        names = ("overlap", "name", "description", "labels", "enabled")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


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
        **said._given(),
    )


def changed_spec(before: JobSpec, changes: JobChanges) -> JobSpec:
    """`before` with the changes in it."""
    return replace(
        before,
        schedule=_merged_schedule(before.schedule, changes.schedule),
        task=replace(before.task, **(changes.task or {})),
        retry=replace(before.retry, **(changes.retry or {})),
        **changes._given(),
    )


def _merged_schedule(before: object, change: object | None) -> object:
    """A schedule is replaced as a whole, save that a cron job may change only text or zone."""
    if change is None:
        return before
    if isinstance(before, Mapping) and isinstance(change, Mapping) and "cron" in before:
        members = set(change)
        if members and members < _CRON_MEMBERS:
            return {**before, **change}
    return change
