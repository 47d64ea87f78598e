"""Rates per key and class of call: 429 for a loop gone wild, nothing for anybody else."""

import socket
import time

import pytest
import redis
from django.conf import settings

from scheduler_project.lib import rate_limit
from scheduler_project.lib.problems import Problem
from scheduler_project.lib.rate_limit import Rate, RateLimiter, limiter
from tenants.api.failed_authentications import authentication_failed
from tenants.models import Tenant
from tests.support.api_client import ApiClient, assert_problem, client_of
from tests.support.polling import poll

FAR_AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def low_rates(monkeypatch: pytest.MonkeyPatch, redis_server: "redis.Redis") -> None:
    """Three calls at once, and one more every ten minutes."""
    slow = (1 / 600, 3)
    monkeypatch.setattr(settings, "RATE_LIMITS", dict.fromkeys(settings.RATE_LIMITS, slow))


class CountingLimiter(RateLimiter):
    """Counts how often Redis is asked; its pause after a failure outlasts any test."""

    asked = 0

    def __init__(self, url: str) -> None:
        super().__init__(url, prefix="test", timeout_s=0.025)
        ask = self._script

        def count(**arguments: object) -> object:
            self.asked += 1
            return ask(**arguments)  # type: ignore[arg-type]

        self._script = count  # type: ignore[assignment]


@pytest.fixture
def no_redis(monkeypatch: pytest.MonkeyPatch) -> CountingLimiter:
    """A limiter whose Redis is away."""
    monkeypatch.setattr(rate_limit, "PAUSE_S", 60)
    away = CountingLimiter(FAR_AWAY)
    for module in ("throttling", "failed_authentications"):
        monkeypatch.setattr(f"tenants.api.{module}.limiter", lambda: away)
    return away


def test_the_fourth_of_three_calls_is_a_429_with_a_time_to_come_back(
    low_rates: None, alice: ApiClient
) -> None:
    assert [alice.get("/v1/me").status_code for _ in range(3)] == [200] * 3
    answer = alice.get("/v1/me")
    body = assert_problem(answer, 429, "rate_limited")
    assert "read" in body["detail"]
    assert 590 <= int(answer["Retry-After"]) <= 600


def test_every_answer_says_what_remains(low_rates: None, alice: ApiClient) -> None:
    answers = [alice.get("/v1/me") for _ in range(4)]
    assert {answer["RateLimit-Policy"] for answer in answers} == {'"read";q=3;w=1800'}
    assert [answer["RateLimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
    assert answers[0]["RateLimit"].startswith('"read";r=2;t=')


def test_each_class_of_call_has_a_rate_of_its_own(low_rates: None, alice: ApiClient) -> None:
    for _ in range(4):
        alice.get("/v1/me")
    answer = alice.post("/v1/jobs", {})
    assert answer.status_code == 400
    assert answer["RateLimit-Policy"].startswith('"write"')


def test_each_key_has_a_rate_of_its_own(low_rates: None, alice: ApiClient, acme: Tenant) -> None:
    for _ in range(4):
        alice.get("/v1/me")
    assert client_of(acme, "read").get("/v1/me").status_code == 200


def test_the_usual_rates_are_far_above_what_a_test_sends(alice: ApiClient) -> None:
    answers = [alice.get("/v1/me") for _ in range(100)]
    assert {answer.status_code for answer in answers} == {200}


def test_an_address_that_sends_wrong_keys_is_slowed_and_valid_keys_are_not(
    low_rates: None, alice: ApiClient
) -> None:
    stranger = ApiClient("sk_wrong")
    for _ in range(3):
        assert_problem(stranger.get("/v1/me"), 401, "invalid_key")
    answer = stranger.get("/v1/me")
    assert_problem(answer, 429, "too_many_failed_authentications")
    assert int(answer["Retry-After"]) > 0
    assert alice.get("/v1/me").status_code == 200


def test_a_request_without_a_key_is_no_failed_authentication(
    low_rates: None, alice: ApiClient
) -> None:
    for _ in range(5):
        assert_problem(ApiClient(None).get("/v1/me"), 401, "authentication_required")


def test_when_redis_is_away_requests_pass_and_only_one_of_them_asks(
    no_redis: CountingLimiter, alice: ApiClient
) -> None:
    answers = [alice.get("/v1/me") for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert no_redis.asked == 1
    assert "RateLimit" not in answers[0].headers
    assert answers[0]["RateLimit-Policy"]
    assert_problem(ApiClient("sk_wrong").get("/v1/me"), 401, "invalid_key")


def test_a_redis_that_hangs_costs_one_request_the_time_out_and_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limit, "PAUSE_S", 60)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        hanging = CountingLimiter(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        started = time.perf_counter()
        for _ in range(1_000):
            assert hanging.take("k", Rate("read", 1, 1)) is None
        assert time.perf_counter() - started < 2
        assert hanging.asked == 1


def test_while_redis_is_away_one_request_in_each_pause_looks_whether_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = CountingLimiter(FAR_AWAY)
    away.take("k", Rate("read", 1, 1))
    monkeypatch.setattr(rate_limit, "PAUSE_S", 0)
    for _ in range(3):
        away._ask_again_at = 0
        away.take("k", Rate("read", 1, 1))
    assert away.asked == 4


def test_when_redis_is_back_rates_are_limited_again(
    monkeypatch: pytest.MonkeyPatch, redis_server: "redis.Redis"
) -> None:
    monkeypatch.setattr(rate_limit, "PAUSE_S", 0.05)
    own = RateLimiter(settings.REDIS_URL, prefix="test", timeout_s=1)
    rate = Rate("read", 1 / 600, 1)
    with monkeypatch.context() as broken:

        def fail(**_: object) -> None:
            raise redis.ConnectionError("away")

        broken.setattr(own, "_script", fail)
        assert own.take("k", rate) is None
        assert own.take("k", rate) is None
    decision = poll(lambda: own.take("k", rate), 5, "Redis is asked again")
    assert decision is not None
    assert decision.allowed
    again = own.take("k", rate)
    assert again is not None
    assert not again.allowed


def test_an_allowance_refills_with_time(redis_server: "redis.Redis") -> None:
    own = RateLimiter(settings.REDIS_URL, prefix="test", timeout_s=1)
    rate = Rate("read", 1, 2)
    decisions = [own.take("k", rate) for _ in range(3)]
    assert [bool(d and d.allowed) for d in decisions] == [True, True, False]
    last = decisions[-1]
    assert last is not None
    assert 0 < last.retry_after_s <= 1
    poll(lambda: (d := own.take("k", rate)) and d.allowed, 5, "one more is allowed")


def test_a_rate_leaves_nothing_behind_in_redis(redis_server: "redis.Redis") -> None:
    own = RateLimiter(settings.REDIS_URL, prefix="test", timeout_s=1)
    own.take("k", Rate("read", 1_000, 5))
    poll(lambda: not redis_server.keys("test:*"), 5, "the key has expired")


def test_a_flushed_redis_forgets_and_goes_on(redis_server: "redis.Redis") -> None:
    own = RateLimiter(settings.REDIS_URL, prefix="test", timeout_s=1)
    rate = Rate("read", 1 / 600, 1)
    own.take("k", rate)
    redis_server.flushall()
    redis_server.script_flush()
    decision = own.take("k", rate)
    assert decision is not None
    assert decision.allowed


def test_failures_of_one_address_do_not_count_for_another(low_rates: None) -> None:
    wrong = Problem("invalid_key")
    for _ in range(3):
        assert authentication_failed("192.0.2.1", wrong) is wrong
    assert authentication_failed("192.0.2.1", wrong).status_code == 429
    assert authentication_failed("192.0.2.2", wrong) is wrong


def test_one_limiter_serves_a_process() -> None:
    assert limiter() is limiter()
