"""The image that container tests run: busybox and nothing else, built without a registry."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import docker
import docker.errors

DEMO_IMAGE = "scheduler-demo:latest"
BUSYBOX = Path("/bin/busybox")


def ensure_demo_image(docker_host: str | None = None) -> str:
    """Make `DEMO_IMAGE` on the engine unless it is there; return its name.

    Fails when no engine answers or no static busybox is installed: these tests are worth
    nothing without the real thing.
    """
    return ensure_image(DEMO_IMAGE, docker_host=docker_host)


def ensure_image(
    name: str, *, changes: tuple[str, ...] = (), docker_host: str | None = None
) -> str:
    """Make a busybox image of that name unless it is there. `changes` are Dockerfile lines."""
    client = docker.APIClient(base_url=docker_host, version="auto", timeout=60)
    try:
        try:
            client.inspect_image(name)
        except docker.errors.ImageNotFound:
            repository, _, tag = name.partition(":")
            client.import_image_from_data(
                busybox_root(), repository=repository, tag=tag, changes=list(changes) or None
            )
    finally:
        client.close()
    return name


def busybox_root() -> bytes:
    """A tar of a root file system: /bin/busybox, a link for each applet, and a few directories."""
    applets = subprocess.run(
        [BUSYBOX, "--list"], check=True, capture_output=True, text=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "etc", "tmp", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(BUSYBOX, arcname="bin/busybox")
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
    return buffer.getvalue()
