"""Bring a stack up, one step after the other.

Owns the order. A step may be killed at any point, and the next `up` heals it: data directories
appear by a rename, processes without a supervisor are ended, keys that no longer work are made
anew, ports that somebody took meanwhile are chosen again.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx

from scheduler_project.stack import postgres, redis
from scheduler_project.stack.console import step
from scheduler_project.stack.engine import Engine, ensure_engine
from scheduler_project.stack.engine_users import EngineUsers
from scheduler_project.stack.env_file import write_env_file
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.image import DEMO_IMAGE, ensure_demo_image
from scheduler_project.stack.layout import CHECKOUT
from scheduler_project.stack.ports import choose_ports, is_free, ports_set
from scheduler_project.stack.programs import settings_in
from scheduler_project.stack.seed import ADMIN_USER, BAD_SETTINGS
from scheduler_project.stack.stack import FLOWER_USER, SERVERS, Stack
from scheduler_project.stack.strays import end_all, listens, processes_of
from scheduler_project.stack.waiting import poll

TENANTS = ["Acme", "Globex"]
_PORT_TRIES = 4
# Eight Python processes start at once; on two busy cores that has taken half a minute.
_START_TIMEOUT_S = 120


def bring_up(stack: Stack) -> None:
    """Bring everything up; harmless and quick when it is up already."""
    _choose_ports(stack)
    _refuse_bad_settings(stack)
    with step("Container engine") as details:
        log = stack.layout.logs / "dockerd.log"
        engine = ensure_engine(stack.layout.instance, log, stack.environ)
        details.append(engine.host)
    with step("Demo image") as details:
        ensure_demo_image(engine, stack.layout.local / "busybox")
        details.append(DEMO_IMAGE)
    if stack.supervisor.pid() is None:
        # Children of a supervisor that was killed: nobody watches them any more.
        end_all(processes_of(stack.layout))
    _start(stack, engine)
    with step("API keys"):
        _ensure_keys(stack)
    _write_env_file(stack)


def _refuse_bad_settings(stack: Stack) -> None:
    """Before anything starts with what a person has set: each program would say it in its log."""
    postgres.check_url(stack.addresses().database)
    redis.check_url(stack.addresses().redis)
    if settings_in(stack.environ):
        _seed(stack, "check_settings")


def _start(stack: Stack, engine: Engine) -> None:
    """Start the programs; where somebody was quicker at one of our ports, try other ones."""
    for tries_left in reversed(range(_PORT_TRIES)):
        _choose_ports(stack)
        try:
            _start_servers(stack, engine)
            with step("Tables, static files, administrator, tenants"):
                _seed(stack, "prepare", admin_password=stack.state.admin_password, tenants=TENANTS)
            _start_application(stack, engine)
            return
        except StackError:
            if not tries_left or not _lost_a_port(stack):
                raise


def _lost_a_port(stack: Stack) -> bool:
    ports = stack.state.ports.values()
    return any(not is_free(port) and not listens(port, stack.layout) for port in ports)


def _choose_ports(stack: Stack) -> None:
    stack.state.ports = choose_ports(
        ports_set(stack.environ), stack.state.ports, lambda port: listens(port, stack.layout)
    )
    stack.save()


def _start_servers(stack: Stack, engine: Engine) -> None:
    own_postgres, own_redis = stack.postgres(), stack.redis()
    if own_postgres:
        with step("PostgreSQL data"):
            own_postgres.initialise()
    if own_redis:
        own_redis.write_config()
    programs = stack.programs(engine)
    with step("Supervisor") as details:
        stack.supervisor.configure(programs, stack.inherited())
        EngineUsers().add(stack.layout.instance, stack.supervisor.pid())
        details.append(f"{len(programs)} programs")
    stack.supervisor.start([program.name for program in programs if program.name in SERVERS])
    addresses = stack.addresses()
    with step("PostgreSQL") as details:
        postgres.wait_ready(own_postgres.admin_url if own_postgres else addresses.database, 30)
        if own_postgres:
            own_postgres.make_database()
        details.append(addresses.database.rpartition("@")[2])
    with step("Redis") as details:
        redis.wait_ready(addresses.redis, 15)
        details.append(addresses.redis.rpartition("@")[2])


def _start_application(stack: Stack, engine: Engine) -> None:
    names = [program.name for program in stack.programs(engine) if program.name not in SERVERS]
    flower_port = stack.state.ports["flower"]
    with step("API, schedulers, workers, warden, notifier, Flower") as details:
        stack.supervisor.start(names)
        _wait(stack, lambda: _api_is_ready(stack), "the API is ready", "api")
        _wait(stack, lambda: listens(flower_port, stack.layout), "Flower listens", "flower")
        _wait(stack, lambda: not _not_running(stack, names), "all programs run", "")
        details.append(f"{len(names)} programs run")


def _wait(stack: Stack, check: Callable[[], bool], what: str, log: str) -> None:
    if not poll(lambda: check() or _lost_a_port(stack), _START_TIMEOUT_S) or not check():
        raise StackError(
            f"Not within {_START_TIMEOUT_S} s: {what}.", f"make status, make logs NAME={log}"
        )


def _api_is_ready(stack: Stack) -> bool:
    # The port alone would say nothing: another stack's API answers the same questions.
    if not listens(stack.state.ports["api"], stack.layout):
        return False
    with contextlib.suppress(httpx.HTTPError):
        return _get(stack, "/readyz").status_code == 200
    return False


def _get(stack: Stack, path: str, key: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # trust_env: a proxy for the outside has no business between us and the loopback.
    return httpx.get(stack.addresses().api + path, headers=headers, timeout=10, trust_env=False)


def _not_running(stack: Stack, names: list[str]) -> list[str]:
    return [
        status.name
        for status in stack.supervisor.statuses()
        if status.name in names and status.state != "RUNNING"
    ]


def _seed(stack: Stack, action: str, **request: Any) -> dict[str, Any]:
    """Run a step of seed.py with this stack's settings; its answer."""
    environment = stack.inherited() | stack.settings()
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_project.stack.seed"],
        input=json.dumps({"action": action, **request}),
        env=environment | {"DJANGO_SETTINGS_MODULE": "scheduler_project.settings"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    if done.returncode == BAD_SETTINGS:
        raise StackError(done.stderr.strip(), "set it otherwise, or leave it out")
    if done.returncode:
        raise StackError(
            f"Setting up the database failed ({action}):\n{done.stderr[-3000:]}",
            "if the data is of another version: make reset",
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _ensure_keys(stack: Stack) -> None:
    """Keep the keys that still work, make new ones for the rest."""
    failing = [name for name in TENANTS if not _key_works(stack, name)]
    if failing:
        stack.state.api_keys |= _seed(stack, "make_keys", tenants=failing)
        stack.save()


def _key_works(stack: Stack, tenant: str) -> bool:
    key = stack.state.api_keys.get(tenant)
    return key is not None and _get(stack, "/v1/jobs?limit=1", key).status_code == 200


def _write_env_file(stack: Stack) -> None:
    addresses = stack.addresses()
    write_env_file(
        stack.layout.env_file,
        {
            "API_URL": addresses.api,
            "API_KEY": stack.state.api_keys[TENANTS[0]],
            "API_KEY_2": stack.state.api_keys[TENANTS[1]],
            "ADMIN_URL": f"{addresses.api}/admin/",
            "ADMIN_USER": ADMIN_USER,
            "ADMIN_PASSWORD": stack.state.admin_password,
            "FLOWER_URL": addresses.flower,
            "FLOWER_USER": FLOWER_USER,
            "FLOWER_PASSWORD": stack.state.flower_password,
            "DATABASE_URL": addresses.database,
            "REDIS_URL": addresses.redis,
            "DEMO_IMAGE": DEMO_IMAGE,
        },
    )
