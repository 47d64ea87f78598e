"""What operators are told: a log line in words with a stable `action` key and its facts."""

import logging
from typing import Any

_logger = logging.getLogger("scheduler")


def emit(action: str, sentence: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Log `sentence`, `action` and the facts as key=value; docs/events.md lists every action."""
    words = " ".join(f"{name}={value}" for name, value in facts.items())
    _logger.log(level, "%s action=%s %s", sentence, action, words, extra={"action": action})
