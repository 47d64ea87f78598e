"""Wakes the dispatcher at once when something became ready: a hint over Redis, never relied on.

The dispatcher ticks every 250 ms anyway. A Redis that is away costs the caller one short attempt,
then none for a while.
"""

import threading
import time
from collections.abc import Callable

import redis
from django.conf import settings
from redis.exceptions import RedisError

_CHANNEL = f"{settings.INSTANCE}.dispatcher.wake"
_TIMEOUT_S = 0.2
_QUIET_AFTER_FAILURE_S = 5.0

_silent_until = 0.0


def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )


_publisher = _client() if settings.REDIS_URL.startswith(("redis://", "rediss://")) else None


def wake_dispatcher() -> None:
    """Hint that a run became ready or a slot free. Call after the commit; never raises."""
    global _silent_until
    if _publisher is None or time.monotonic() < _silent_until:
        return
    try:
        _publisher.publish(_CHANNEL, b"")
    except RedisError:
        _silent_until = time.monotonic() + _QUIET_AFTER_FAILURE_S


class WakeListener:
    """A thread that calls `wake` for each hint, over a connection of its own."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="wake-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen; a broker that is away is tried again by itself."""
        if _publisher is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop listening; does not wait, as nothing depends on the thread's end."""
        self._stopped.set()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except RedisError:
                self._stopped.wait(_QUIET_AFTER_FAILURE_S)

    def _listen(self) -> None:
        subscription = redis.client.PubSub(
            _client().connection_pool, ignore_subscribe_messages=True
        )
        with subscription:
            subscription.subscribe(_CHANNEL)  # type: ignore[no-untyped-call]  # redis-py
            while not self._stopped.is_set():
                if subscription.get_message(timeout=1.0) is not None:
                    self._wake()
