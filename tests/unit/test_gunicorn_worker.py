"""How many bytes of a request must be there before it is given a thread."""

import pytest

from scheduler_project.gunicorn_worker import bytes_wanted

GET = b"GET /v1/me HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "here",
    [
        GET + b"\r\n",
        GET + b"Content-Length: 2\r\n\r\n{}",
        GET + b"content-length:2\r\n\r\n{}GET",
        GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
        # Nothing to wait for: answered by the head, or the client waits for us.
        GET + b"Content-Length: 999999999\r\n\r\n",
        GET + b"Content-Length: -1\r\n\r\n",
        GET + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        b"x" * 65_536,
    ],
)
def test_a_request_that_is_there_gets_a_thread(here: bytes) -> None:
    assert bytes_wanted(here) <= len(here)


@pytest.mark.parametrize(
    ("here", "more"),
    [
        (b"", 1),
        (b"GET", 1),
        (GET, 1),
        (GET + b"\r", 1),
        (GET + b"Content-Length: 2\r\n\r\n", 2),
        (GET + b"Content-Length: 200000\r\n\r\n{", 199_999),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", 1),
    ],
)
def test_of_a_request_that_is_not_there_the_rest_is_waited_for(here: bytes, more: int) -> None:
    assert bytes_wanted(here) == len(here) + more
