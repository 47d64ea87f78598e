"""Sends one webhook over a connection of its own, to an address that was judged.

Its rules: the connection goes to the very address that was looked up and judged, under the URL's
name (Host, TLS); no proxy, no redirect, no cookie, no reuse; and whatever the other side does, the
whole ends at one deadline, after at most 64 KiB of answer.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from runs.domain.delivery import GONE, AttemptResult
from runs.domain.webhook_address import (
    AddressPolicy,
    Target,
    UrlError,
    parse_target,
    refused_among,
)

# As much of an answer as is read; of that so much is kept for the log.
_MOST_READ: Final = 65_536
_KEPT: Final = 1_024
_MOST_LOOK_UP_S: Final = 5.0
# Look-ups that may hang at once, each of another name.
_MOST_LOOK_UPS: Final = 256


@dataclass(frozen=True)
class Sent:
    """How an attempt went, how long it took, and the beginning of the answer."""

    result: AttemptResult
    duration_ms: int
    answer: str = ""


class LookUpError(Exception):
    """The name could not be looked up: no such name, or no answer in time."""


class _RefusedError(Exception):
    """The name leads to an address that may not be reached."""


class _LookUps:
    """Look-ups under way. They have no time-out of their own and can't be interrupted, so each has
    a thread apart, and who waits longer goes on without. One a name: a name server that never
    answers holds one thread, however many messages go there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[list[Any]]] = {}

    def ask(self, host: str, port: int) -> Future[list[Any]]:
        """The look-up of this name: a new one, or the one that is under way."""
        key = (host, port)
        with self._lock:
            if key in self._under_way:
                return self._under_way[key]
            if len(self._under_way) >= _MOST_LOOK_UPS:
                raise LookUpError("too many look-ups wait for an answer")
            future = self._under_way[key] = Future()
        # A daemon: a process that ends doesn't wait for a name server.
        threading.Thread(
            target=self._resolve, args=(key, future), name="webhook-look-up", daemon=True
        ).start()
        return future

    def _resolve(self, key: tuple[str, int], future: Future[list[Any]]) -> None:
        try:
            found = socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
        except Exception as error:
            outcome: Exception | list[Any] = error
        else:
            outcome = found
        with self._lock:
            del self._under_way[key]
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


_LOOK_UPS: Final = _LookUps()


def look_up(host: str, port: int, timeout_s: float) -> list[str]:
    """Return all addresses of a name, in the order to try; raises LookUpError."""
    future = _LOOK_UPS.ask(host, port)
    try:
        found = future.result(timeout=min(timeout_s, _MOST_LOOK_UP_S))
    except FutureTimeoutError:
        raise LookUpError("no answer in time") from None
    except (OSError, UnicodeError) as error:
        raise LookUpError(str(error)) from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def send(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    policy: AddressPolicy,
    timeout_s: float,
    resolve: Callable[[str, int, float], list[str]] = look_up,
) -> Sent:
    """POST the body; returns how it went and raises nothing that the other side could cause."""
    began = time.monotonic()
    answer = ""
    try:
        target = parse_target(url, policy)
        addresses = resolve(target.host, target.port, timeout_s)
        if refused := refused_among(addresses, policy):
            raise _RefusedError(f"{target.host} leads to {refused[0]}: {refused[1]}")
        with _Exchange(target, began + timeout_s) as exchange:
            result, answer = exchange.post(addresses, body, headers)
    except UrlError as error:
        result = AttemptResult(error="invalid_url", detail=str(error))
    except LookUpError as error:
        result = AttemptResult(error="unresolvable", detail=str(error))
    except _RefusedError as error:
        result = AttemptResult(error="address_refused", detail=str(error))
    except ssl.SSLCertVerificationError as error:
        result = AttemptResult(error="certificate", detail=error.verify_message)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() - began >= timeout_s:
            result = AttemptResult(error="timeout", detail=f"not over after {timeout_s:g} s")
        else:
            result = AttemptResult(error="connection", detail=f"{type(error).__name__}: {error}")
    return Sent(result, int((time.monotonic() - began) * 1_000), answer)


class _Exchange:
    """One request and its answer, cut off at a deadline (monotonic).

    Time-outs of a socket bound each read, not their sum: who sends a byte a second would hold a
    thread for hours. A timer shuts the socket down instead, which ends whatever waits for it.
    """

    def __init__(self, target: Target, deadline: float) -> None:
        self._target = target
        self._deadline = deadline
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_over = False
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._cut_off)
        self._timer.daemon = True

    def __enter__(self) -> "_Exchange":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()

    def post(
        self, addresses: list[str], body: bytes, headers: Mapping[str, str]
    ) -> tuple[AttemptResult, str]:
        connection = http.client.HTTPConnection(self._target.host, self._target.port)
        connection.sock = self._connect(addresses)
        # Of an answer whose length we bound ourselves nothing may be added by the library.
        connection.putrequest("POST", self._target.path, skip_host=True, skip_accept_encoding=True)
        every = {"Host": self._target.host_header, "Content-Length": str(len(body)), **headers}
        for name, value in {**every, "Connection": "close"}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        data = response.read(_MOST_READ)
        if self._is_over:  # headers that were cut off look like headers that have ended
            raise TimeoutError
        text = data[:_KEPT].decode("utf-8", "replace").replace("\0", "\ufffd")
        return _judge(response, text), text

    def _connect(self, addresses: list[str]) -> socket.socket:
        """A connection to the first address that takes one."""
        failure: OSError = OSError("the name has no address")
        for address in addresses:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            try:
                plain = socket.create_connection((address, self._target.port), timeout=left_s)
            except OSError as error:
                failure = error
                continue
            self._hold(plain)
            if self._target.scheme == "http":
                return plain
            secure = _tls().wrap_socket(
                plain, server_hostname=self._target.host, do_handshake_on_connect=False
            )
            self._hold(secure)
            secure.do_handshake()
            return secure
        raise failure

    def _hold(self, connected: socket.socket) -> None:
        with self._lock:
            self._socket = connected
            if self._is_over:
                raise TimeoutError

    def _cut_off(self) -> None:
        with self._lock:
            self._is_over = True
            if self._socket is not None:
                with suppress(OSError):  # it has ended meanwhile
                    # Of the socket itself: TLS would say goodbye first, and wait.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _judge(response: http.client.HTTPResponse, text: str) -> AttemptResult:
    status = response.status
    if 200 <= status < 300:
        return AttemptResult(status_code=status)
    if 300 <= status < 400:
        return AttemptResult(status, "redirect", "redirects are not followed")
    if status == GONE:
        return AttemptResult(status, "gone", "the receiver wants no more")
    return AttemptResult(status, "status", "", _asked_wait_s(response.getheader("Retry-After")))


def _asked_wait_s(header: str | None) -> float | None:
    """Retry-After in seconds; its other form, a date, is another clock's and is passed over."""
    if header is None or not header.strip().isascii() or not header.strip().isdecimal():
        return None
    return float(header.strip()[:9])


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """The system's authorities, host names checked, TLS 1.2 or later; made once, for it is slow."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
