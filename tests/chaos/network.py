"""A network namespace of one worker's own, whose way to the database can be cut.

Packets are dropped by the kernel (iptables, in that namespace alone): both ends keep a connection
that looks whole, as when a switch dies; only keepalives and time-outs find out. In the namespace
stands nothing but its loopback. A forwarder of ours listens there under the ports of the database
and the broker and carries the bytes across; the cut lies between the worker and the forwarder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence

_CLONE_NEWNET = 0x40000000
_CHUNK = 65_536


class CutNetwork:
    """The namespace; its processes are started behind `prefix`. Ends with `close` or with us."""

    def __init__(self, ports: Sequence[int]) -> None:
        """`ports` of 127.0.0.1 are reachable from inside, under the same numbers."""
        for program in ("unshare", "nsenter", "ip", "iptables", "setpriv"):
            assert shutil.which(program), f"{program} is missing (util-linux, iproute2, iptables)"
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "--", "unshare", "--net", "sh", "-c",
             "ip link set lo up && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", "the namespace was not made"
        self._path = f"/proc/{self._holder.pid}/ns/net"
        self.prefix = ["nsenter", f"--net={self._path}", "--"]
        self._listeners = self._listen_inside(ports)
        for listener in self._listeners:
            threading.Thread(target=_accept, args=(listener,), daemon=True).start()

    def cut(self, port: int) -> None:
        """From now on no packet to or from the port arrives inside."""
        for side in ("--dport", "--sport"):
            self._iptables("-A", "OUTPUT", "-p", "tcp", side, str(port), "-j", "DROP")

    def mend(self) -> None:
        self._iptables("-F", "OUTPUT")

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    def _iptables(self, *words: str) -> None:
        subprocess.run([*self.prefix, "iptables", "--wait", *words], check=True)

    def _listen_inside(self, ports: Sequence[int]) -> list[socket.socket]:
        """Sockets belong for ever to the namespace in which their thread made them."""
        made: list[socket.socket] = []

        def make() -> None:  # a thread of its own: only that one changes its namespace
            with open(self._path) as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made.extend(socket.create_server(("127.0.0.1", port)) for port in ports)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert len(made) == len(ports), "nothing listens in the namespace"
        return made


def _accept(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    while True:
        try:
            inside, _ = listener.accept()
        except OSError:  # closed
            return
        try:
            outside = socket.create_connection(("127.0.0.1", port), timeout=2)
        except OSError:  # as refused as the server itself would
            inside.close()
            continue
        outside.settimeout(None)
        for here, there in ((inside, outside), (outside, inside)):
            threading.Thread(target=_carry, args=(here, there), daemon=True).start()


def _carry(here: socket.socket, there: socket.socket) -> None:
    """Carry bytes one way until either end is closed, then close both."""
    with contextlib.suppress(OSError):
        while data := here.recv(_CHUNK):
            there.sendall(data)
    for each in (here, there):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    here.close()
