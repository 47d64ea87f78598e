"""Idempotency-Key: copies of a request get the first one's answer, however they race."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now

from jobs.models import Job
from scheduler_project.lib.idempotency import body_hash, parse_key
from scheduler_project.lib.problems import Problem
from tenants.idempotency import claim, purge_expired
from tenants.models import IdempotencyKey, Tenant
from tests.support.api_client import Answer, ApiClient, assert_problem, client_of
from tests.support.factories import make_job, make_tenant
from tests.support.polling import poll

BODY = {
    "schedule": {"cron": "0 9 * * *", "time_zone": "Asia/Kolkata"},
    "task": {"image": "registry.example/acme/report:3", "timeout_s": 900},
}
COPIES = 20


def create(client: ApiClient, key: str, body: Any = BODY) -> Answer:
    return client.post("/v1/jobs", body, Idempotency_Key=key)


def at_once(count: int, send: Callable[[int], Answer]) -> list[Answer]:
    """Send `count` requests from as many threads, each with a database connection of its own."""
    together = threading.Barrier(count)

    def one(number: int) -> Answer:
        try:
            # The connection is opened before the start, so that the race is about the key.
            connection.ensure_connection()
            together.wait(timeout=30)
            return send(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def same_answer(first: Answer, second: Answer) -> bool:
    names = ("Location", "ETag", "Content-Type")
    return (first.status_code, first.content) == (second.status_code, second.content) and all(
        first.headers.get(name) == second.headers.get(name) for name in names
    )


def test_a_copy_gets_the_same_answer_and_makes_nothing(alice: ApiClient) -> None:
    first, second = create(alice, "k1"), create(alice, "k1")
    assert first.status_code == 201, first.content
    assert same_answer(first, second)
    assert first["Location"]
    assert first["ETag"]
    assert "Idempotency-Replayed" not in first.headers
    assert second["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_white_space_key_order_and_escapes_do_not_make_another_request(alice: ApiClient) -> None:
    first = create(alice, "k1", {**BODY, "name": "Büro"})
    turned = dict(reversed(({**BODY, "name": "Büro"}).items()))
    for copy in (
        json.dumps(turned, indent=3, ensure_ascii=False).encode(),
        json.dumps(turned, ensure_ascii=True).encode(),
    ):
        assert same_answer(first, create(alice, "k1", copy))
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_twenty_copies_at_once_one_acts_and_all_get_its_answer() -> None:
    alice = client_of(make_tenant(), "write")
    answers = at_once(COPIES, lambda _: create(alice, "k3"))
    made = [answer for answer in answers if answer.status_code == 201]
    waiting = [answer for answer in answers if answer.status_code != 201]
    assert made
    assert all(same_answer(made[0], answer) for answer in made)
    assert sum("Idempotency-Replayed" not in answer.headers for answer in made) == 1
    for answer in waiting:
        assert_problem(answer, 409, "idempotency_in_progress")
        assert int(answer["Retry-After"]) >= 1
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_twenty_copies_that_fail_none_keeps_the_key() -> None:
    alice = client_of(make_tenant(), "write")
    bad = {**BODY, "overlap": "forbid"}
    answers = at_once(COPIES, lambda _: create(alice, "k4", bad))
    assert {answer.status_code for answer in answers} <= {400, 409}
    assert IdempotencyKey.objects.count() == 0
    assert create(alice, "k4").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_racing_requests_with_one_key_and_different_bodies_make_one_job() -> None:
    alice = client_of(make_tenant(), "write")
    answers = at_once(COPIES, lambda number: create(alice, "k5", {**BODY, "name": f"n{number}"}))
    assert {answer.status_code for answer in answers} <= {201, 409, 422}
    assert [answer.status_code for answer in answers].count(201) == 1
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_racing_requests_with_different_keys_do_not_wait_for_each_other() -> None:
    alice = client_of(make_tenant(), "write")
    answers = at_once(8, lambda number: create(alice, f"own-{number}"))
    assert [answer.status_code for answer in answers] == [201] * 8
    assert Job.objects.count() == 8


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_a_request_that_is_stuck_is_told_to_come_back(settings: Any) -> None:
    settings.IDEMPOTENCY_WAIT_MS = 50
    tenant = make_tenant()
    alice = client_of(tenant, "write")
    with psycopg.connect(**database()) as stuck:
        # The first copy: it has the key and does not get on.
        stuck.execute(
            "INSERT INTO idempotency_keys (tenant_id, key, route_hash, body_hash, headers, body,"
            " expires_at) VALUES (%s, 'k6', '', '', '{}', '', now() + interval '1 hour')",
            [tenant.tenant_id],
        )
        answer = create(alice, "k6")
        assert_problem(answer, 409, "idempotency_in_progress")
        assert answer["Retry-After"] == "1"
        assert Job.objects.count() == 0
        stuck.rollback()
    assert create(alice, "k6").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_a_copy_that_waits_acts_itself_when_the_first_one_fails() -> None:
    tenant = make_tenant()
    alice = client_of(tenant, "write")

    def copy_of_it() -> Answer:
        try:
            return create(alice, "k7")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, psycopg.connect(**database()) as first:
        first.execute(
            "INSERT INTO idempotency_keys (tenant_id, key, route_hash, body_hash, headers, body,"
            " expires_at) VALUES (%s, 'k7', '', '', '{}', '', now() + interval '1 hour')",
            [tenant.tenant_id],
        )
        copy = pool.submit(copy_of_it)
        poll(is_somebody_waiting, 5, "the copy waits for the key")
        first.rollback()
        assert copy.result(timeout=10).status_code == 201


def is_somebody_waiting() -> bool:
    with psycopg.connect(**database()) as other:
        row = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND query LIKE '%idempotency_keys%' AND datname = current_database()"
        ).fetchone()
    return bool(row and row[0])


def database() -> dict[str, Any]:
    params = connection.get_connection_params()
    return {name: params[name] for name in ("dbname", "user", "password", "host", "port")}


def test_another_body_under_the_same_key_is_refused(alice: ApiClient) -> None:
    create(alice, "k1")
    assert_problem(create(alice, "k1", {**BODY, "name": "x"}), 422, "idempotency_key_reused")
    assert Job.objects.count() == 1


def test_a_key_of_create_says_nothing_about_run_now(alice: ApiClient) -> None:
    job_id = create(alice, "k8").json()["job_id"]
    answer = alice.post(f"/v1/jobs/{job_id}/runs", {}, Idempotency_Key="k8")
    assert_problem(answer, 422, "idempotency_key_reused")


def test_a_key_of_one_job_s_run_now_is_not_good_for_another(alice: ApiClient) -> None:
    first, second = (create(alice, key).json()["job_id"] for key in ("a", "b"))
    assert alice.post(f"/v1/jobs/{first}/runs", {}, Idempotency_Key="r").status_code == 201
    answer = alice.post(f"/v1/jobs/{second}/runs", {}, Idempotency_Key="r")
    assert_problem(answer, 422, "idempotency_key_reused")


def test_a_key_belongs_to_its_tenant(alice: ApiClient, bob: ApiClient) -> None:
    mine, theirs = create(alice, "shared-key-1"), create(bob, "shared-key-1")
    assert theirs.status_code == 201
    assert mine.json()["job_id"] != theirs.json()["job_id"]


def test_another_key_of_the_same_tenant_replays_too(alice: ApiClient, acme: Tenant) -> None:
    first = create(alice, "k1")
    assert same_answer(first, create(client_of(acme, "write"), "k1"))


def test_a_refused_request_leaves_its_key_free(alice: ApiClient) -> None:
    assert create(alice, "k7", {**BODY, "schedule": None}).status_code == 400
    assert create(alice, "k7", b"{").status_code == 400
    assert create(alice, "k7").status_code == 201


def test_a_copy_gets_the_first_answer_although_the_job_has_changed(alice: ApiClient) -> None:
    first = create(alice, "k5")
    path = first["Location"]
    changed = alice.patch(path, {"name": "new"}, If_Match=first["ETag"])
    assert changed.status_code == 200, changed.content
    assert same_answer(first, create(alice, "k5"))


def test_a_copy_gets_the_first_answer_although_the_job_is_gone(alice: ApiClient) -> None:
    first = create(alice, "k5")
    assert alice.delete(first["Location"]).status_code == 204
    assert same_answer(first, create(alice, "k5"))


def test_without_a_key_each_request_acts(alice: ApiClient) -> None:
    assert alice.post("/v1/jobs", BODY).status_code == 201
    assert alice.post("/v1/jobs", BODY).status_code == 201
    assert Job.objects.count() == 2


@pytest.mark.parametrize("key", ["", " ", "a\0b", "a\nb", "clé", "ключ", "x" * 256, "\x7f", "🕘"])
def test_a_malformed_key_is_refused_before_anything_is_done(alice: ApiClient, key: str) -> None:
    assert_problem(create(alice, key), 400, "invalid_idempotency_key")
    assert Job.objects.count() == 0


@pytest.mark.parametrize("key", ["x", "x" * 255, '"quoted"', "a b", "~!@#$%^&*()", "../../etc"])
def test_any_printable_ascii_is_a_key(key: str) -> None:
    assert parse_key(f" {key}\t") == key


def test_quotes_belong_to_a_key() -> None:
    assert parse_key('"k"') != parse_key("k")


def test_a_reading_key_cannot_fetch_an_answer_of_a_writing_one(
    alice: ApiClient, carol: ApiClient
) -> None:
    create(alice, "k1")
    assert_problem(create(carol, "k1"), 403, "insufficient_scope")


def test_a_key_is_forgotten_after_a_day(alice: ApiClient) -> None:
    create(alice, "k1")
    kept = IdempotencyKey.objects.get()
    assert kept.expires_at - kept.created_at == timedelta(hours=24)
    IdempotencyKey.objects.update(expires_at=Now() - timedelta(hours=1))
    other = create(alice, "k1", {**BODY, "name": "x"})
    assert other.status_code == 201
    assert same_answer(other, create(alice, "k1", {**BODY, "name": "x"}))
    assert Job.objects.count() == 2


def test_the_purge_takes_what_has_expired_and_nothing_else(alice: ApiClient) -> None:
    for key in ("old-1", "old-2", "old-3", "fresh"):
        create(alice, key)
    past = Now() - timedelta(hours=1)
    IdempotencyKey.objects.filter(key__startswith="old").update(expires_at=past)
    assert purge_expired(batch=2) == 2
    assert purge_expired() == 1
    assert purge_expired() == 0
    assert [kept.key for kept in IdempotencyKey.objects.all()] == ["fresh"]


@pytest.mark.django_db(transaction=True)
def test_the_answer_and_the_work_are_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    alice = client_of(make_tenant(), "write")

    def crash(*_: object) -> None:
        raise RuntimeError("the process fails after the work, before its answer is kept")

    monkeypatch.setattr("tenants.api.idempotency.keep", crash)
    assert_problem(create(alice, "k9"), 500, "internal_error")
    assert Job.objects.count() == 0
    monkeypatch.undo()
    assert create(alice, "k9").status_code == 201
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_short_wait_for_the_key_does_not_bind_the_work(settings: Any) -> None:
    settings.IDEMPOTENCY_WAIT_MS = 7
    tenant = make_tenant()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        before = cursor.fetchone()
        assert claim(tenant.tenant_id, "k", "route", "body") is None
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == before
        transaction.set_rollback(True)


def test_an_idempotent_run_now_needs_no_body(alice: ApiClient, acme: Tenant) -> None:
    job = make_job(acme)
    first = alice.post(f"/v1/jobs/{job.job_id}/runs", Idempotency_Key="r")
    assert first.status_code == 201, first.content
    # No body and an empty object are the same request.
    assert same_answer(first, alice.post(f"/v1/jobs/{job.job_id}/runs", {}, Idempotency_Key="r"))


def test_numbers_and_texts_that_look_alike_are_different_bodies() -> None:
    hashes = {body_hash({"a": value}) for value in (1, "1", True, None, 1.5, "true", [1])}
    assert len(hashes) == 7


def test_a_malformed_key_is_a_problem() -> None:
    with pytest.raises(Problem) as caught:
        parse_key("")
    assert caught.value.code == "invalid_idempotency_key"
