"""What a stack writes down: its state, its env file, its supervisor's configuration."""

import configparser
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from scheduler_project.stack import postgres, redis
from scheduler_project.stack.env_file import read_env_file, write_env_file
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.layout import CHECKOUT, Layout
from scheduler_project.stack.programs import Program, settings_in, source_digest, worker_command
from scheduler_project.stack.state import load_state, save_state
from scheduler_project.stack.supervision import render


def test_secrets_are_made_once_and_kept(tmp_path: Path) -> None:
    first = load_state(tmp_path / "state.json")
    assert load_state(tmp_path / "state.json") == first
    assert load_state(tmp_path / "other.json").secret_key != first.secret_key


def test_only_their_owner_reads_the_secrets(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = load_state(path)
    state.api_keys["Acme"] = "key"
    save_state(path, state)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_state(path).api_keys == {"Acme": "key"}


def test_a_shell_reads_the_env_file_as_it_was_written(tmp_path: Path) -> None:
    values = {"PLAIN": "http://127.0.0.1:8000", "ODD": 'it\'s a $HOME `x` "y" & z', "NONE": ""}
    path = tmp_path / "env"
    write_env_file(path, values)
    script = f'. {shlex.quote(str(path))}; printf "%s|%s|%s" "$PLAIN" "$ODD" "$NONE"'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout.split("|") == list(values.values())
    assert read_env_file(path) == values
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_directories_are_two_instances() -> None:
    assert Layout(Path("/a/.local")).instance != Layout(Path("/b/.local")).instance


def test_a_long_path_gets_a_socket_that_the_kernel_accepts() -> None:
    layout = Layout(Path("/" + "long/" * 40) / ".local")
    assert len(str(layout.supervisor_socket)) < 108


def test_the_supervisor_reads_back_what_was_meant(tmp_path: Path) -> None:
    command = ["/usr/bin/printf", "%s it's", "a b"]
    program = Program("odd", command, {"URL": "postgresql://u:p%40q@h/d", "EMPTY": ""})
    parser = configparser.RawConfigParser()
    parser.read_string(render(Layout(tmp_path), [program]))
    section = parser["program:odd"]
    assert shlex.split(section["command"] % {}) == command
    assert section["environment"] % {} == 'EMPTY="",URL="postgresql://u:p%40q@h/d"'
    assert section["killasgroup"] == "true"


@pytest.mark.parametrize("value", ['a"b', "a\nb"])
def test_a_value_that_would_break_the_configuration_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(StackError, match="NAME"):
        render(Layout(tmp_path), [Program("p", ["true"], {"NAME": value})])


def test_what_a_caller_sets_for_the_application_is_passed_on_and_nothing_else() -> None:
    environ = {"LEASE_S": "6", "WORKER_SLOTS": "3", "LOG_LEVEL": "", "MAKEFLAGS": "-j"}
    assert settings_in(environ) == {"LEASE_S": "6", "WORKER_SLOTS": "3"}


def test_settings_whose_names_are_made_in_a_loop_are_passed_on_too() -> None:
    set_by_hand = {"RATE_LIMIT_RUN_NOW_BURST": "5", "RATE_LIMIT_READ_PER_S": "7"}
    assert settings_in({**set_by_hand, "RATE_LIMIT": "1"}) == set_by_hand


@pytest.mark.parametrize("url", ["foo", "mysql://u:geheim@h/db", "postgresql://h/d?x=geheim", ""])
def test_what_is_no_database_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StackError, match="DATABASE_URL") as refused:
        postgres.check_url(url)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("url", ["foo", "http://u:geheim@h/0", "redis://u:geheim@h:port/0"])
def test_what_is_no_redis_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StackError, match="REDIS_URL") as refused:
        redis.check_url(url)
    assert "geheim" not in str(refused.value)


def test_only_their_owner_reads_the_logs(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "local")
    layout.make_directories()
    assert stat.S_IMODE(layout.logs.stat().st_mode) == 0o700


def test_a_worker_has_a_thread_for_each_slot_and_each_prepared_run() -> None:
    assert "--concurrency=14" in worker_command("worker1", slots=7, prepared=3)


def test_a_changed_source_changes_the_digest(tmp_path: Path) -> None:
    for app in ("scheduler_project", "tenants", "jobs", "runs", "workers"):
        (tmp_path / app).mkdir()
    (tmp_path / "requirements.txt").touch()
    source = tmp_path / "runs" / "planner.py"
    source.write_text("a = 1\n")
    before = source_digest(tmp_path)
    assert source_digest(tmp_path) == before
    source.write_text("a = 2\n")
    assert source_digest(tmp_path) != before
    assert source_digest(CHECKOUT)
