"""/healthz says that the process lives, /readyz that it could serve."""

import time
from typing import Any

import pytest
from django.db import connection

from scheduler_project.lib import health
from tests.support.api_client import ApiClient, assert_problem

ANYBODY = ApiClient(None)


def test_a_living_process_says_so_without_asking_anybody() -> None:
    # No `db` fixture: a query would fail this test.
    answer = ANYBODY.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_ready_process_has_database_migrations_and_broker(db: None) -> None:
    answer = ANYBODY.get("/readyz")
    assert answer.status_code == 200
    checks = {"database": "ok", "migrations": "ok", "broker": "ok"}
    assert answer.json() == {"status": "ok", "checks": checks}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_may_call_by_any_name_and_with_a_strange_host(db: None, path: str) -> None:
    assert ANYBODY.get(path, Host="10.0.0.7").status_code == 200
    assert ANYBODY.send("HEAD", path).status_code == 200


def test_without_a_broker_the_api_is_ready_all_the_same(db: None, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = ANYBODY.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["checks"]["broker"] == "ConnectionError"


def test_without_a_database_it_is_not_ready_and_says_when_to_ask_again(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "PORT", 1)
    started = time.perf_counter()
    answer = ANYBODY.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] == "OperationalError"
    assert int(answer["Retry-After"]) > 0
    assert "127.0.0.1" not in answer.content.decode()
    assert time.perf_counter() - started < health.CONNECT_TIMEOUT_S + 1


def test_a_migration_that_is_missing_is_named(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = health._needed_migrations() | {("jobs", "9999_next")}
    monkeypatch.setattr(health, "_needed_migrations", lambda: needed)
    answer = ANYBODY.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["migrations"] == "missing: jobs.9999_next"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_only_asks(path: str) -> None:
    assert_problem(ANYBODY.post(path, {}), 405, "method_not_allowed")
