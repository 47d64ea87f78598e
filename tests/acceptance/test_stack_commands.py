"""`make up`, `status`, `down` and `reset` as a person uses them, on a stack of its own."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from scheduler_project.stack.engine import Engine
from scheduler_project.stack.env_file import read_env_file
from scheduler_project.stack.layout import CHECKOUT, Layout
from scheduler_project.stack.ports import first_free
from scheduler_project.stack.strays import marked
from scheduler_project.stack.supervision import Supervisor
from tests.support.metrics import samples
from tests.support.polling import poll

# First start on a busy machine: PostgreSQL's data, tables, eight processes, ten seconds of demo.
pytestmark = pytest.mark.timeout(240)


@dataclass
class Commands:
    """The commands on one local directory. `ports` keep it off those of a stack beside it."""

    layout: Layout
    ports: dict[str, str]

    def __call__(
        self, *words: str, fails: bool = False, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run one; the test fails when its exit code is not the expected one."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "scheduler_project.stack", *words],
            env={**kept, **self.environment, **(variables or {})},
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done

    @property
    def environment(self) -> dict[str, str]:
        # RELEASE: a source that is edited while this test runs is no reason to restart anything.
        return {"LOCAL_DIR": str(self.layout.local), "RELEASE": "test", **self.ports}

    def env(self) -> dict[str, str]:
        return read_env_file(self.layout.env_file)

    def pids(self) -> dict[str, int]:
        return {status.name: status.pid for status in Supervisor(self.layout).statuses()}

    def processes(self) -> list[psutil.Process]:
        return marked(self.layout.local)


@pytest.fixture(scope="module")
def commands(services_directory: Path, engine: Engine) -> Iterator[Commands]:
    """The commands on a directory of their own; whatever they started is ended."""
    names, port, ports = ("API", "FLOWER", "POSTGRES", "REDIS"), 31_000, {}
    for name in names:
        port = first_free(port + 1)
        ports[f"{name}_PORT"] = str(port)
    commands = Commands(Layout(services_directory / f"made-up-{uuid.uuid4().hex[:8]}"), ports)
    yield commands
    commands("reset")


@pytest.fixture
def up(commands: Commands) -> Commands:
    """The commands on a stack that is up; quick when a test before left it so."""
    if Supervisor(commands.layout).pid() is None or not all_run(commands):
        commands("up", "--no-demo")
    return commands


def all_run(commands: Commands) -> bool:
    statuses = Supervisor(commands.layout).statuses()
    return bool(statuses) and all(status.state == "RUNNING" for status in statuses)


def test_up_runs_a_job_in_a_container_and_says_where_everything_is(commands: Commands) -> None:
    output = commands("up").stdout
    one_off = next(line for line in output.splitlines() if "once, ten seconds" in line)
    assert "succeeded" in one_off
    env = commands.env()
    for name in ("API_URL", "API_KEY", "API_KEY_2", "ADMIN_URL", "ADMIN_PASSWORD", "FLOWER_URL"):
        assert env[name] in output
    assert f". {os.path.relpath(commands.layout.env_file, CHECKOUT)} " in output
    assert env["DEMO_IMAGE"] == "scheduler-demo:latest"
    assert stat.S_IMODE(commands.layout.env_file.stat().st_mode) == 0o600

    jobs = _jobs(env, env["API_KEY"])
    assert len(jobs) == 3
    assert _jobs(env, env["API_KEY_2"]) == []

    commands("up")
    assert _jobs(env, env["API_KEY"]) == jobs


def _jobs(env: dict[str, str], key: str) -> list[str]:
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{env['API_URL']}/v1/jobs", headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    return sorted(job["job_id"] for job in answer.json()["jobs"])


def test_a_second_up_leaves_every_process_alone(up: Commands) -> None:
    before, keys = up.pids(), up.env()
    began = time.monotonic()
    up("up", "--no-demo")
    assert time.monotonic() - began < 60
    assert up.pids() == before
    assert up.env() == keys


def test_a_shell_that_sourced_the_env_file_still_gets_the_embedded_servers(up: Commands) -> None:
    before = up.pids()
    up("up", "--no-demo", variables=up.env())
    assert up.pids() == before


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"API_PORT": "abc"}, "API_PORT='abc'"),
        ({"DATABASE_URL": "mysql://u:geheim@h/db"}, "DATABASE_URL"),
        ({"REDIS_URL": "http://u:geheim@h/0"}, "REDIS_URL"),
        ({"WORKER_SLOTS": "many"}, "WORKER_SLOTS='many'"),
        ({"LEASE_S": "5"}, "HEARTBEAT_S (10) must be smaller"),
    ],
)
def test_a_setting_that_is_wrong_is_said_in_a_sentence_and_nothing_is_touched(
    up: Commands, variables: dict[str, str], said: str
) -> None:
    before = up.pids()
    refused = up("up", "--no-demo", fails=True, variables=variables)
    assert said in refused.stdout
    for never in ("Traceback", "geheim", "make reset"):
        assert never not in refused.stdout + refused.stderr
    assert up.pids() == before


def test_flower_is_behind_a_login(up: Commands) -> None:
    env = up.env()
    address = f"{env['FLOWER_URL']}/tasks"
    assert httpx.get(address, trust_env=False).status_code == 401
    login = (env["FLOWER_USER"], env["FLOWER_PASSWORD"])
    assert httpx.get(address, auth=login, trust_env=False).status_code == 200


def test_the_administrator_can_log_in(up: Commands) -> None:
    env = up.env()
    with httpx.Client(follow_redirects=True, trust_env=False) as client:
        page = client.get(env["ADMIN_URL"])
        form = {"username": env["ADMIN_USER"], "password": env["ADMIN_PASSWORD"]}
        form["csrfmiddlewaretoken"] = client.cookies["csrftoken"]
        form["next"] = "/admin/"
        answer = client.post(page.url, data=form, headers={"Referer": str(page.url)})
    assert answer.status_code == 200
    assert "/login/" not in answer.url.path


def test_the_application_is_no_superuser(up: Commands) -> None:
    with psycopg.connect(up.env()["DATABASE_URL"]) as connection:
        row = connection.execute("SELECT current_setting('is_superuser')").fetchone()
    assert row == ("off",)


def test_status_says_where_the_metrics_of_each_program_are_read(up: Commands) -> None:
    table = up("status").stdout
    for name in ("api", "scheduler-1", "scheduler-2", "worker-1", "worker-2"):
        (line,) = [line for line in table.splitlines() if line.startswith(f" {name} ")]
        address = line.split()[-1]
        shown = samples(httpx.get(address, trust_env=False, timeout=10).text)
        assert 'runs_completed_total{status="succeeded"}' in shown, name
        assert ("slots_free" in shown) == name.startswith("worker")


def test_what_dies_is_restarted(up: Commands) -> None:
    before = up.pids()
    victims = ["worker-1", "scheduler-2", "redis", "postgres"]
    for name in victims:
        os.kill(before[name], signal.SIGKILL)

    def all_back() -> bool:
        return all(up.pids()[name] not in (0, before[name]) for name in victims)

    poll(all_back, within_s=60, what=f"{victims} have new processes")
    poll(lambda: all_run(up), within_s=60, what="status says that all run")


def test_a_port_that_was_set_but_is_taken_is_an_error_that_names_it(up: Commands) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = up("up", "--no-demo", fails=True, variables={"API_PORT": str(port)})
    assert f"API_PORT={port}" in refused.stdout


def test_an_engine_that_does_not_answer_is_an_error_that_names_it(up: Commands) -> None:
    nowhere = {"DOCKER_HOST": "unix:///nowhere.sock"}
    refused = up("up", "--no-demo", fails=True, variables=nowhere)
    assert "DOCKER_HOST=unix:///nowhere.sock" in refused.stdout


def test_down_leaves_no_process_and_its_data_is_there_again_after_up(up: Commands) -> None:
    env = up.env()
    up("down")
    assert up.processes() == []
    up("status", fails=True)
    up("up", "--no-demo")
    assert up.env() == env


def test_down_finds_everything_after_its_supervisor_was_killed(
    up: Commands, engine: Engine, demo_image: str
) -> None:
    with engine.client() as client:
        container = client.containers.create(
            demo_image, ["sleep", "600"], labels={"scheduler.instance": up.layout.instance}
        )
    daemon = Supervisor(up.layout).pid()
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    assert up.processes()
    assert "supervisor is gone" in up("status", fails=True).stdout
    up("down")
    assert up.processes() == []
    with engine.client() as client:
        left = client.containers.list(all=True, filters={"id": container.id})
    assert left == []
    assert not up.layout.deadlines.exists()


def test_up_heals_what_a_killed_up_left_behind(commands: Commands) -> None:
    commands("reset")
    for after_s in (0.5, 1.5, 4):
        started = subprocess.Popen(
            [sys.executable, "-m", "scheduler_project.stack", "up", "--no-demo"],
            env={**os.environ, **commands.environment},
            cwd=CHECKOUT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(after_s)
        started.kill()
        started.wait()
    if (daemon := Supervisor(commands.layout).pid()) is not None:
        os.kill(daemon, signal.SIGKILL)
    commands("up", "--no-demo")
    assert _jobs(commands.env(), commands.env()["API_KEY"]) == []
