"""How benchmarks speak: a JSON line for each fact, so that a table can be made of them."""

from __future__ import annotations

import json
from typing import Any


def line(question: str, **facts: Any) -> None:
    """Print one fact; numbers are rounded to what can be trusted of them."""
    print(json.dumps({"question": question} | {k: _short(v) for k, v in facts.items()}), flush=True)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value
