"""A container engine of a test's own, to be killed, frozen and started again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import docker
import docker.errors
import requests.exceptions

from tests.support.sandboxes import eventually

START_TIMEOUT_S = 30.0

_CONTAINERD_CONFIG = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'


class PrivateEngine:
    """A dockerd and its containerd beside the machine's own, with their own sockets and data.

    The two are started apart, as an operating system does, so that containers outlive a killed
    dockerd. It has a network namespace of its own: told to do without a bridge, a dockerd
    deletes the machine's `docker0` under the engine that uses it.
    """

    def __init__(self) -> None:
        # Short: sockets lie below it, and a socket's path has 107 characters at most.
        self._root = Path(tempfile.mkdtemp(prefix="engine-"))
        self._containerd_socket = self._root / "containerd.sock"
        self.docker_host = f"unix://{self._root}/docker.sock"
        config = self._root / "containerd.toml"
        config.write_text(_CONTAINERD_CONFIG)
        self._containerd = self._spawn(
            [
                "containerd",
                f"--config={config}",
                f"--root={self._root}/containerd",
                f"--state={self._root}/state",
                f"--address={self._containerd_socket}",
            ]
        )
        self._wait_for(self._containerd_socket.exists)
        self._dockerd = self._spawn_dockerd()

    def start(self) -> None:
        """Start it again; returns when it answers."""
        # Left by a killed one: nobody listens there, and docker's client leaks a socket on that.
        (self._root / "docker.sock").unlink(missing_ok=True)
        self._dockerd = self._spawn_dockerd()

    def kill(self) -> None:
        """SIGKILL: containers go on running, nobody answers."""
        self._dockerd.kill()
        self._dockerd.wait()

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted and never answered. Returns when all threads stand:
        the signal is taken one thread after another, and one still running may answer a call.
        """
        self._dockerd.send_signal(signal.SIGSTOP)
        assert eventually(self._stands_still)

    def _stands_still(self) -> bool:
        stats = Path(f"/proc/{self._dockerd.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] in "Tt" for stat in stats)

    def thaw(self) -> None:
        self._dockerd.send_signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        return self._dockerd.poll() is None

    def destroy(self) -> None:
        """End it with its containers and leave nothing behind."""
        self.thaw()
        if not self.runs:
            self.start()
        with closing(self._client()) as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True)
        for process in (self._dockerd, self._containerd):
            process.terminate()
            process.wait(timeout=START_TIMEOUT_S)
        self._unmount()
        shutil.rmtree(self._root)

    def _spawn_dockerd(self) -> subprocess.Popen[bytes]:
        process = self._spawn(
            [
                "unshare",
                "--net",
                "dockerd",
                f"--host={self.docker_host}",
                f"--containerd={self._containerd_socket}",
                f"--data-root={self._root}/data",
                f"--exec-root={self._root}/exec",
                f"--pidfile={self._root}/pid",
                "--bridge=none",
                "--iptables=false",
                "--ip-masq=false",
            ]
        )
        self._wait_for(self._answers)
        return process

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._root / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _wait_for(self, holds: Callable[[], bool]) -> None:
        if not eventually(holds, START_TIMEOUT_S, every_s=0.05):
            lines = (self._root / "log").read_text().splitlines()
            raise AssertionError("\n".join(lines[-20:]))

    def _client(self) -> docker.APIClient:
        return docker.APIClient(base_url=self.docker_host, version="1.41", timeout=20)

    def _answers(self) -> bool:
        if not (self._root / "docker.sock").exists():
            return False
        try:
            with closing(self._client()) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError):
            return False

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        ours = [each for each in mounts if each.startswith(f"{self._root}/")]
        for mount in sorted(ours, key=len, reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=True)
