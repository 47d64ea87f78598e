"""The line that fault tests cut: what is sent into it vanishes, and comes through when mended."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.dark_line import DarkLine

# Offset of tcpi_unacked in struct tcp_info (<linux/tcp.h>): segments sent and not acknowledged.
_UNACKED_AT = 24


@pytest.fixture
def echo_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            near, _ = server.accept()
            with near:
                while data := near.recv(100):
                    near.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def unacknowledged(line: socket.socket) -> int:
    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, _UNACKED_AT)[0])


def test_a_cut_line_drops_what_is_sent_and_a_mended_one_brings_it(echo_port: int) -> None:
    with (
        DarkLine(echo_port) as line,
        socket.create_connection(("127.0.0.1", line.port), timeout=5) as client,
    ):
        client.sendall(b"before")
        assert client.recv(100) == b"before"

        line.cut()
        client.sendall(b"vanishes")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(100)
        assert unacknowledged(client) > 0, "the kernel has not even acknowledged it"
        with pytest.raises(TimeoutError):  # a connection is not refused either
            socket.create_connection(("127.0.0.1", line.port), timeout=0.3)

        line.mend()
        client.settimeout(10)
        assert client.recv(100) == b"vanishes"
