"""Errors: always a problem with a code, whatever goes wrong and wherever."""

import json
from typing import Any

import psycopg
import psycopg_pool
import pytest
from django.db import DataError, InterfaceError, InternalError, OperationalError
from django.http import HttpResponse

from scheduler_project.lib.problem_catalogue import PROBLEMS
from scheduler_project.lib.problems import problem_of
from tests.support.api_client import ApiClient, assert_problem

SECRETS = ("Traceback", "SELECT", "INSERT", "psycopg", "django", "site-packages", "<html", "<!doc")


def assert_nothing_leaks(answer: HttpResponse) -> None:
    text = answer.content.decode()
    assert not [word for word in SECRETS if word.lower() in text.lower()], text


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/jobs/",
        "/v1/jobs/abc",
        "/v1/jobs/..%2F..%2Fetc",
        "/v1/jobs/999999999999999999999999999999",
        "/v1/jobs/-1",
        "/v1/jobs/1%20OR%201=1",
        "/v1/jobs/%00",
        "/v1/jobs/%FF%FE",
        "/v1/jobs/%ED%A0%80",
        "/v1/jobs/00000000-0000-0000-0000-00000000000g",
        "/v1/jobs/00000000-0000-4000-8000-000000000000",
        "/v1/runs/abc/cancel",
        "/v1/" + "x" * 5_000,
        "/.git/config",
    ],
)
@pytest.mark.parametrize("debug", [True, False])
def test_an_address_with_nothing_behind_it_is_a_404_problem(
    alice: ApiClient, path: str, debug: bool, settings: Any
) -> None:
    settings.DEBUG = debug
    answer = alice.get(path)
    assert_problem(answer, 404, "not_found")
    assert_nothing_leaks(answer)


@pytest.mark.parametrize("query", ["%00", "a%00b=1", "limit=%00", "cursor=%ED%A0%80", "%FF=%FF"])
def test_odd_bytes_in_a_query_are_the_caller_s_error(alice: ApiClient, query: str) -> None:
    answer = alice.get(f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert_nothing_leaks(answer)


def test_thousands_of_parameters_are_the_caller_s_error(alice: ApiClient) -> None:
    answer = alice.get("/v1/jobs?" + "&".join(f"a{n}=1" for n in range(5_000)))
    assert_problem(answer, 400, "bad_request")


def test_an_unknown_parameter_comes_with_the_nearest(alice: ApiClient) -> None:
    body = assert_problem(alice.get("/v1/jobs?limt=5"), 400, "invalid_request")
    assert body["errors"][0]["field"] == "limt"
    assert body["errors"][0]["hint"] == "Did you mean limit?"


def test_a_parameter_given_twice_is_refused(alice: ApiClient) -> None:
    body = assert_problem(alice.get("/v1/jobs?limit=5&limit=6"), 400, "invalid_request")
    assert body["errors"][0]["code"] == "repeated"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "get"])
def test_a_method_that_is_not_there_is_a_405_with_those_that_are(
    alice: ApiClient, method: str
) -> None:
    answer = alice.send(method, "/v1/me")
    if method == "get":  # Django makes it GET
        assert answer.status_code == 200
        return
    assert_problem(answer, 405, "method_not_allowed")
    assert answer["Allow"] == "GET, HEAD"


def test_a_405_lists_the_methods_of_all_operations_of_the_address(alice: ApiClient) -> None:
    answer = alice.send("PUT", "/v1/jobs/00000000-0000-4000-8000-000000000000", {})
    assert_problem(answer, 405, "method_not_allowed")
    assert set(answer["Allow"].split(", ")) == {"GET", "HEAD", "PATCH", "DELETE"}


@pytest.mark.parametrize("path", ["/healthz", "/v1/openapi.json"])
def test_addresses_without_a_key_know_their_methods_too(db: None, path: str) -> None:
    answer = ApiClient(None).post(path, {})
    assert_problem(answer, 405, "method_not_allowed")
    assert "GET" in answer["Allow"]


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "application/problem+json"])
def test_another_form_than_json_cannot_be_had(alice: ApiClient, accept: str) -> None:
    assert_problem(alice.get("/v1/me", Accept=accept), 406, "not_acceptable")


@pytest.mark.parametrize("accept", ["*/*", "application/*", "text/html, */*;q=0.1", "", "garbage"])
def test_json_is_what_everybody_else_gets(alice: ApiClient, accept: str) -> None:
    answer = alice.get("/v1/me", Accept=accept)
    assert answer.status_code in (200, 406)
    assert answer["Content-Type"] in ("application/json", "application/problem+json")


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "application/jsonp",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
        "",
        "garbage",
    ],
)
def test_a_body_of_another_type_is_a_415(alice: ApiClient, content_type: str) -> None:
    answer = alice.send("POST", "/v1/jobs", b"schedule=0+9", content_type=content_type)
    assert_problem(answer, 415, "unsupported_media_type")
    assert answer["Accept"] == "application/json"


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "utf8"])
def test_json_in_utf_8_may_say_so(alice: ApiClient, charset: str) -> None:
    answer = alice.send(
        "POST", "/v1/jobs", b"{", content_type=f"application/json; charset={charset}"
    )
    assert_problem(answer, 400, "invalid_json")


def test_a_body_beyond_the_bound_is_a_413_that_says_the_bound(
    alice: ApiClient, settings: Any
) -> None:
    body = b'{"name":"' + b"x" * settings.API_MAX_BODY_BYTES + b'"}'
    problem = assert_problem(alice.send("POST", "/v1/jobs", body), 413, "body_too_large")
    assert str(settings.API_MAX_BODY_BYTES) in problem["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"{}{}", b'{"name":"\xff"}', b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_a_400(alice: ApiClient, body: bytes) -> None:
    answer = alice.send("POST", "/v1/jobs", body)
    assert answer.status_code == 400
    assert_nothing_leaks(answer)


def test_a_foreign_host_gets_a_problem_and_no_page(alice: ApiClient) -> None:
    answer = alice.get("/v1/me", Host="evil.example")
    assert_problem(answer, 400, "bad_request")
    assert_nothing_leaks(answer)


@pytest.mark.parametrize("debug", [True, False])
def test_a_crash_is_a_500_that_tells_nothing_but_its_id(
    alice: ApiClient, monkeypatch: pytest.MonkeyPatch, settings: Any, debug: bool
) -> None:
    settings.DEBUG = debug

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("SELECT secret FROM django_session")

    monkeypatch.setattr("tenants.api.views.MeGet.get", crash)
    answer = alice.get("/v1/me", X_Request_Id="mine-1")
    body = assert_problem(answer, 500, "internal_error")
    assert body["request_id"] == "mine-1"
    assert_nothing_leaks(answer)


def test_an_answer_that_cannot_be_written_is_a_500_problem(
    alice: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rest_framework.response import Response

    monkeypatch.setattr(
        "tenants.api.views.MeGet.get", lambda *_, **__: Response({"x": float("nan")})
    )
    answer = alice.get("/v1/me")
    assert_problem(answer, 500, "internal_error")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OperationalError("server closed the connection"), "database_unavailable"),
        (InterfaceError("connection already closed"), "database_unavailable"),
        (psycopg.OperationalError("could not connect"), "database_unavailable"),
        (psycopg_pool.PoolTimeout("no connection within 3 s"), "database_unavailable"),
        (psycopg_pool.PoolClosed("closed"), "database_unavailable"),
        (psycopg.errors.AdminShutdown("terminating"), "database_unavailable"),
        (psycopg.errors.CannotConnectNow("starting up"), "database_unavailable"),
        (psycopg.errors.TooManyConnections("too many"), "database_unavailable"),
        (psycopg.errors.LockNotAvailable("lock timeout"), "busy"),
        (psycopg.errors.QueryCanceled("statement timeout"), "busy"),
        (psycopg.errors.DeadlockDetected("deadlock"), "busy"),
        (psycopg.errors.SerializationFailure("could not serialize"), "busy"),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), "database_unavailable"),
    ],
)
def test_a_database_that_is_away_or_busy_is_a_503_with_a_time_to_come_back(
    error: Exception, code: str
) -> None:
    wrappers = (OperationalError("wrapped"), InternalError("wrapped"))
    for wrapped in (None, *wrappers):
        if wrapped is not None:
            wrapped.__cause__ = error
            if isinstance(wrapped, OperationalError) and code == "database_unavailable":
                continue
        problem = problem_of(wrapped or error)
        assert (problem.status_code, problem.code) == (503, code)
        assert int(problem.headers["Retry-After"]) > 0


def test_a_value_that_only_the_database_refuses_is_still_the_caller_s() -> None:
    problem = problem_of(DataError("integer out of range"))
    assert problem.status_code == 400
    assert "integer" not in problem.message


@pytest.mark.parametrize("given", ["mine-1", "a" * 128, "0af7651916cd43dd:1/2=3@4+5"])
def test_a_caller_s_request_id_is_kept(alice: ApiClient, given: str) -> None:
    assert alice.get("/v1/me", X_Request_Id=given)["X-Request-Id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\nb", "a\0b", "ä", "<b>", '"a"'])
def test_a_malformed_request_id_is_replaced(alice: ApiClient, given: str) -> None:
    answer = alice.get("/v1/me", X_Request_Id=given)
    assert answer["X-Request-Id"].startswith("req_")


def test_every_request_without_an_id_gets_one_of_its_own(alice: ApiClient) -> None:
    ids = {alice.get("/v1/me")["X-Request-Id"] for _ in range(3)}
    assert len(ids) == 3


def test_errors_are_never_cached_and_answers_only_to_be_asked_about(alice: ApiClient) -> None:
    assert alice.get("/v1/nothing")["Cache-Control"] == "no-store"
    assert alice.get("/v1/me")["Cache-Control"] == "private, no-cache"


@pytest.mark.parametrize("header", ["X-Content-Type-Options"])
def test_answers_carry_the_headers_that_keep_browsers_sober(alice: ApiClient, header: str) -> None:
    assert alice.get("/v1/me").headers[header] == "nosniff"


def test_the_type_of_a_problem_leads_to_its_explanation(db: None) -> None:
    anybody = ApiClient(None)
    body = assert_problem(anybody.get("/v1/me"), 401, "authentication_required")
    page, _, anchor = body["type"].partition("#")
    answer = anybody.get(page)
    assert answer.status_code == 200
    assert f'id="{anchor}"' in answer.content.decode()
    assert all(f'id="{code}"' in answer.content.decode() for code in PROBLEMS)


def test_a_problem_with_half_a_surrogate_in_its_message_can_be_written(alice: ApiClient) -> None:
    body = b'{"\\ud800": 1, "overlap": "\\udfff"}'
    answer = alice.send("POST", "/v1/jobs", body)
    assert_problem(answer, 400, "invalid_request")
    json.loads(answer.content)


def test_a_chunked_body_without_a_server_that_ends_it_is_a_411(alice: ApiClient) -> None:
    answer = alice.post("/v1/jobs", b"", Transfer_Encoding="chunked")
    assert_problem(answer, 411, "length_required")
