"""Editions of the zone data that never were: a country that changes its clock, known or not yet.

Written as compiled TZif files (RFC 9636) and put in the place of the package's, under an edition's
name of their own.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import BinaryIO

import pytest
import tzdata

from jobs.domain import counting, schedule, zones

_COUNTS = ">6l"


@dataclass(frozen=True)
class Edition:
    """An edition of the zone data: `offsets` by zone, each from an instant on (None: always)."""

    name: str
    offsets: Mapping[str, list[tuple[datetime | None, timedelta]]] = field(default_factory=dict)


class ZoneData:
    """Installs editions, as an upgrade of the package and a restart would."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._open = zones.open_zone
        self._edition = Edition(tzdata.IANA_VERSION)
        patch.setattr(zones, "open_zone", self._open_zone)

    def install(self, edition: Edition) -> None:
        """Let this edition be the one in force."""
        self._edition = edition
        self._patch.setattr(tzdata, "IANA_VERSION", edition.name)
        forget_zones()

    def _open_zone(self, name: str) -> BinaryIO:
        offsets = self._edition.offsets.get(name)
        return self._open(name) if offsets is None else io.BytesIO(_compiled(offsets))


def forget_zones() -> None:
    """Forget every answer that was made by an edition, as a new process would."""
    zones.load_zone.cache_clear()
    schedule._next_cron.cache_clear()
    counting._count_cron.cache_clear()
    counting._latest_cron.cache_clear()


def _compiled(offsets: list[tuple[datetime | None, timedelta]]) -> bytes:
    """A version 2 file; the part for version 1 is empty, since readers skip it."""
    seconds = [int(offset.total_seconds()) for _, offset in offsets]
    changes = [int(begin.timestamp()) for begin, _ in offsets if begin is not None]
    names = b"".join(_name(offset).encode() + b"\0" for offset in seconds)
    starts = [sum(len(_name(s)) + 1 for s in seconds[:n]) for n in range(len(seconds))]
    header = b"TZif2" + bytes(15)
    body = header + struct.pack(_COUNTS, 0, 0, 0, 0, 0, 0)
    body += header + struct.pack(_COUNTS, 0, 0, 0, len(changes), len(seconds), len(names))
    body += struct.pack(f">{len(changes)}q", *changes)
    body += bytes(range(len(seconds) - len(changes), len(seconds)))
    body += b"".join(
        struct.pack(">lbb", s, 0, start) for s, start in zip(seconds, starts, strict=True)
    )
    # The rule for all time after the last change; POSIX counts west of Greenwich.
    posix = f"{_name(seconds[-1])}{-seconds[-1] // 3600:+d}"
    return body + names + b"\n" + posix.encode() + b"\n"


def _name(seconds: int) -> str:
    return f"<{seconds // 3600:+03d}>"
