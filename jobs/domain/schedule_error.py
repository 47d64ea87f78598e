"""The schedule engine's one error; its rule: say what is wrong, where, and the nearest cure."""

from __future__ import annotations

from typing import Final

# The stable codes. They are part of the API's contract: add, never rename.
INVALID_SCHEDULE: Final = "invalid_schedule"
INVALID_CRON: Final = "invalid_cron"
INVALID_TIME_ZONE: Final = "invalid_time_zone"
INVALID_AT: Final = "invalid_at"
INVALID_EVERY: Final = "invalid_every"
NEVER_FIRES: Final = "never_fires"


class ScheduleError(ValueError):
    """A schedule that this product refuses.

    `code` is stable and for programs, `field` is the path in the request ("schedule.cron"),
    `message` says what is wrong, `hint` names the nearest accepted form ("" when there is none).
    """

    def __init__(self, code: str, message: str, *, hint: str = "", field: str = "schedule") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.field = field


def shown(text: str, limit: int = 40) -> str:
    """`text` quoted for a message: control characters and lone surrogates escaped, cut at `limit`.

    A lone surrogate put into a message as it is would make the *error answer* fail to encode.
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return ascii(cut) if not cut.isprintable() else repr(cut)
