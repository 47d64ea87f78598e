"""Which slice of the jobs does a job belong to? Its rule: stable, and the same on every host."""

from __future__ import annotations

from uuid import UUID


def shard_of(job_id: UUID, shards: int) -> int:
    """The shard of a job, from 0 to `shards` - 1.

    By the id's number and not by `hash()`, which differs between processes. Job ids are random in
    their low bits, so the slices are even.
    """
    return job_id.int % shards
