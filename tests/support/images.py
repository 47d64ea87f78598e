"""The image that container tests run: busybox and nothing else, built without a registry."""

from __future__ import annotations

import docker
import docker.errors

from scheduler_project.stack.image import DEMO_IMAGE, find_busybox, image_archive
from scheduler_project.stack.layout import CHECKOUT


def ensure_demo_image(docker_host: str | None = None) -> str:
    """Make `DEMO_IMAGE` on the engine unless it is there; return its name.

    Fails when no engine answers or no static busybox can be had: these tests are worth nothing
    without the real thing.
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
    """A tar of a root file system with busybox, found or fetched as `make up` does."""
    return image_archive(find_busybox(CHECKOUT / ".local" / "busybox"))
