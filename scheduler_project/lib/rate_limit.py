"""Rates in Redis; its rule: when Redis is away requests pass, and don't wait for it one by one.

GCRA in one script on Redis's clock: a key holds the time at which its allowance is full again.
Redis may lose it all; then everybody has a full allowance.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)

# After a failure nobody asks for this long: each process pays the time-out once in that time.
PAUSE_S: Final = 2.0

_GCRA: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local spare = burst * interval - (full_at - now)
if spare < interval then
    return {0, 0, full_at - now, interval - spare}
end
full_at = full_at + interval
local kept_ms = math.ceil((full_at - now) / 1000) + 1
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', kept_ms)
return {1, math.floor(spare / interval) - 1, full_at - now, 0}
"""


@dataclass(frozen=True)
class Rate:
    """`per_s` calls a second in the long run, and up to `burst` at once."""

    name: str
    per_s: float
    burst: int

    def policy(self) -> str:
        """Return the RateLimit-Policy item: quota and window in seconds."""
        return f'"{self.name}";q={self.burst};w={math.ceil(self.burst / self.per_s)}'


@dataclass(frozen=True)
class Decision:
    """May the call pass; how many more could; seconds until all of them, and until the next one."""

    allowed: bool
    remaining: int
    reset_s: float
    retry_after_s: float

    def limit(self, rate: Rate) -> str:
        """Return the RateLimit item: what remains, and in how many seconds it is full again."""
        return f'"{rate.name}";r={self.remaining};t={math.ceil(self.reset_s)}'


class RateLimiter:
    """Asks Redis whether a call may pass; waits `timeout_s` at most; thread-safe."""

    def __init__(self, url: str, *, prefix: str, timeout_s: float) -> None:
        self._prefix = prefix
        # redis-py would try again by itself, with pauses, and double the wait.
        client = redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )
        self._script = client.register_script(_GCRA)
        self._lock = threading.Lock()
        self._failing = False
        self._ask_again_at = 0.0

    def take(self, key: str, rate: Rate) -> Decision | None:
        """Count a call of `key` and return the decision; None (it passes) when Redis is away."""
        if not self._may_ask():
            return None
        try:
            answer: Any = self._script(
                keys=[f"{self._prefix}:rate:{rate.name}:{key}"],
                args=[math.ceil(1_000_000 / rate.per_s), rate.burst],
            )
        except (redis.RedisError, OSError) as error:
            self._note_failure(error)
            return None
        self._failing = False
        allowed, remaining, reset_us, retry_us = answer
        return Decision(bool(allowed), remaining, reset_us / 1e6, retry_us / 1e6)

    def _may_ask(self) -> bool:
        """While Redis fails, let one request through in each pause to see whether it is back."""
        if not self._failing:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._ask_again_at:
                return False
            self._ask_again_at = now + PAUSE_S
            return True

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            if not self._failing:
                logger.warning("Rates are not limited, Redis is away: %s", error)
            self._failing = True
            self._ask_again_at = time.monotonic() + PAUSE_S


@cache
def limiter() -> RateLimiter:
    """Return this process's limiter."""
    return RateLimiter(
        settings.REDIS_URL,
        prefix=settings.INSTANCE,
        timeout_s=settings.RATE_LIMIT_TIMEOUT_MS / 1_000,
    )
