"""Refusals of jobs.services as problems of the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobs.domain.policies import FieldProblem
from jobs.errors import InvalidJobError, JobNotFoundError, JobQuotaExceededError, StaleVersionError
from scheduler_project.lib import problems
from scheduler_project.lib.problems import Problem, invalid_fields, path_of


@contextmanager
def job_refusals() -> Iterator[None]:
    """Turn what jobs.services raises into the Problem that a caller sees."""
    try:
        yield
    except JobNotFoundError:
        raise Problem("not_found") from None
    except StaleVersionError as error:
        raise Problem("version_mismatch", f"The job's version is {error.current}.") from None
    except InvalidJobError as error:
        raise invalid_fields([_field(problem) for problem in error.problems]) from None
    except JobQuotaExceededError as error:
        raise Problem(
            "quota_exceeded", f"max_jobs: the tenant has its {error.limit} jobs already."
        ) from None


def _field(problem: FieldProblem) -> problems.FieldProblem:
    path = ""
    for part in problem.path:
        path = path_of(path, part)
    return problems.FieldProblem(path, problem.code, problem.message, problem.hint)
