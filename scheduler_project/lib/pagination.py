"""Pages of a list by cursor; its rule: a page starts right after the last row of the one before.

A cursor holds the sort values of that row in full precision, is signed, and names the list it was
made for (kind, tenant, filters): neither rows of equal time nor rows that come meanwhile are lost
or repeated, and a cursor of another list is refused, not misread.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from django.conf import settings
from django.db.models import BooleanField, F, Func, Model, QuerySet, Value
from django.utils.crypto import salted_hmac

from scheduler_project.lib.problems import Problem, invalid
from scheduler_project.lib.replica import read_list

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
# Raised when the content of cursors changes its meaning.
CURSOR_VERSION: Final = 1
# Longer than anybody pages; runs older than the retention are gone anyway.
CURSOR_DAYS: Final = 30
_MAX_LENGTH: Final = 1_024
_SIGNATURE_BYTES: Final = 16

SortValue = datetime | UUID
M = TypeVar("M", bound=Model)
T = TypeVar("T")


@dataclass(frozen=True)
class CursorScope:
    """The list a cursor belongs to: `kind` ("runs"), whose, and with which filters."""

    kind: str
    tenant_id: UUID
    filters: Mapping[str, str]

    def digest(self) -> str:
        facts = [self.kind, str(self.tenant_id), sorted(self.filters.items())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Page(Generic[T]):
    """The rows of a page, and the cursor of the next one (None on the last)."""

    rows: list[T]
    next_cursor: str | None


def encode_cursor(scope: CursorScope, values: Sequence[SortValue]) -> str:
    """Return the cursor of the page after the row with these sort values."""
    texts = [v.isoformat() if isinstance(v, datetime) else v.hex for v in values]
    facts = [CURSOR_VERSION, scope.digest(), int(time.time()) // 86_400, *texts]
    payload = json.dumps(facts, separators=(",", ":")).encode()
    return _to_text(_signature(payload, settings.SECRET_KEY) + payload)


def decode_cursor(
    cursor: str, scope: CursorScope, types: Sequence[type[SortValue]]
) -> tuple[SortValue, ...]:
    """Return the sort values in `cursor`, one of each of `types`.

    Raises Problem invalid_cursor when it is damaged, of an older form, too old, or of another list.
    """
    facts = _signed_facts(cursor)
    if facts[0] != CURSOR_VERSION:
        raise Problem("invalid_cursor", "The cursor was made by an older version of the service.")
    digest, day, *texts = facts[1:]
    if not hmac.compare_digest(digest, scope.digest()) or len(texts) != len(types):
        raise Problem(
            "invalid_cursor", "The cursor belongs to another list, other filters or another tenant."
        )
    if int(time.time()) // 86_400 - day > CURSOR_DAYS:
        raise Problem("invalid_cursor", f"The cursor is older than {CURSOR_DAYS} days.")
    return tuple(
        datetime.fromisoformat(text) if kind is datetime else UUID(hex=text)
        for text, kind in zip(texts, types, strict=True)
    )


def limit_of(text: str | None) -> int:
    """Return the page size a query asks for (default 50); raises Problem unless it is 1 to 200."""
    if text is None:
        return DEFAULT_LIMIT
    if text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise invalid("limit", "invalid", f"This must be a whole number from 1 to {MAX_LIMIT}.")


def keyset_page(
    rows: QuerySet[M],
    columns: Mapping[str, type[SortValue]],
    scope: CursorScope,
    cursor: str | None,
    limit: int,
) -> Page[M]:
    """Return a page of `rows`, newest first by `columns` ({"scheduled_for": datetime, …}).

    The columns together must be unique, and an index must hold them in this order. One query, of
    one row more than the page, which tells whether there is another page; of a replica, where one
    is near enough to the truth.
    """
    names = list(columns)
    if cursor is not None:
        values = decode_cursor(cursor, scope, list(columns.values()))
        # The plain bound follows from the row's, but only by it are partitions pruned and an
        # index entered that holds just the first column.
        rows = rows.filter(RowBefore(names, values), **{f"{names[0]}__lte": values[0]})
    wanted = rows.order_by(*(f"-{name}" for name in names))[: limit + 1]
    found = read_list(lambda database: list(wanted.using(database)))
    page = found[:limit]
    if len(found) <= limit:
        return Page(page, None)
    return Page(page, encode_cursor(scope, [getattr(page[-1], name) for name in names]))


class RowBefore(Func):
    """The SQL condition `(a, b) < (x, y)`, which an index on (a, b) answers as one range.

    Spelled out as `a < x OR (a = x AND b < y)` the planner would filter instead of seek.
    """

    conditional = True
    output_field = BooleanField()

    def __init__(self, names: Sequence[str], values: Sequence[SortValue], **extra: Any) -> None:
        self.width = len(names)
        super().__init__(*map(F, names), *map(Value, values), **extra)

    def as_sql(  # type: ignore[override]
        self, compiler: Any, connection: Any, **_: Any
    ) -> tuple[str, tuple[Any, ...]]:
        parts = [compiler.compile(expression) for expression in self.get_source_expressions()]
        left = ", ".join(sql for sql, _ in parts[: self.width])
        right = ", ".join(sql for sql, _ in parts[self.width :])
        return f"({left}) < ({right})", tuple(value for _, values in parts for value in values)


def _signature(payload: bytes, secret: Any) -> bytes:
    signature = salted_hmac("scheduler.cursor", payload, secret=secret, algorithm="sha256")
    return bytes(signature.digest()[:_SIGNATURE_BYTES])


def _signed_facts(cursor: str) -> list[Any]:
    damaged = Problem("invalid_cursor", "The cursor is damaged, or not one of ours.")
    if not cursor.isascii() or not 0 < len(cursor) <= _MAX_LENGTH:
        raise damaged
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise damaged from None
    signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    # The encoding must be ours to the letter: spare bits would make two texts of one cursor.
    secrets: list[Any] = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    known = any(hmac.compare_digest(signature, _signature(payload, secret)) for secret in secrets)
    if not known or _to_text(raw) != cursor:
        raise damaged
    facts: list[Any] = json.loads(payload)
    return facts


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
