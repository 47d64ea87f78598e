"""A demo image made without a registry: one static busybox and its names.

Owns the rule that the same busybox gives the same image, so that a second start has nothing to do.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import docker

from scheduler_project.stack import debian
from scheduler_project.stack.engine import Engine
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.locks import exclusive

DEMO_IMAGE = "scheduler-demo:latest"
_DIGEST_LABEL = "scheduler.demo.digest"
_ELF_INTERPRETER = 3  # Program header type PT_INTERP: the file needs a dynamic linker.
_PASSWD = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


def ensure_demo_image(engine: Engine, cache: Path) -> bool:
    """Have DEMO_IMAGE in the engine; True when it had to be made. `cache` may keep a busybox."""
    archive = image_archive(find_busybox(cache))
    digest = hashlib.sha256(archive).hexdigest()
    with engine.client() as client:
        try:
            labels = client.images.get(DEMO_IMAGE).labels
            if labels.get(_DIGEST_LABEL) == digest:
                return False
        except docker.errors.ImageNotFound:
            pass
        repository, tag = DEMO_IMAGE.split(":")
        client.api.import_image_from_data(
            archive,
            repository=repository,
            tag=tag,
            changes=[
                f"LABEL {_DIGEST_LABEL}={digest}",
                "ENV PATH=/bin",
                "USER 65534:65534",
                'CMD ["sh"]',
            ],
        )
    return True


def find_busybox(cache: Path) -> Path:
    """Return a static busybox: the machine's, the cached one, or Debian's, fetched to `cache`.

    One process at a time: a second one must not run the file that the first still unpacks.
    """
    with exclusive(cache / "lock"):
        return _find_busybox(cache)


def _find_busybox(cache: Path) -> Path:
    unpacked = cache / "bin" / "busybox"
    machines = [shutil.which("busybox"), "/bin/busybox", "/usr/bin/busybox"]
    for path in [unpacked, *(Path(name) for name in machines if name)]:
        if path.exists() and is_static(path.read_bytes()):
            return path
    if shutil.which("apt-get") is None:
        raise StackError(
            "No static busybox on this machine to make the demo image of.",
            "install your distribution's busybox-static",
        )
    debian.unpack("busybox-static", cache)
    if not unpacked.exists():
        raise StackError(f"busybox-static holds no bin/busybox; see {cache}.")
    return unpacked


def is_static(program: bytes) -> bool:
    """Whether an ELF program (64 bit) runs without a dynamic linker."""
    if program[:5] != b"\x7fELF\x02":
        return False
    offset = int.from_bytes(program[32:40], "little")
    size = int.from_bytes(program[54:56], "little")
    count = int.from_bytes(program[56:58], "little")
    kinds = (program[offset + i * size : offset + i * size + 4] for i in range(count))
    return all(int.from_bytes(kind, "little") != _ELF_INTERPRETER for kind in kinds)


def image_archive(busybox: Path) -> bytes:
    """Return the root file system as a tar, the same bytes for the same busybox."""
    listed = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("bin", "dev", "etc", "proc", "sys"):
            _add(archive, name, tarfile.DIRTYPE, 0o755)
        _add(archive, "tmp", tarfile.DIRTYPE, 0o1777)
        _add(archive, "etc/passwd", tarfile.REGTYPE, 0o644, _PASSWD.encode())
        _add(archive, "etc/group", tarfile.REGTYPE, 0o644, _GROUP.encode())
        _add(archive, "bin/busybox", tarfile.REGTYPE, 0o755, busybox.read_bytes())
        for applet in sorted(set(listed.stdout.split()) - {"busybox"}):
            _add(archive, f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox")
    return buffer.getvalue()


def _add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes,
    mode: int,
    content: bytes = b"",
    link: str = "",
) -> None:
    # Owner and time stay at TarInfo's zeros: they are part of the digest.
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, link, len(content)
    archive.addfile(entry, io.BytesIO(content))
