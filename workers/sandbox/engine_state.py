"""Reads the engine's description of a container as the way that container ended.

Owns the rule that a field is believed only where it means what it seems to: a container that
never ran also shows exit code 0, and the memory flag stands when any child was ever killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runs.domain.outcome import OutcomeCode, signal_of_exit
from workers.sandbox.base import ContainerExit
from workers.sandbox.engine_errors import error_of_state, exec_failure

# Go's zero time, which the engine writes for "not yet".
_NEVER_YEAR = 1

# What a dying or restarted engine leaves behind for programs that it took down with it.
_ENGINE_LOSS_EXITS = frozenset({137, 143, 255})

GONE = ContainerExit(exit_code=None, error="the container was removed before its end was seen")


def parse_instant(text: str) -> datetime | None:
    """The engine's RFC 3339 instant (nanoseconds are cut to microseconds); None for "never"."""
    instant = datetime.fromisoformat(text)
    return None if instant.year == _NEVER_YEAR else instant


def exit_of_state(
    inspected: Mapping[str, Any], output: bytes, truncated: bool, *, engine_was_lost: bool
) -> ContainerExit:
    """How the container ended, from the answer of inspect. Meaningless while it runs.

    `engine_was_lost`: the engine went away while the container ran. Then a kill that nobody
    here asked for was the engine's doing, and the run is not blamed for it.
    """
    state = inspected["State"]
    started_at = parse_instant(state["StartedAt"])
    if started_at is None:
        message = state.get("Error") or "the container never started"
        return ContainerExit(exit_code=None, error=message, error_code=error_of_state(message))
    exit_code = int(state["ExitCode"])
    error, error_code = state.get("Error") or None, None
    failure = exec_failure(exit_code, output)
    if failure is not None:
        error, error_code = str(failure), failure.outcome
    elif engine_was_lost and exit_code in _ENGINE_LOSS_EXITS:
        error, error_code = "the container engine went away", OutcomeCode.ENGINE_UNREACHABLE
    return ContainerExit(
        exit_code=exit_code,
        signal=signal_of_exit(exit_code),
        oom_killed=bool(state.get("OOMKilled")),
        started_at=started_at,
        finished_at=parse_instant(state["FinishedAt"]),
        error=error,
        error_code=error_code,
        output=output,
        output_truncated=truncated,
        image_id=inspected.get("Image"),
    )
