"""Endpoints for tests, and a receiver that checks signatures as a customer would."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from runs.models import WebhookEndpoint
from scheduler_project.lib.sealing import seal
from tenants.models import Tenant

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def make_endpoint(tenant: Tenant, *events: str, **fields: Any) -> WebhookEndpoint:
    """An endpoint as the service makes it; by default of the event run.failed."""
    values: dict[str, Any] = {
        "url": "http://127.0.0.1:9/hook",
        "events": list(events) or ["run.failed"],
        "secret": seal(SECRET),
    }
    return WebhookEndpoint.objects.create(tenant=tenant, **values | fields)


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str = SECRET) -> None:
        """Raises unless the library of the standard takes the signature."""
        Webhook(secret).verify(self.raw, self.headers)


# Gets the handler after the request was read; it answers, or doesn't.
Answer = Callable[[BaseHTTPRequestHandler], None]


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    """An ordinary answer."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def dripping(seconds: float) -> Answer:
    """A byte of a header every tenth of a second: no single read ever times out."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(int(seconds * 10)):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.1)

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    """A body that doesn't end."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(b"x" * 65_536)


@dataclass
class Receiver:
    """A server on this machine; `answer` may be changed between requests."""

    port: int
    received: list[Received] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: answering(204))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def receiver(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port, or on the given one, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            here.received.append(Received(headers, raw))
            here.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return  # whom we hang up on

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    here = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
