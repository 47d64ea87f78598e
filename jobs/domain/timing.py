"""How does a job keep to its times? Its rule: bounds, lateness and pauses have one written form.

The schedule says when; what stands here says from when to when it holds, what becomes of an
occurrence that is late, and when a job rests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from jobs.domain.instant import EARLIEST, LATEST, format_instant
from jobs.domain.misfire import Misfire, MissedPolicy
from jobs.domain.policies import FieldProblem
from jobs.domain.schedule_kinds import DstPolicy

# A day late is no longer "simply late": beyond it an occurrence is missed, and the policy decides.
LONGEST_GRACE_S: Final = 86_400
LONGEST_DEADLINE_S: Final = 366 * 86_400
# What one decision of the planner may turn into rows at most.
MOST_CATCH_UP: Final = 1_000
PAUSE_REASON_LENGTH: Final = 500

_SECOND: Final = timedelta(seconds=1)


class CatchUp(StrEnum):
    """Which of the occurrences that a pause held back run when it ends."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Pause:
    """A job's rest: until an instant, when it ends by itself, or (None) until somebody ends it.

    The occurrence at `until` itself runs again. `catch_up` says what runs of those before it.
    """

    until: datetime | None = None
    reason: str = ""
    catch_up: CatchUp = CatchUp.NONE

    def is_over(self, now: datetime) -> bool:
        """True once `until` has come, whether or not anybody has noticed."""
        return self.until is not None and self.until <= now


def misfire_to_json(misfire: Misfire) -> dict[str, Any]:
    """The stored and shown form, defaults included; lengths in whole seconds."""
    return {
        "policy": misfire.policy.value,
        "grace_s": misfire.grace // _SECOND,
        "deadline_s": None if misfire.deadline is None else misfire.deadline // _SECOND,
        "max_catch_up": misfire.max_catch_up,
    }


def misfire_from_json(data: Mapping[str, Any]) -> Misfire:
    """Read a job's stored policy for lateness; what is missing takes the product's default."""
    return Misfire(**misfire_members(data))


def misfire_members(data: Mapping[str, Any]) -> dict[str, Any]:
    """The members given, by the names and types of `Misfire`.

    Raises TypeError or ValueError for what another path has stored and no request may say.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"misfire must be an object, not {type(data).__name__}")
    members: dict[str, Any] = {}
    if "policy" in data:
        members["policy"] = MissedPolicy(data["policy"])
    if "grace_s" in data:
        members["grace"] = data["grace_s"] * _SECOND
    if "deadline_s" in data:
        seconds = data["deadline_s"]
        members["deadline"] = None if seconds is None else seconds * _SECOND
    if "max_catch_up" in data:
        members["max_catch_up"] = data["max_catch_up"]
    return members


def dst_to_json(dst: DstPolicy) -> dict[str, str]:
    """The stored and shown form, defaults included."""
    return {"gap": dst.gap, "fold": dst.fold}


def pause_to_json(pause: Pause, *, since: datetime, by: str) -> dict[str, Any]:
    """What to store: `since` is from when on occurrences are held back and not yet counted."""
    return {
        "until": pause.until and pause.until.isoformat(),
        "reason": pause.reason,
        "catch_up": pause.catch_up.value,
        "since": since.isoformat(),
        "by": by,
    }


def pause_from_json(data: Mapping[str, Any] | None) -> Pause | None:
    """The stored pause of a customer; None for a job that isn't paused.

    A job that the planner set aside says why in the same place, and is switched off, not paused.
    """
    if not data or "since" not in data:
        return None
    until = data.get("until")
    return Pause(
        until=until and datetime.fromisoformat(until),
        reason=data.get("reason", ""),
        catch_up=CatchUp(data.get("catch_up", CatchUp.NONE)),
    )


def held_back_since(data: Mapping[str, Any]) -> datetime:
    """From when on a stored pause of a customer has held occurrences back."""
    return datetime.fromisoformat(data["since"])


def stored_instant(text: str | None) -> datetime | None:
    """An instant as job versions keep it, or None."""
    return None if text is None else datetime.fromisoformat(text)


def misfire_problems(misfire: Misfire) -> Iterator[FieldProblem]:
    """Everything wrong with `misfire`."""
    grace_s = misfire.grace // _SECOND
    if not 0 <= grace_s <= LONGEST_GRACE_S:
        yield _out_of_range("misfire", "grace_s", grace_s, 0, LONGEST_GRACE_S)
    if misfire.deadline is not None:
        deadline_s = misfire.deadline // _SECOND
        if not 1 <= deadline_s <= LONGEST_DEADLINE_S:
            yield _out_of_range("misfire", "deadline_s", deadline_s, 1, LONGEST_DEADLINE_S)
    if not 0 <= misfire.max_catch_up <= MOST_CATCH_UP:
        yield _out_of_range("misfire", "max_catch_up", misfire.max_catch_up, 0, MOST_CATCH_UP)


def bounds_problems(start_at: datetime | None, end_at: datetime | None) -> Iterator[FieldProblem]:
    """Everything wrong with the first and last instant between which a schedule holds."""
    for name, instant in (("start_at", start_at), ("end_at", end_at)):
        if instant is None:
            continue
        if instant.microsecond % 1000:
            # Occurrences are kept to the millisecond; a finer bound would move an interval's
            # anchor on its way through the database.
            message = "this instant is kept to the millisecond"
            yield FieldProblem((name,), "invalid_instant", message, "three fractional digits")
        if not EARLIEST <= instant < LATEST:
            yield FieldProblem((name,), "invalid_instant", "the year must be from 1970 to 2999")
    if start_at is not None and end_at is not None and end_at < start_at:
        yield FieldProblem(
            ("end_at",),
            "ends_before_start",
            f"end_at lies before start_at, {format_instant(start_at)}",
            "an instant after start_at, or null for no end",
        )


def pause_problems(pause: Pause | None, now: datetime) -> Iterator[FieldProblem]:
    """Everything wrong with a pause that begins now."""
    if pause is not None and pause.is_over(now):
        yield FieldProblem(
            ("pause", "until"),
            "in_past",
            "until must lie in the future",
            f"an instant after {format_instant(now)}, or pause: null to go on now",
        )


def _out_of_range(parent: str, member: str, value: int, low: int, high: int) -> FieldProblem:
    code = "too_small" if value < low else "too_large"
    return FieldProblem((parent, member), code, f"must be between {low} and {high}")
