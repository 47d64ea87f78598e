"""Previews a schedule as a request writes it: refused by the rules that refuse a job's."""

from __future__ import annotations

from datetime import datetime

from jobs.domain.policies import FieldProblem
from jobs.domain.preview import Preview, preview
from jobs.domain.schedule import (
    AtSchedule,
    DstPolicy,
    Schedule,
    ScheduleError,
    check_at_in_future,
    parse_schedule,
)
from jobs.domain.timing import bounds_problems
from jobs.errors import InvalidJobError, schedule_problem
from jobs.versions import database_clock


def schedule_preview(
    said: object,
    *,
    dst: DstPolicy,
    after: datetime | None,
    count: int,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Preview:
    """The next `count` occurrences of the API's `schedule` object after `after` (None: now).

    Raises InvalidJobError with all that is wrong.
    """
    begin = after or database_clock()
    problems: list[FieldProblem] = list(bounds_problems(start_at, end_at))
    schedule: Schedule | None = None
    try:
        schedule = parse_schedule(said, anchor=start_at or begin)
        if isinstance(schedule, AtSchedule) and after is None:
            check_at_in_future(schedule.at, begin)
    except ScheduleError as error:
        problems.append(schedule_problem(error))
    if problems or schedule is None:
        raise InvalidJobError(problems)
    return preview(schedule, begin, count, dst=dst, start_at=start_at, end_at=end_at)
