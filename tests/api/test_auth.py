"""Keys: who is let in, who isn't, and what each is told."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from tenants.models import ApiKey, Tenant
from tenants.services import apikey_issue, apikey_revoke
from tests.support.api_client import ApiClient, assert_problem


def test_a_good_key_is_known_by_its_tenant_and_scopes(alice: ApiClient, acme: Tenant) -> None:
    answer = alice.get("/v1/me")
    assert answer.status_code == 200
    me = answer.json()
    assert me["tenant"] == {
        "tenant_id": str(acme.tenant_id),
        "name": "Acme",
        "created_at": me["tenant"]["created_at"],
    }
    assert me["key"]["scopes"] == ["write"]
    assert me["quotas"]["max_jobs"] == {"limit": 10_000, "used": 0}
    assert set(me["quotas"]) == {"max_jobs", "max_concurrent_runs", "max_runs_per_hour"}
    assert me["ceilings"]["max_timeout_s"] == 86_400


def test_without_a_key_the_answer_says_which_scheme_to_use(db: None) -> None:
    answer = ApiClient(None).get("/v1/me")
    assert_problem(answer, 401, "authentication_required")
    assert answer["WWW-Authenticate"] == 'Bearer realm="api"'


@pytest.mark.parametrize(
    "header",
    [
        "Basic dXNlcjpwYXNz",
        "Token sk_abc",
        "",
        "sk_abc",
        "Bearer",
        "Bearer ",
        "Bearer abc",
        "Bearer a\x00b",
        "Bearer a\nb",
        "Bearer sk_\u00e9\u00e9",
        "Bearer sk_000000000000_" + "0" * 43,
        "Bearer sk_000000000000_" + "0" * 100_000,
        "Bearer \ud83d\udd58".encode("utf-16", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_not_a_key_is_a_401(db: None, header: str) -> None:
    answer = ApiClient(None).get("/v1/me", Authorization=header)
    assert answer.status_code == 401, answer.content
    assert answer.json()["code"] in ("invalid_key", "authentication_required")
    assert "WWW-Authenticate" in answer.headers


def test_the_scheme_s_case_does_not_matter(alice: ApiClient) -> None:
    assert alice.get("/v1/me", Authorization=f"bEARER {alice.key}").status_code == 200


def test_a_key_with_one_character_changed_is_unknown(alice: ApiClient) -> None:
    assert alice.key
    other = "a" if alice.key[-1] != "a" else "b"
    assert_problem(ApiClient(alice.key[:-1] + other).get("/v1/me"), 401, "invalid_key")


def test_a_revoked_key_is_refused_at_its_next_request(alice: ApiClient) -> None:
    assert alice.get("/v1/me").status_code == 200
    apikey_revoke(ApiKey.objects.get().prefix)
    assert_problem(alice.get("/v1/me"), 401, "key_revoked")


def test_a_key_expires_by_the_database_s_clock(acme: Tenant) -> None:
    issued = apikey_issue(tenant=acme, name="brief", scopes=["read"], expires_in=timedelta(hours=1))
    client = ApiClient(issued.text)
    assert client.get("/v1/me").status_code == 200
    ApiKey.objects.update(expires_at=Now() - timedelta(microseconds=1))
    assert_problem(client.get("/v1/me"), 401, "key_expired")


def test_only_the_holder_of_the_whole_key_learns_that_it_is_revoked(alice: ApiClient) -> None:
    assert alice.key
    apikey_revoke(ApiKey.objects.get().prefix)
    wrong = alice.key[:-4] + "0000"
    assert_problem(ApiClient(wrong).get("/v1/me"), 401, "invalid_key")


def test_a_suspended_tenant_is_told_so(alice: ApiClient, acme: Tenant) -> None:
    Tenant.objects.filter(pk=acme.pk).update(suspended_at=Now())
    assert_problem(alice.get("/v1/me"), 403, "tenant_suspended")


def test_a_reading_key_may_not_write(carol: ApiClient) -> None:
    body = assert_problem(carol.post("/v1/jobs", {}), 403, "insufficient_scope")
    assert "write" in body["detail"]
    assert carol.get("/v1/me").status_code == 200


def test_the_use_of_a_key_is_recorded_at_most_once_a_minute(alice: ApiClient) -> None:
    alice.get("/v1/me")
    first = ApiKey.objects.get().last_used_at
    assert first is not None
    alice.get("/v1/me")
    assert ApiKey.objects.get().last_used_at == first
    ApiKey.objects.update(last_used_at=Now() - timedelta(seconds=61))
    alice.get("/v1/me")
    again = ApiKey.objects.get().last_used_at
    assert again is not None
    assert again >= first - timedelta(seconds=1)


def test_a_request_costs_one_statement_for_its_key(
    alice: ApiClient, django_assert_num_queries: object
) -> None:
    alice.get("/v1/me")
    with django_assert_num_queries(4):  # type: ignore[operator]
        # The key with its tenant, and the three counts of /v1/me.
        alice.get("/v1/me")


def test_a_key_whose_use_cannot_be_recorded_still_works(
    alice: ApiClient, transactional_db: None
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE api_keys ADD CONSTRAINT never CHECK (last_used_at IS NULL)")
    try:
        assert alice.get("/v1/me").status_code == 200
        assert ApiKey.objects.get().last_used_at is None
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE api_keys DROP CONSTRAINT never")
