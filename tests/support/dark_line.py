"""A line from one process to its server that a test can cut as a dead network does, and mend.

Owns the rule that what is sent into a cut line vanishes: it is dropped by the kernel before TCP
sees it, so nothing is acknowledged, refused or closed, and neither end is told. It needs no rights
and no rule of the machine's: the filter sits on the line's own sockets and goes with them.
"""

import contextlib
import ctypes
import select
import socket
import struct
import threading
from types import TracebackType

# <asm-generic/socket.h>; Python's socket module names neither.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# BPF's only instruction here: return 0, keep nothing of the packet.
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_DROP))
_LOOK_UP_S = 0.05
_CHUNK = 65_536


class DarkLine:
    """Forwards connections from `port` on this machine to `target`'s, until it is cut."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._near: list[socket.socket] = []
        self._lit = threading.Event()
        self._lit.set()
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "DarkLine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._lit.set()
        for thread in list(self._threads):
            thread.join(5)
        self._listener.close()

    def cut(self) -> None:
        """From now on nothing comes through, in neither direction, and nobody learns of it."""
        with self._lock:
            self._lit.clear()
            for each in [self._listener, *self._near]:
                with contextlib.suppress(OSError):  # closed a moment ago
                    each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM)

    def mend(self) -> None:
        """Packets come through again; what TCP has kept is sent once more."""
        with self._lock:
            for each in [self._listener, *self._near]:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            self._lit.set()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listener], [], [], _LOOK_UP_S)[0]:
                continue
            near, _ = self._listener.accept()
            with self._lock:
                self._near.append(near)
                if not self._lit.is_set():  # its handshake was over before the cut
                    near.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM)
            thread = threading.Thread(target=self._forward, args=[near], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, near: socket.socket) -> None:
        try:
            with near, socket.create_connection(self._target) as far:
                other = {near: far, far: near}
                while not self._closed.is_set():
                    for ready in select.select([near, far], [], [], _LOOK_UP_S)[0]:
                        self._lit.wait()
                        data = ready.recv(_CHUNK)
                        if not data:
                            return
                        other[ready].sendall(data)
        except OSError:
            pass  # one end is gone, and with it this connection
        finally:
            with self._lock:
                self._near.remove(near)
