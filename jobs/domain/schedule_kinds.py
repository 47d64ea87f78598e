"""The three kinds of schedule; its rule: plain frozen values, equal when they mean the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

Gap = Literal["next_valid", "skip"]
Fold = Literal["first", "second", "both"]


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Five cron fields, or a macro, on the wall clock of an IANA zone."""

    expression: str
    time_zone: str


@dataclass(frozen=True, slots=True)
class AtSchedule:
    """Once, at an instant (aware)."""

    at: datetime


@dataclass(frozen=True, slots=True)
class EverySchedule:
    """At `anchor` plus each whole multiple (1, 2, …) of `interval`, in elapsed time."""

    interval: timedelta
    anchor: datetime


Schedule = CronSchedule | AtSchedule | EverySchedule


@dataclass(frozen=True, slots=True)
class DstPolicy:
    """What a fixed-time cron schedule does when the clock changes; wildcards never need it.

    `gap`: a time that the clock leaves out fires at the end of the gap, or not at all.
    `fold`: a time that the clock shows twice fires at its first, its second or both showings.
    """

    gap: Gap = "next_valid"
    fold: Fold = "first"


DEFAULT_DST: Final = DstPolicy()
