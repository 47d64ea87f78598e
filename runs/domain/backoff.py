"""How long does a failed run wait before its next attempt?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.domain.exit_codes import ExitCodes

_DEFAULT_BASE_S = 5.0
_DEFAULT_MAX_S = 3_600.0
# Above this the power overflows a float long before the cap would have caught it.
_LARGEST_EXPONENT = 60
_KINDS: dict[str, type | tuple[type, ...]] = {
    "max_attempts": int,
    "backoff": str,
    "base_s": (int, float),
    "max_s": (int, float),
    "jitter": str,
}


@dataclass(frozen=True)
class RetryPolicy:
    """A job's wish: how many attempts in all, and how the waits between them grow (seconds)."""

    max_attempts: int = 1
    backoff: str = "exponential"
    base_s: float = _DEFAULT_BASE_S
    max_s: float = _DEFAULT_MAX_S
    jitter: str = "full"
    exit_codes: ExitCodes = field(default_factory=ExitCodes)

    @classmethod
    def from_json(cls, data: object) -> "RetryPolicy":
        """Read a stored policy; what is missing, or is not what it should be, takes its default.

        The API has validated what is stored. A row that somebody has changed by hand must not
        keep a finished run from being completed.
        """
        if not isinstance(data, Mapping):
            return cls()
        known = {
            name: data[name] for name, kind in _KINDS.items() if isinstance(data.get(name), kind)
        }
        return cls(**known, exit_codes=ExitCodes.from_json(data.get("exit_codes")))


def backoff_s(policy: RetryPolicy, failures: int, random_unit: float) -> float:
    """Return the wait after the `failures`-th failed attempt (from 1), in seconds.

    Exponential: base × 2^(failures − 1), capped at `max_s`. Full jitter draws evenly between zero
    and that (`random_unit` in [0, 1) is passed in), so that runs that failed together do not come
    back together.
    """
    exponent = min(failures - 1, _LARGEST_EXPONENT) if policy.backoff == "exponential" else 0
    longest = min(policy.base_s * 2.0**exponent, policy.max_s)
    return longest * random_unit if policy.jitter == "full" else longest
