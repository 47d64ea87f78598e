"""May a tenant have one more? Its rule: a limit is the number that may exist, not one less."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# The limits that are counted, and what counts against each.
COUNTED: Final[Mapping[str, str]] = {
    "max_jobs": "jobs that are not deleted",
    "max_concurrent_runs": "runs that are leased or running",
    "max_runs_per_hour": "runs scheduled in the last hour",
}


@dataclass(frozen=True)
class Quota:
    """One counted limit of a tenant and how much of it is used."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """How many more there may be, at least 0: a limit can be lowered below what is used."""
        return max(0, self.limit - self.used)

    def allows(self, more: int = 1) -> bool:
        """Tell whether `more` of them still fit."""
        return more <= self.left
