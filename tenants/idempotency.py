"""Answers kept for repeated requests; its rule: one transaction holds the work and its answer.

A copy that comes while the first is at work waits for it on the unique key, for a bounded time. It
then sees the answer, or, when the first failed, takes the key itself.
"""

import json
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import OperationalError, connection
from psycopg import errors as pg_errors

from scheduler_project.lib.idempotency import KEPT_HOURS
from scheduler_project.lib.prepared import prepared_cursor
from scheduler_project.lib.problems import Problem

RETRY_AFTER_S: Final = 1
PURGE_BATCH: Final = 1_000

# The short time-out is for the key alone, not for the work that follows: it is set before the
# insert that may wait (MATERIALIZED), and put back by its RETURNING, in one round trip. An expired
# key is taken over, like one that was never used.
_CLAIM: Final = """
WITH bounded AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS usual, set_config('lock_timeout', %(wait)s, true)
)
INSERT INTO idempotency_keys
    (tenant_id, key, route_hash, body_hash, headers, body, created_at, expires_at)
SELECT %(tenant)s, %(key)s, %(route)s, %(body)s, '{}', '', now(),
       now() + make_interval(hours => %(hours)s)
  FROM bounded
ON CONFLICT (tenant_id, key) DO UPDATE
   SET route_hash = excluded.route_hash, body_hash = excluded.body_hash, status = NULL,
       created_at = excluded.created_at, expires_at = excluded.expires_at
 WHERE idempotency_keys.expires_at <= now()
RETURNING (SELECT set_config('lock_timeout', usual, true) FROM bounded)
"""
_READ: Final = """
SELECT route_hash, body_hash, status, headers, body
  FROM idempotency_keys WHERE tenant_id = %s AND key = %s
"""
_KEEP: Final = """
UPDATE idempotency_keys SET status = %s, headers = %s, body = %s WHERE tenant_id = %s AND key = %s
"""
_PURGE: Final = """
DELETE FROM idempotency_keys WHERE (tenant_id, key) IN (
    SELECT tenant_id, key FROM idempotency_keys WHERE expires_at <= now()
     ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True)
class Answer:
    """What was answered: status, the headers that belong to the work, and the body's text."""

    status: int
    headers: dict[str, str]
    body: str


def claim(tenant_id: UUID, key: str, route: str, body: str) -> Answer | None:
    """Take the key for this transaction and return None, or return the answer it already has.

    To be called first in the transaction that does the work. Raises Problem
    idempotency_in_progress when another copy holds the key for too long, and
    idempotency_key_reused when the key belongs to another route or body (both are hashes).
    """
    wait = f"{settings.IDEMPOTENCY_WAIT_MS}ms"
    facts: dict[str, UUID | str | int] = {
        "tenant": tenant_id,
        "key": key,
        "route": route,
        "body": body,
        "wait": wait,
        "hours": KEPT_HOURS,
    }
    with prepared_cursor() as cursor:
        # A key found taken can be purged before it is read: then it is free, so ask again.
        for _ in range(3):
            try:
                cursor.execute(_CLAIM, facts)
            except OperationalError as error:
                if isinstance(error.__cause__, pg_errors.LockNotAvailable):
                    raise _in_progress() from error
                raise
            if cursor.fetchone():
                return None
            cursor.execute(_READ, [tenant_id, key])
            row = cursor.fetchone()
            if row is not None:
                return _answer_of(row, route, body)
    raise _in_progress()


def keep(tenant_id: UUID, key: str, answer: Answer) -> None:
    """Write the answer under a key that this transaction has claimed."""
    with prepared_cursor() as cursor:
        cursor.execute(
            _KEEP, [answer.status, json.dumps(answer.headers), answer.body, tenant_id, key]
        )


def purge_expired(batch: int = PURGE_BATCH) -> int:
    """Delete up to `batch` answers whose time is over by the database's clock; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(_PURGE, [batch])
        return int(cursor.rowcount)


def _answer_of(row: tuple[str, str, int, str, str], route: str, body: str) -> Answer:
    kept_route, kept_body, status, headers, text = row
    if kept_route != route:
        raise Problem("idempotency_key_reused", "The key was used for another address.")
    if kept_body != body:
        raise Problem("idempotency_key_reused", "The key was used with another body.")
    return Answer(status, json.loads(headers), text)


def _in_progress() -> Problem:
    return Problem("idempotency_in_progress", headers={"Retry-After": str(RETRY_AFTER_S)})
