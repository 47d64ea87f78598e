"""What may go wrong with a request about a run; the vocabulary of runs.services."""

from __future__ import annotations


class RunError(Exception):
    """A request about a run that was refused; nothing was written."""


class RunNotFoundError(RunError):
    """There is no such run for this tenant."""


class RunIsNotFinalError(RunError):
    """The run has not ended, so that there is nothing to run again yet."""

    def __init__(self, status: str) -> None:
        super().__init__(f"the run is {status}")
        self.status = status


class RunIsFinalError(RunError):
    """The run has reached a final status, which never changes."""

    def __init__(self, status: str) -> None:
        super().__init__(f"the run is {status}")
        self.status = status
