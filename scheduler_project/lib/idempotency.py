"""What makes two requests the same; its rule: same key, same route and same canonical body.

The grammar of a key and the hashes that are compared; tenants.idempotency keeps the answers.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from scheduler_project.lib.problems import Problem

HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotency-Replayed"
MAX_KEY_LENGTH: Final = 255
# How long an answer is kept; the documented promise.
KEPT_HOURS: Final = 24

_KEY: Final = re.compile(rf"[\x20-\x7e]{{1,{MAX_KEY_LENGTH}}}")


def parse_key(header: str) -> str:
    """Return the key, taken literally (quotes belong to it); raises Problem when malformed."""
    key = header.strip(" \t")
    if not _KEY.fullmatch(key):
        raise Problem("invalid_idempotency_key")
    return key


def route_hash(method: str, path: str, query: str = "") -> str:
    """Return a hash of the address: a key used on create says nothing about run-now."""
    return hashlib.sha256(f"{method} {path}?{query}".encode("utf-8", "replace")).hexdigest()


def body_hash(body: Mapping[str, Any]) -> str:
    """Return a hash of the object that doesn't depend on white space, escapes or key order."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
