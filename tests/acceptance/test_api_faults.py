"""The API as a real process: its database stopped and back, bodies as only sockets send them."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from scheduler_project.gunicorn_worker import REQUEST_S
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest

pytestmark = pytest.mark.stack(schedulers=0, workers=0, warden=False)

JOB = {
    "schedule": {"cron": "0 9 * * *", "time_zone": "UTC"},
    "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
}
NOWHERE = "00000000-0000-4000-8000-000000000000"
CALLS = [
    ("GET", "/v1/me"),
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", f"/v1/jobs/{NOWHERE}"),
    ("PATCH", f"/v1/jobs/{NOWHERE}"),
    ("DELETE", f"/v1/jobs/{NOWHERE}"),
    ("GET", f"/v1/jobs/{NOWHERE}/runs"),
    ("POST", f"/v1/jobs/{NOWHERE}/runs"),
    ("GET", "/v1/runs"),
    ("GET", f"/v1/runs/{NOWHERE}"),
    ("POST", f"/v1/runs/{NOWHERE}/cancel"),
]


def assert_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, f"{answer.request.method} {answer.request.url}: {answer.text}"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    problem = answer.json()
    assert problem["code"] == "database_unavailable"
    assert problem["request_id"] == answer.headers["X-Request-Id"]
    assert "psycopg" not in answer.text
    assert "connection" not in answer.text


def test_while_postgresql_is_stopped_everything_is_a_503_and_afterwards_as_before(
    stack: StackUnderTest,
) -> None:
    client = stack.client
    key = {"Idempotency-Key": "before-and-after"}
    made = client.post("/v1/jobs", json=JOB, headers=key)
    assert made.status_code == 201

    stack.postgres.stop()
    for method, path in CALLS:
        body = JOB if method in ("POST", "PATCH") else None
        assert_unavailable(client.request(method, path, json=body))
    assert client.get("/healthz").status_code == 200
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"] != "ok"

    stack.postgres.start()
    poll(lambda: client.get("/v1/me").status_code == 200, 10, "the API finds its database again")
    again = client.post("/v1/jobs", json=JOB, headers=key)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == made.content


def test_a_postgresql_that_dies_between_two_requests_costs_at_most_a_503(
    stack: StackUnderTest,
) -> None:
    assert stack.client.get("/v1/me").status_code == 200
    stack.postgres.kill()
    stack.postgres.start()
    statuses = [stack.client.get("/v1/me").status_code for _ in range(5)]
    assert set(statuses) <= {200, 503}
    assert statuses[-1] == 200


@contextlib.contextmanager
def connection_to(stack: StackUnderTest) -> Iterator[socket.socket]:
    address = urlsplit(str(stack.client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=10) as sock:
        yield sock


def head(stack: StackUnderTest, *lines: str, path: str = "/v1/jobs") -> bytes:
    key = stack.client.headers["Authorization"]
    fixed = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: {key}"]
    fixed += ["Content-Type: application/json", "Connection: close"]
    return "\r\n".join([*fixed, *lines, "", ""]).encode("latin-1")


def answer_to(sock: socket.socket) -> tuple[int, str]:
    """Return (status, body) of the answer on a connection that the server then closes."""
    text = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65_536):
            text += piece
    top, _, body = text.partition(b"\r\n\r\n")
    return int(top.split()[1]), body.decode()


def in_chunks(body: bytes, size: int = 7) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def test_bodies_are_read_whole_or_refused_however_they_are_sent(stack: StackUnderTest) -> None:
    good = json.dumps(JOB).encode()
    chunked = "Transfer-Encoding: chunked"
    large = b'{"name":"' + b"x" * 300_000 + b'"}'
    cases: list[tuple[str, bytes, set[int], str]] = [
        ("in chunks", head(stack, chunked) + in_chunks(good), {201}, "job_id"),
        ("empty, in chunks", head(stack, chunked) + b"0\r\n\r\n", {400}, "code"),
        ("large, in chunks", head(stack, chunked) + in_chunks(large, 8_192), {413}, "body_too_"),
        ("broken chunks", head(stack, chunked) + b"zz\r\n{}\r\n0\r\n\r\n", {400}, ""),
        ("with a length", head(stack, f"Content-Length: {len(good)}") + good, {201}, "job_id"),
        ("large", head(stack, f"Content-Length: {len(large)}") + large, {413}, "body_too_large"),
        ("large announced", head(stack, "Content-Length: 99999999999"), {413}, "body_too_large"),
        ("negative", head(stack, "Content-Length: -1"), {400}, ""),
        ("two lengths", head(stack, "Content-Length: 2", "Content-Length: 3") + b"{}", {400}, ""),
        ("both", head(stack, "Content-Length: 2", chunked) + b"2\r\n{}\r\n0\r\n\r\n", {400}, ""),
        ("no length", head(stack), {400}, "code"),
        ("NUL in a header", head(stack, "Idempotency-Key: a\0b", "Content-Length: 0"), {400}, ""),
        ("no ASCII", head(stack, "Idempotency-Key: cl\xe9", "Content-Length: 0"), {400}, ""),
    ]
    for name, request, statuses, word in cases:
        with connection_to(stack) as sock:
            sock.sendall(request)
            status, body = answer_to(sock)
        assert status in statuses, f"{name}: {status} {body}"
        assert word in body, f"{name}: {body}"
        assert "Traceback" not in body


def test_a_body_that_ends_early_is_not_worked_on(stack: StackUnderTest) -> None:
    good = json.dumps(JOB).encode()
    with connection_to(stack) as sock:
        sock.sendall(head(stack, f"Content-Length: {len(good) + 10}") + good)
        sock.shutdown(socket.SHUT_WR)
        status, body = answer_to(sock)
    assert status == 400, body
    assert stack.rows("SELECT count(*) FROM jobs") == [(0,)]


def test_a_client_that_gives_up_leaves_the_server_well(stack: StackUnderTest) -> None:
    for _ in range(20):
        with connection_to(stack) as sock:
            sock.sendall(head(stack, "Content-Length: 1000") + b"{")
    started = time.monotonic()
    assert stack.client.get("/v1/me").status_code == 200
    assert time.monotonic() - started < 5


# More than all threads of the server (2 processes of 8).
CROWD = 40


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /v1/me HT",
        b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    ],
)
def test_clients_that_stop_in_the_middle_of_a_request_keep_nobody_waiting(
    stack: StackUnderTest, said: bytes
) -> None:
    with contextlib.ExitStack() as crowd:
        slow = [crowd.enter_context(connection_to(stack)) for _ in range(CROWD)]
        for sock in slow:
            sock.sendall(said)
        for _ in range(5):
            assert stack.client.get("/v1/me", timeout=5).status_code == 200


def test_a_request_that_comes_letter_by_letter_is_answered(stack: StackUnderTest) -> None:
    body = json.dumps(JOB).encode()
    with connection_to(stack) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for letter in head(stack, f"Content-Length: {len(body)}") + body:
            sock.sendall(bytes([letter]))
        status, _ = answer_to(sock)
    assert status == 201


def test_a_client_that_says_no_more_is_let_go(stack: StackUnderTest) -> None:
    unfinished = head(stack, "Content-Length: 100")
    with connection_to(stack) as in_head, connection_to(stack) as in_body:
        for sock, said in ((in_head, unfinished[:-2]), (in_body, unfinished + b"{")):
            sock.settimeout(REQUEST_S + 10)
            sock.sendall(said)
        for sock in (in_head, in_body):
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_a_body_that_is_announced_is_waited_for(stack: StackUnderTest) -> None:
    body = json.dumps(JOB).encode()
    with connection_to(stack) as sock:
        sock.sendall(head(stack, f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert b" 100 " in sock.recv(100)
        sock.sendall(body)
        assert answer_to(sock)[0] == 201


def test_no_header_names_the_path_of_the_application(stack: StackUnderTest) -> None:
    for path in ("/elsewhere", "/v1", "x"):
        answer = stack.client.get("/v1/me", headers={"SCRIPT_NAME": path})
        assert answer.status_code == 200


@pytest.mark.stack(workers=0, schedulers=0, warden=False)
@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (
            b"GET /v1/me?" + b"a" * 8_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            414,
            "uri_too_long",
        ),
        (b"GET /v1/me HTTP/1.1\r\nX: " + b"a" * 9_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"NONSENSE\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: zzz\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/me HTTP/1.1\r\nX\x00: y\r\n\r\n", 400, "bad_request"),
    ],
    ids=["long address", "long header", "no HTTP", "unknown coding", "NUL in a header"],
)
def test_a_request_that_is_no_http_is_refused_with_a_problem(
    stack: StackUnderTest, request_bytes: bytes, status: int, code: str
) -> None:
    address = (stack.client.base_url.host, stack.client.base_url.port)
    with socket.create_connection(address, timeout=10) as sock:
        sock.sendall(request_bytes)
        head, _, body = b"".join(iter(lambda: sock.recv(65_536), b"")).partition(b"\r\n\r\n")

    assert head.split()[1] == str(status).encode()
    assert b"Content-Type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"]
