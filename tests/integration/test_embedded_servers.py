"""The embedded PostgreSQL and Redis: closed to others, whole or not there at all."""

from pathlib import Path

import psutil
import psycopg
import pytest
import redis as redis_client

from scheduler_project.stack import postgres, redis
from scheduler_project.stack.errors import StackError
from tests.support.servers import start_postgres, start_redis


def test_postgres_serves_from_below_a_closed_directory_and_wants_the_password(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    server = start_postgres(tmp_path, tmp_path)
    try:
        assert postgres.answers(server.url)
        assert not postgres.answers(server.url.replace(server.server.password, "wrong"))
        with psycopg.connect(server.url) as connection:
            listens = connection.execute("SHOW listen_addresses").fetchone()
            superuser = connection.execute("SHOW is_superuser").fetchone()
        assert listens == ("127.0.0.1",)
        assert superuser == ("off",)
        assert psutil.Process(server.process.pid).uids().real != 0
    finally:
        server.kill()


def test_an_initialisation_that_was_killed_is_made_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "postgres.unfinished" / "cluster"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    server = start_postgres(tmp_path, tmp_path)
    server.kill()
    assert not unfinished.exists()


def test_data_of_another_major_version_is_left_alone_with_a_word_on_what_to_do(
    tmp_path: Path,
) -> None:
    data = tmp_path / "postgres"
    data.mkdir()
    (data / "PG_VERSION").write_text("13\n")
    with pytest.raises(StackError, match="PostgreSQL 13"):
        postgres.Postgres(data, 0, "password").initialise()


def test_redis_never_evicts_wants_the_password_and_comes_back_empty(tmp_path: Path) -> None:
    server = start_redis(tmp_path, tmp_path)
    try:
        assert not redis.answers(server.url.replace(server.server.password, "wrong"))
        with server.connect() as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            client.set("word", "hint")
        server.stop()
        assert not redis.answers(server.url)
        server.start()
        with redis_client.Redis.from_url(server.url) as client:
            assert client.get("word") is None
    finally:
        server.kill()
