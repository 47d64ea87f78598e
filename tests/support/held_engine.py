"""A container engine as one process sees it, where a test can hold up a call on its way.

Owns the rule that a held call has not reached the engine: what it asks for happens when it is let
go, or never.
"""

import contextlib
import re
import select
import socket
import threading
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

_LOOK_UP_S = 0.05
_CHUNK = 65_536


class HeldEngine:
    """Forwards to the engine's socket. `hold(pattern)`: from now on a request whose first line
    matches waits; `arrived` is set when there is one, `let_go()` sends it on."""

    def __init__(self, engine_host: str, directory: Path) -> None:
        self._target = urlsplit(engine_host).path
        path = directory / "held.sock"
        self.host = f"unix://{path}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._pattern: re.Pattern[bytes] | None = None
        self.arrived = threading.Event()
        self._go_on = threading.Event()
        self._go_on.set()
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "HeldEngine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._go_on.set()
        for thread in list(self._threads):
            thread.join(5)
        self._listener.close()

    def hold(self, pattern: bytes) -> None:
        self._go_on.clear()
        self._pattern = re.compile(pattern)

    def let_go(self) -> None:
        self._pattern = None
        self._go_on.set()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listener], [], [], _LOOK_UP_S)[0]:
                continue
            near, _ = self._listener.accept()
            thread = threading.Thread(target=self._forward, args=[near], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, near: socket.socket) -> None:
        # A broken pipe: one end is gone, and with it this connection.
        far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with near, far, contextlib.suppress(OSError):
            far.connect(self._target)
            other = {near: far, far: near}
            while not self._closed.is_set():
                for ready in select.select([near, far], [], [], _LOOK_UP_S)[0]:
                    data = ready.recv(_CHUNK)
                    if not data:
                        return
                    # The client sends a request when the answer to the last one is there, and its
                    # first line is in the first piece.
                    if ready is near and self._pattern and self._pattern.match(data):
                        self.arrived.set()
                        self._go_on.wait()
                    other[ready].sendall(data)
