"""The peers by name. Each takes the servers and the sizes, serves one burst, and is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PEERS: dict[str, Callable[[Any, Any], Any]] = {}
