"""What a hostile owner of a webhook may try: reach into our network, hold us up, starve others."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.db.models.functions import Now

from runs import webhook_client
from runs.domain.webhook_address import AddressPolicy
from runs.models import DeliveryAttempt, NotificationDelivery, OutboxMessage, WebhookEndpoint
from runs.notifications import fan_out_once
from runs.webhook_delivery import address_policy, claim_deliveries, deliver
from runs.webhooks import WebhookUrlError, check_url
from tenants.models import Tenant
from tests.support.factories import make_tenant
from tests.support.polling import poll
from tests.support.webhooks import Receiver, answering, make_endpoint, receiver

pytestmark = pytest.mark.django_db

NAME = "rebind.acme.test"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as here:
        yield here


@pytest.fixture
def private(settings: Any) -> None:
    """As in development: this machine may be reached."""
    settings.WEBHOOK_ALLOW_PRIVATE = settings.WEBHOOK_ALLOW_HTTP = True


@pytest.fixture
def public(hook: Receiver, settings: Any) -> None:
    """As in production, but for the scheme and the port, so that the receiver would be reached."""
    settings.WEBHOOK_ALLOW_PRIVATE, settings.WEBHOOK_ALLOW_HTTP = False, True
    settings.WEBHOOK_PORTS = [hook.port]


class NameServer:
    """Answers for one name, by turns; every other name goes to the real resolver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str]] = []
        self.asked = 0
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return self._real(host, port, *args, **options)
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "",
             (one, port, 0, 0) if ":" in one else (one, port))
            for one in answer
        ]  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    return NameServer(monkeypatch)


def owe(tenant: Tenant, number: int = 1) -> None:
    OutboxMessage.objects.bulk_create(
        [OutboxMessage(tenant=tenant, event="run.failed", payload={}) for _ in range(number)]
    )
    while fan_out_once()["messages"]:
        pass


def attempt() -> list[str]:
    return [deliver(row.delivery_id, row.claim) for row in claim_deliveries()]


# --- into our network -----------------------------------------------------------------------------


def test_a_name_that_is_public_when_registered_and_ours_when_called(
    hook: Receiver, public: None, names: NameServer
) -> None:
    url = f"http://{NAME}:{hook.port}/"
    names.answers = [["8.8.8.8"], ["127.0.0.1"]]
    check_url(url)
    owe(make_endpoint(make_tenant(), url=url).tenant)
    assert attempt() == ["pending: address_refused"]
    assert names.asked == 2
    assert hook.received == []


def test_a_name_that_changes_between_the_look_and_the_connection(
    hook: Receiver, public: None, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look says public, whoever asks again is told our own: nobody asks again."""
    went_to: list[str] = []

    def connect(address: tuple[str, int], timeout: float | None = None) -> socket.socket:
        went_to.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    names.answers = [["8.8.8.8"], ["127.0.0.1"]]
    owe(make_endpoint(make_tenant(), url=f"http://{NAME}:{hook.port}/").tenant)
    assert attempt() == ["pending: connection"]
    assert (went_to, names.asked) == (["8.8.8.8"], 1)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "224.0.0.1",
        "::1", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "fd00:ec2::254", "fe80::1",
        "fe80::1%lo",
    ],
)  # fmt: skip
def test_every_way_to_write_an_inner_address(
    hook: Receiver, public: None, names: NameServer, address: str
) -> None:
    names.answers = [["8.8.8.8", address]]
    url = f"http://{NAME}:{hook.port}/"
    with pytest.raises(WebhookUrlError, match="not public"):
        check_url(url)
    owe(make_endpoint(make_tenant(), url=url).tenant)
    assert attempt() == ["pending: address_refused"]
    assert hook.received == []


def test_a_public_address_that_is_the_installation_s_own(
    hook: Receiver, public: None, names: NameServer, settings: Any
) -> None:
    names.answers = [["8.8.8.8"]]
    check_url(f"http://{NAME}:{hook.port}/")
    settings.WEBHOOK_REFUSED_NETWORKS = [ip_network("8.8.8.0/24")]
    with pytest.raises(WebhookUrlError, match="refused by this installation"):
        check_url(f"http://{NAME}:{hook.port}/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_nowhere(hook: Receiver, private: None, status: int) -> None:
    with receiver() as inner:
        hook.answer = answering(status, Location=inner.url)
        owe(make_endpoint(make_tenant(), url=hook.url).tenant)
        assert attempt() == ["pending: redirect"]
        assert inner.received == []


@pytest.mark.parametrize(
    "tail",
    ["x\r\nX-Evil: 1", "x\nX-Evil: 1", "x HTTP/1.1\r\n\r\nGET / HTTP/1.1", "x\x1f", "x\t", "x\x85"],
)
def test_a_url_cannot_write_headers(hook: Receiver, private: None, tail: str) -> None:
    """Not even one that came into the table by another way."""
    owe(make_endpoint(make_tenant(), url=f"{hook.url}/{tail}").tenant)
    assert attempt() == ["pending: invalid_url"]
    assert hook.received == []


def test_an_escaped_line_end_stays_escaped(hook: Receiver, private: None) -> None:
    paths: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        paths.append(handler.path)
        answering(204)(handler)

    hook.answer = answer
    owe(make_endpoint(make_tenant(), url=f"{hook.url}/%0d%0aX-Evil:%201?a=%0A").tenant)
    assert attempt() == ["delivered"]
    assert paths == ["/hook/%0d%0aX-Evil:%201?a=%0A"]
    assert "x-evil" not in hook.received[0].headers


# --- holding us up --------------------------------------------------------------------------------


def _until_cut(write: Callable[[BaseHTTPRequestHandler], object], first: bytes) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(first)
        for _ in range(100_000):
            write(handler)
            handler.wfile.flush()

    return answer


def _slowly(piece: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def write(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.05)
        handler.wfile.write(piece)

    return write


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "results"),
    [
        (_until_cut(_slowly(b"x"), OK + b"Content-Length: 100000\r\n\r\n"), {"pending: timeout"}),
        (_until_cut(_slowly(b"1\r\nx\r\n"), OK + b"Transfer-Encoding: chunked\r\n\r\n"),
         {"pending: timeout"}),
        (_until_cut(_slowly(b"HTTP/1.1 100 Continue\r\n\r\n"), b""), {"pending: timeout"}),
        (_until_cut(lambda h: h.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 999), b""),
         {"pending: timeout", "pending: connection"}),
        (_until_cut(_slowly(b"X-More: x\r\n"), OK), {"pending: timeout"}),
        (_until_cut(lambda h: h.wfile.write(b"X-More: x\r\n" * 999), OK), {"pending: connection"}),
        (_until_cut(lambda h: h.wfile.write(b"x" * 99_999), OK + b"X: "), {"pending: connection"}),
        (_until_cut(lambda h: h.wfile.write(b"x" * 99_999), b""), {"pending: connection"}),
        (_until_cut(lambda h: h.wfile.write(b"ffff\r\n" + b"x" * 65_535 + b"\r\n"),
                    OK + b"Transfer-Encoding: chunked\r\n\r\n"), {"delivered"}),
        (_until_cut(lambda h: time.sleep(0.05), b""), {"pending: timeout"}),
    ],
    ids=["slow-body", "slow-chunks", "slow-continues", "continues", "slow-headers", "headers",
         "header-without-end", "status-without-end", "chunks", "silence"],
)  # fmt: skip
def test_an_answer_that_does_not_end(
    hook: Receiver, private: None, settings: Any, answer: Any, results: set[str]
) -> None:
    settings.WEBHOOK_TIMEOUT_S = 1.5
    owe(make_endpoint(make_tenant(), url=hook.url).tenant)
    hook.answer = answer
    began = time.monotonic()
    (result,) = attempt()
    assert result in results
    assert time.monotonic() - began < 5
    assert len(DeliveryAttempt.objects.get().answer) <= 1_024


def test_a_receiver_that_keeps_silent_in_the_handshake(private: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        sent = webhook_client.send(
            f"https://127.0.0.1:{silent.getsockname()[1]}/",
            b"{}",
            {},
            policy=address_policy(),
            timeout_s=1,
        )
    assert sent.result.error == "timeout"
    assert time.monotonic() - began < 4


def test_bytes_that_no_database_takes(hook: Receiver, private: None) -> None:
    owe(make_endpoint(make_tenant(), url=hook.url).tenant)
    hook.answer = answering(500, b"a\x00\xff\xed\xa0\x80b")
    assert attempt() == ["pending: status"]
    assert "\0" not in DeliveryAttempt.objects.get().answer


@pytest.mark.parametrize(
    ("asked", "least_s", "most_s"),
    [("60", 58, 61), ("999999999999999999", 3_590, 3_601), ("-5", 3, 7), ("1e9", 3, 7), ("", 3, 7)],
)
def test_a_receiver_asks_for_a_wait(
    hook: Receiver, private: None, asked: str, least_s: float, most_s: float
) -> None:
    owe(make_endpoint(make_tenant(), url=hook.url).tenant)
    hook.answer = answering(503, Retry_After=asked)
    attempt()
    row = NotificationDelivery.objects.get()
    at = DeliveryAttempt.objects.get().at
    assert row.next_attempt_at is not None
    assert least_s < (row.next_attempt_at - at).total_seconds() < most_s


def test_a_name_server_that_never_answers_holds_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    asked: list[str] = []
    real = socket.getaddrinfo

    def hang(host: Any, *args: Any, **options: Any) -> Any:
        if host != "hangs.acme.test":
            return real(host, *args, **options)
        asked.append(host)
        answers.wait(30)
        raise socket.gaierror("gave up")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    for _ in range(5):
        began = time.monotonic()
        sent = webhook_client.send(
            "https://hangs.acme.test/", b"{}", {}, policy=AddressPolicy(), timeout_s=0.2
        )
        assert (sent.result.error, sent.result.detail) == ("unresolvable", "no answer in time")
        assert time.monotonic() - began < 2
    assert asked == ["hangs.acme.test"]
    assert webhook_client.look_up("127.0.0.1", 443, 1) == ["127.0.0.1"]
    answers.set()
    poll(lambda: not webhook_client._LOOK_UPS._under_way, 10, "the look-up has ended")


# --- starving others ------------------------------------------------------------------------------


def test_a_thousand_messages_to_a_slow_receiver_beside_a_quick_one(
    hook: Receiver, private: None, settings: Any
) -> None:
    """The slow one answers nothing while the quick one gets all that it is owed, in five rounds."""
    settings.NOTIFICATION_SLOTS, settings.WEBHOOK_CONCURRENCY = 32, 4
    slow = make_endpoint(make_tenant(), url="http://127.0.0.1:9/")
    quick = make_endpoint(make_tenant(), url=hook.url)
    owe(slow.tenant, 1_000)
    owe(quick.tenant, 20)
    under_way: list[UUID] = []
    for _ in range(5):
        claimed = claim_deliveries()
        mine = set(
            NotificationDelivery.objects.filter(webhook=quick, status="pending").values_list(
                "delivery_id", flat=True
            )
        )
        for row in claimed:
            if row.delivery_id in mine:
                assert deliver(row.delivery_id, row.claim) == "delivered"
            else:
                under_way.append(row.delivery_id)
    assert (len(hook.received), len(under_way)) == (20, 4)


def test_webhooks_that_answer_slowly_and_well_hold_no_more_than_half_of_the_slots(
    private: None, settings: Any
) -> None:
    """Nothing fails there, so nothing slows them down but their tenant's share."""
    settings.NOTIFICATION_SLOTS, settings.WEBHOOK_CONCURRENCY = 32, 4
    hostile, second = make_tenant(), make_tenant()
    for tenant in (hostile, second):
        for _ in range(20):
            make_endpoint(tenant)
        owe(tenant, 10)
    claimed = [row.delivery_id for row in claim_deliveries()]
    by_tenant = [
        NotificationDelivery.objects.filter(pk__in=claimed, tenant=tenant).count()
        for tenant in (hostile, second)
    ]
    assert by_tenant == [16, 16]
    # All is taken; the first slot that becomes free goes to who has none.
    other = make_endpoint(make_tenant())
    owe(other.tenant, 3)
    assert claim_deliveries() == []
    NotificationDelivery.objects.filter(pk=claimed[0]).update(
        status="delivered", claim=None, next_attempt_at=None, finished_at=Now()
    )
    (row,) = claim_deliveries()
    assert NotificationDelivery.objects.get(pk=row.delivery_id).tenant == other.tenant


def test_a_tenant_with_many_webhooks_that_hang_leaves_half_of_the_slots(
    private: None, settings: Any
) -> None:
    """As many as a tenant may have; the first round they look well, from then on they fail."""
    settings.NOTIFICATION_SLOTS, settings.WEBHOOK_CONCURRENCY = 32, 4
    hostile = make_tenant()
    for _ in range(20):
        make_endpoint(hostile)
    owe(hostile, 50)
    WebhookEndpoint.objects.update(failing_since="2026-01-01T00:00:00Z")
    assert len(claim_deliveries()) == 16
    other = make_endpoint(make_tenant())
    owe(other.tenant, 3)
    claimed = [row.delivery_id for row in claim_deliveries()]
    assert NotificationDelivery.objects.filter(pk__in=claimed, webhook=other).count() == 3


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context for `hooks.acme.test`, whose maker the client trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.acme.test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.acme.test")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    client = ssl.create_default_context(cafile=str(pem))
    monkeypatch.setattr(webhook_client, "_tls", lambda: client)
    return server


@pytest.mark.parametrize(
    ("host", "error"), [("hooks.acme.test", ""), ("other.acme.test", "certificate")]
)
def test_tls_is_spoken_under_the_name_to_the_judged_address(
    authority: ssl.SSLContext, host: str, error: str
) -> None:
    asked_for: list[str | None] = []
    authority.sni_callback = lambda _, name, __: asked_for.append(name)
    with receiver(tls=authority) as hook:
        sent = webhook_client.send(
            f"https://{host}:{hook.port}/hook",
            b"{}",
            {},
            policy=AddressPolicy(allow_private=True),
            timeout_s=5,
            resolve=lambda *_: ["127.0.0.1"],
        )
    assert sent.result.error == error, sent
    assert asked_for == [host]
    assert [got.headers["host"] for got in hook.received] == (
        [] if error else [f"{host}:{hook.port}"]
    )
