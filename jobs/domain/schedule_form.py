"""Schedules to and from JSON; its rule: one strict reader, for customers and for stored rows.

Stored rows are read as strictly as requests: a row written by another path must give a
ScheduleError that sets its one job aside, and not an exception that stops the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from jobs.domain.cron import parse_cron
from jobs.domain.instant import (
    format_instant,
    format_interval,
    parse_instant,
    parse_interval,
)
from jobs.domain.schedule_error import (
    INVALID_AT,
    INVALID_CRON,
    INVALID_EVERY,
    INVALID_SCHEDULE,
    ScheduleError,
    shown,
)
from jobs.domain.schedule_kinds import (
    AtSchedule,
    CronSchedule,
    DstPolicy,
    EverySchedule,
    Fold,
    Gap,
    Schedule,
)
from jobs.domain.zones import check_time_zone

_KINDS: Final = ("cron", "at", "every")
_FORMS: Final = 'one of {"cron": …, "time_zone": …}, {"at": …} or {"every": …}'
_GAPS: Final[tuple[Gap, ...]] = ("next_valid", "skip")
_FOLDS: Final[tuple[Fold, ...]] = ("first", "second", "both")


def parse_schedule(data: object, *, anchor: datetime | None = None) -> Schedule:
    """The schedule in the API's `schedule` object; raises ScheduleError for anything doubtful.

    `anchor` (aware) is what an `every` schedule counts from: the job's `start_at`, or its
    creation. Whether `at` lies in the past is not asked here: see `check_at_in_future`.
    """
    members = _members(data)
    kind = _kind(members)
    if kind == "cron":
        return _cron(members)
    if kind == "at":
        return AtSchedule(parse_instant(members["at"]))
    return EverySchedule(parse_interval(members["every"]), _anchor(anchor))


def schedule_to_json(schedule: Schedule) -> dict[str, str]:
    """What to store; `schedule_from_json` gives an equal schedule back."""
    match schedule:
        case CronSchedule(expression, time_zone):
            return {"cron": expression, "time_zone": time_zone}
        case AtSchedule(at):
            return {"at": format_instant(at)}
        case EverySchedule(interval, anchor):
            return {"every": format_interval(interval), "anchor": format_instant(anchor)}


def schedule_from_json(data: object) -> Schedule:
    """The stored schedule; raises ScheduleError when the row is not one that we would accept."""
    members = _members(data)
    anchor = None
    if "every" in members:
        anchor = parse_instant(
            members.pop("anchor", None), field="schedule.anchor", code=INVALID_EVERY
        )
    return parse_schedule(members, anchor=anchor)


def check_at_in_future(at: datetime, now: datetime) -> None:
    """Raises ScheduleError(invalid_at) unless `at` is later than `now` (both aware)."""
    if at <= now:
        raise ScheduleError(
            INVALID_AT,
            f"{format_instant(at)} is not in the future",
            hint=f"an instant after {format_instant(now)}, or run the job now",
            field="schedule.at",
        )


def parse_dst(data: object) -> DstPolicy:
    """The policy in the API's `dst` object; members left out take their defaults."""
    if not isinstance(data, Mapping):
        raise _invalid(f"dst must be an object, not {type(data).__name__}", "", "dst")
    for name in data:
        if name not in ("gap", "fold"):
            raise _invalid(f"unknown field {shown(str(name))}", "gap and fold", f"dst.{name}")
    gap = next((gap for gap in _GAPS if gap == data.get("gap", "next_valid")), None)
    fold = next((fold for fold in _FOLDS if fold == data.get("fold", "first")), None)
    if gap is None:
        raise _invalid("gap is not a known choice", f"one of {', '.join(_GAPS)}", "dst.gap")
    if fold is None:
        raise _invalid("fold is not a known choice", f"one of {', '.join(_FOLDS)}", "dst.fold")
    return DstPolicy(gap, fold)


def _members(data: object) -> dict[str, object]:
    if not isinstance(data, Mapping):
        raise _invalid(f"schedule must be an object, not {type(data).__name__}", _FORMS)
    for name in data:
        if not isinstance(name, str):
            raise _invalid("member names must be text", _FORMS)
    return dict(data)


def _kind(members: Mapping[str, object]) -> str:
    """The one kind of `members`; every other member must belong to it."""
    kinds = [kind for kind in _KINDS if kind in members]
    if len(kinds) > 1:
        raise _invalid(f"schedule has {' and '.join(kinds)}; they exclude each other", _FORMS)
    allowed = {*kinds, "time_zone"} if kinds == ["cron"] else set(kinds)
    for name in members:
        if name not in allowed and (kinds or name != "time_zone"):
            raise _unexpected(name, kinds)
    if not kinds:
        raise _invalid("schedule has no cron, at or every", _FORMS)
    return kinds[0]


def _unexpected(name: str, kinds: list[str]) -> ScheduleError:
    where = f"schedule.{name.encode('ascii', 'backslashreplace').decode()[:64]}"
    if name != "time_zone":
        return _invalid(f"unknown field {shown(name)}", _FORMS, where)
    hints = {"at": "leave it out: at carries its own offset",
             "every": "leave it out: every counts elapsed time, the same in all zones"}  # fmt: skip
    return _invalid(f"time_zone does not go with {kinds[0]}", hints[kinds[0]], where)


def _cron(members: Mapping[str, object]) -> CronSchedule:
    expression = members["cron"]
    if not isinstance(expression, str):
        raise ScheduleError(
            INVALID_CRON,
            f"cron must be text, not {type(expression).__name__}",
            hint='five fields such as "0 9 * * MON-FRI"',
            field="schedule.cron",
        )
    parse_cron(expression)
    if "time_zone" not in members:
        # No silent default: "9 o'clock" in a zone nobody chose is the commonest surprise.
        raise ScheduleError(
            INVALID_SCHEDULE,
            "time_zone is required with cron",
            hint='an IANA name such as "Europe/Paris", or "UTC"',
            field="schedule.time_zone",
        )
    return CronSchedule(expression, check_time_zone(members["time_zone"]))


def _anchor(anchor: datetime | None) -> datetime:
    if anchor is None or anchor.tzinfo is None:
        raise TypeError("an every schedule needs an aware anchor: start_at or the creation time")
    # To the millisecond, as instants are stored: an anchor that loses digits on its way through
    # the database would move every later occurrence by the difference.
    anchor = anchor.astimezone(UTC)
    return anchor.replace(microsecond=anchor.microsecond // 1000 * 1000)


def _invalid(message: str, hint: str, field: str = "schedule") -> ScheduleError:
    return ScheduleError(INVALID_SCHEDULE, message, hint=hint, field=field)
