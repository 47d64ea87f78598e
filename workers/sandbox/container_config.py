"""What the engine is asked to build for a spec: the limits and locks around hostile code.

Owns the rule that everything not granted is refused: no capability, no new privilege, no
writable disk, no network, no swap, no restart, no health check of the image's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from workers.sandbox.base import ContainerHandle, ContainerSpec

LABEL_INSTANCE = "scheduler.instance"
LABEL_NODE = "scheduler.node"
LABEL_SESSION = "scheduler.session"
LABEL_RUN = "scheduler.run_id"
LABEL_ATTEMPT = "scheduler.attempt"
LABEL_FENCE = "scheduler.fence"
LABEL_JOB = "scheduler.job_id"
LABEL_TENANT = "scheduler.tenant_id"

MIB = 1 << 20
NANOS_PER_CPU = 1_000_000_000

# Below this the engine refuses, because the runtime itself would not start.
MIN_MEMORY_MB = 6

# Enough for a build tree; a flood of empty files would otherwise pin kernel memory per inode.
TMP_INODES = 16_384

# Two files of 1 MiB: a line costs some 30 bytes of framing, so even output of one character a
# line leaves more than the largest tail (64 KiB) in them, and a container's whole output never
# takes more than 2 MiB of disk.
LOG_CONFIG = {
    "Type": "local",
    "Config": {"max-size": "1m", "max-file": "2", "compress": "false"},
}

ROOT = "0:0"

# The kernel kills a customer's process before the worker's, the database's or the engine's.
OOM_SCORE_ADJ = 500

_INSTANCE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_USER = re.compile(r"\d{1,10}(:\d{1,10})?")


@dataclass(frozen=True)
class ImageFacts:
    """What an image declares that bears on its safety: its volumes, its user (may be empty)."""

    volumes: tuple[str, ...] = ()
    user: str = ""

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> ImageFacts:
        config = inspected.get("Config") or {}
        return cls(tuple(config.get("Volumes") or ()), config.get("User") or "")


def checked_instance(instance: str) -> str:
    """The instance's name, which becomes part of container names; ValueError if it cannot."""
    if not _INSTANCE.fullmatch(instance):
        raise ValueError(f"instance {instance!r}: letters, digits, _ . - and at most 63 of them")
    return instance


def container_name(run_id: UUID, attempt: int, instance: str) -> str:
    """One name per attempt, so that creating it twice is noticed by the engine."""
    return f"run-{run_id}-{attempt}-{instance}"


def container_labels(spec: ContainerSpec, instance: str, node: str) -> dict[str, str]:
    """Whose container it is. Never secrets: anybody who may list containers reads labels."""
    return {
        LABEL_INSTANCE: instance,
        LABEL_NODE: node,
        LABEL_SESSION: str(spec.session_id),
        LABEL_RUN: str(spec.run_id),
        LABEL_ATTEMPT: str(spec.attempt),
        LABEL_FENCE: str(spec.fence),
        LABEL_JOB: str(spec.job_id),
        LABEL_TENANT: str(spec.tenant_id),
    }


def handle_from_labels(
    container_id: str, name: str, labels: Mapping[str, str]
) -> ContainerHandle | None:
    """The handle of a container of ours, or None for one that is not.

    Name and labels must agree: a container inherits its image's labels, so an image committed
    from a container of ours makes strangers that carry them.
    """
    try:
        handle = ContainerHandle(
            container_id=container_id,
            name=name,
            run_id=UUID(labels[LABEL_RUN]),
            attempt=int(labels[LABEL_ATTEMPT]),
            fence=int(labels[LABEL_FENCE]),
            session_id=UUID(labels[LABEL_SESSION]),
        )
        expected = container_name(handle.run_id, handle.attempt, labels[LABEL_INSTANCE])
    except (KeyError, ValueError):
        return None
    return handle if name == expected else None


def container_config(
    spec: ContainerSpec,
    *,
    instance: str,
    node: str,
    runtime: str | None,
    node_cpus: int,
    image: ImageFacts,
) -> dict[str, Any]:
    """The body of the engine's create call. `runtime` None is the engine's default.

    `node_cpus`: cores of the machine. ValueError for a user by name (the image would decide who
    that is) and for a network we cannot give.
    """
    if spec.user and not _USER.fullmatch(spec.user):
        raise ValueError(f"user {spec.user!r} must be numeric, as 65534 or 65534:65534")
    if spec.network != "none":
        raise ValueError(f"network {spec.network!r} is not available")
    config: dict[str, Any] = {
        "Image": spec.image,
        # Empty leaves the image's own, which may be root.
        "User": spec.user,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": container_labels(spec, instance, node),
        # An image's own health check would be run by the engine, at our cost, for ever.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(spec, runtime, node_cpus, image),
    }
    if spec.args:
        config["Cmd"] = list(spec.args)
    return config


def _host_config(
    spec: ContainerSpec, runtime: str | None, node_cpus: int, image: ImageFacts
) -> dict[str, Any]:
    memory = max(spec.memory_mb, MIN_MEMORY_MB) * MIB
    # A declared volume becomes a directory on the host's disk, without a limit and writable
    # under a read-only root. Memory mounted over it closes that hole and keeps the path usable.
    writable = {"/tmp", *image.volumes}  # noqa: S108
    host: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Tmpfs": dict.fromkeys(sorted(writable), _tmpfs_options(spec, image)),
        "Memory": memory,
        # Equal to memory: no swap.
        "MemorySwap": memory,
        # The engine refuses more cores than there are; all of them is what was meant.
        "NanoCpus": int(min(spec.cpu, node_cpus) * NANOS_PER_CPU),
        "PidsLimit": spec.pids_limit,
        "NetworkMode": "none",
        # Without an init the program is pid 1: TERM is ignored by default and orphans are
        # never reaped.
        "Init": True,
        "OomScoreAdj": OOM_SCORE_ADJ,
        "LogConfig": LOG_CONFIG,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    if runtime is not None:
        host["Runtime"] = runtime
    return host


def _tmpfs_options(spec: ContainerSpec, image: ImageFacts) -> str:
    # The owner is named because the runtime gives the mount the mode of the image's directory,
    # which in a minimal image lets nobody but root write.
    user = spec.user or image.user
    uid, _, gid = (user if _USER.fullmatch(user) else ROOT).partition(":")
    return (
        f"size={spec.tmp_mb}m,nr_inodes={TMP_INODES},uid={uid},gid={gid or uid},mode=1777,"
        "nosuid,nodev,exec"
    )
