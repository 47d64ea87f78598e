"""A container engine of a test's own, to be killed, frozen and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import docker
import docker.errors
import requests.exceptions

from tests.support.sandboxes import eventually
from workers.processes import ProcessIdentity, identify

START_TIMEOUT_S = 60.0


class PrivateEngine:
    """A dockerd with its own socket, data and containerd, beside the machine's.

    Without bridge and firewall rules, so that it takes nothing from the other one.
    """

    def __init__(self) -> None:
        # Short: containerd's socket lies below it, and a socket's path has 107 characters.
        self._root = Path(tempfile.mkdtemp(prefix="engine-"))
        self.docker_host = f"unix://{self._root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._containerds: set[ProcessIdentity] = set()

    def start(self) -> None:
        """Start it, or start it again; returns when it answers."""
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd",
                    f"--host={self.docker_host}",
                    f"--data-root={self._root}/data",
                    f"--exec-root={self._root}/exec",
                    f"--pidfile={self._root}/pid",
                    "--bridge=none",
                    "--iptables=false",
                    "--ip-masq=false",
                ],
                stdout=log,
                stderr=log,
            )
        assert eventually(self._answers, START_TIMEOUT_S, 0.1), (self._root / "log").read_text()
        pid = int((self._root / "exec" / "containerd" / "containerd.pid").read_text())
        containerd = identify(pid)
        assert containerd is not None
        self._containerds.add(containerd)

    def kill(self) -> None:
        """SIGKILL: containers go on running, nobody answers."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted and never answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """End it with its containers and leave nothing behind."""
        assert self._process is not None
        self.thaw()
        if self._process.poll() is not None:
            self.start()
        with self._client() as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True)
        self._process.terminate()
        self._process.wait(timeout=START_TIMEOUT_S)
        for containerd in self._containerds:
            with suppress(ProcessLookupError):
                if containerd.is_alive():
                    os.kill(containerd.pid, signal.SIGTERM)
            eventually(lambda each=containerd: not each.is_alive())  # type: ignore[misc]
        self._unmount()
        shutil.rmtree(self._root)

    def _client(self) -> docker.APIClient:
        return docker.APIClient(base_url=self.docker_host, version="auto", timeout=20)

    def _answers(self) -> bool:
        try:
            with self._client() as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError):
            return False

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(str(self._root))), key=len):
            subprocess.run(["umount", "--lazy", mount], check=False)
