"""What may go wrong with a change of a job; the vocabulary of jobs.services."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.domain.policies import FieldProblem
from jobs.domain.schedule_error import ScheduleError


class JobError(Exception):
    """A change of a job that was refused; nothing was written."""


class JobNotFoundError(JobError):
    """There is no such job for this tenant, or it was deleted."""


class StaleVersionError(JobError):
    """The job has another version than the caller named; it must look again and decide anew."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the job's version is {current}")
        self.current = current


class InvalidJobError(JobError):
    """Fields that this product or this tenant's quotas refuse; all that are wrong at once."""

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        super().__init__("; ".join(f"{problem.path}: {problem.message}" for problem in problems))
        self.problems = list(problems)


class JobQuotaExceededError(JobError):
    """The tenant has as many jobs as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the limit of {limit} jobs is reached")
        self.limit = limit


def schedule_problem(error: ScheduleError) -> FieldProblem:
    """What the schedule engine refused, as a problem of the request's field."""
    parent, _, member = error.field.partition(".")
    path = (parent, member) if member else (parent,)
    return FieldProblem(path, error.code, error.message, error.hint)
