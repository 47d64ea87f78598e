"""What a key may do; its rule: admin includes write, and write includes read."""

from collections.abc import Iterable
from typing import Final

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
SCOPES: Final = (READ, WRITE, ADMIN)

_INCLUDES: Final = {READ: {READ}, WRITE: {READ, WRITE}, ADMIN: {READ, WRITE, ADMIN}}


def allows(scopes: Iterable[str], needed: str) -> bool:
    """Tell whether a key with `scopes` may do what needs the scope `needed`."""
    return any(needed in _INCLUDES.get(scope, set()) for scope in scopes)
