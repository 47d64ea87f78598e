"""Run ids: UUIDv7 whose time is the run's nominal instant, so that a look-up by id prunes."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# 12 bits after the version, 62 after the variant.
_RANDOM_BITS = 0xFFF << 64 | (1 << 62) - 1


def to_milliseconds(instant: datetime) -> datetime:
    """Return `instant` cut to whole milliseconds, the precision of a run's nominal instant."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def make_run_id(scheduled_for: datetime, random_bytes: bytes) -> uuid.UUID:
    """Return the UUIDv7 (RFC 9562 §5.7) of `scheduled_for` with 10 bytes of randomness.

    Raises ValueError when the instant has a finer part than a millisecond, as the id could not
    be mapped back, or when the bytes are not ten.
    """
    if len(random_bytes) != 10:
        raise ValueError("a run id takes 10 random bytes")
    return uuid.UUID(int=_time_part(scheduled_for) | _random_part(int.from_bytes(random_bytes)))


def make_run_ids(instants: Iterable[datetime], random_bytes: bytes) -> list[uuid.UUID]:
    """Return an id for each instant; ten random bytes, counted on, tell them apart."""
    seed = int.from_bytes(random_bytes)
    return [uuid.UUID(int=_time_part(at) | _random_part(seed + n)) for n, at in enumerate(instants)]


@lru_cache(maxsize=1_000)
def _time_part(scheduled_for: datetime) -> int:
    milliseconds, rest = divmod(scheduled_for - _EPOCH, _MILLISECOND)
    if rest:
        raise ValueError(f"{scheduled_for.isoformat()} is finer than a millisecond")
    return milliseconds << 80 | 0x7 << 76  # version 7


def _random_part(number: int) -> int:
    return number & _RANDOM_BITS | 0x2 << 62  # variant of RFC 9562


def scheduled_for_of(run_id: uuid.UUID) -> datetime:
    """Return the nominal instant that `run_id` carries.

    For an id that we never made the answer is some instant in years 1970–10889, or the last
    representable one: a look-up with it simply finds nothing.
    """
    try:
        return _EPOCH + (run_id.int >> 80) * _MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
