"""What Debian and Ubuntu can install for us, and how to say it when we may not."""

import os
import shutil
import subprocess
from pathlib import Path

from scheduler_project.stack.errors import StackError


def can_install() -> bool:
    """Whether we may install packages: root, on a machine with apt."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str) -> None:
    """Install packages without a question; waits while another apt is at work."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["-qq", "-o", "DPkg::Lock::Timeout=300"]
    commands = [
        ["apt-get", *options, "update"],
        ["apt-get", *options, "install", "--yes", "--no-install-recommends", *packages],
    ]
    # An install that was killed leaves packages unpacked; apt refuses to go on before this.
    subprocess.run(["dpkg", "--configure", "-a"], env=environment, capture_output=True)
    for command in commands:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    if done.returncode:
        raise StackError(
            f"apt-get could not install {' '.join(packages)}:\n{done.stderr[-2000:]}",
            f"apt-get update && apt-get install {' '.join(packages)}",
        )


def unpack(package: str, directory: Path) -> None:
    """Download a package and unpack it into `directory`, installing nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "-qq", "update"], capture_output=True)
        # apt downloads as the user _apt, which cannot write here: a warning on stderr, no more.
    done = subprocess.run(
        ["apt-get", "-qq", "download", package], cwd=directory, capture_output=True, text=True
    )
    archives = sorted(directory.glob(f"{package}_*.deb"))
    if done.returncode or not archives:
        raise StackError(
            f"apt-get could not download {package}:\n{done.stderr[-2000:]}",
            f"apt-get update && apt-get install {package}",
        )
    subprocess.run(["dpkg-deb", "-x", str(archives[-1]), str(directory)], check=True)
