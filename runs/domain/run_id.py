"""Run ids: UUIDv7 whose time is the run's nominal instant, so that a look-up by id prunes."""

import uuid
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_milliseconds(instant: datetime) -> datetime:
    """Return `instant` cut to whole milliseconds, the precision of a run's nominal instant."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def make_run_id(scheduled_for: datetime, random_bytes: bytes) -> uuid.UUID:
    """Return the UUIDv7 (RFC 9562 §5.7) of `scheduled_for` with 10 bytes of randomness.

    Raises ValueError when the instant has a finer part than a millisecond, as the id could not
    be mapped back, or when the bytes are not ten.
    """
    milliseconds, rest = divmod(scheduled_for - _EPOCH, _MILLISECOND)
    if rest:
        raise ValueError(f"{scheduled_for.isoformat()} is finer than a millisecond")
    if len(random_bytes) != 10:
        raise ValueError("a run id takes 10 random bytes")
    value = (milliseconds << 80) | int.from_bytes(random_bytes, "big")
    value = value & ~(0xF << 76) | (0x7 << 76)  # version 7
    value = value & ~(0x3 << 62) | (0x2 << 62)  # variant of RFC 9562
    return uuid.UUID(int=value)


def scheduled_for_of(run_id: uuid.UUID) -> datetime:
    """Return the nominal instant that `run_id` carries.

    For an id that we never made the answer is some instant in years 1970–10889, or the last
    representable one: a look-up with it simply finds nothing.
    """
    try:
        return _EPOCH + (run_id.int >> 80) * _MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
