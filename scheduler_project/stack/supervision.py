"""The supervisor (supervisord): its configuration, and the few things we ask it to do.

Owns the rule that its configuration says everything about a program, environment included, so
that a second `make up` restarts exactly the programs for which something has changed.
"""

import contextlib
import os
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport

from scheduler_project.stack.errors import StackError
from scheduler_project.stack.layout import CHECKOUT, MARKER, Layout
from scheduler_project.stack.programs import Program
from scheduler_project.stack.state import write_private
from scheduler_project.stack.waiting import poll


def render(layout: Layout, programs: list[Program]) -> str:
    """Return supervisord.conf for these programs."""
    sections = [
        "[supervisord]",
        f"pidfile={_quote(layout.local / 'supervisord.pid')}",
        f"logfile={_quote(layout.logs / 'supervisord.log')}",
        f"childlogdir={_quote(layout.logs)}",
        f"directory={_quote(CHECKOUT)}",
        # Said on purpose: else it warns of running as root.
        *(["user=root"] if os.geteuid() == 0 else []),
        "[unix_http_server]",
        f"file={_quote(layout.supervisor_socket)}",
        "chmod=0600",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for program in programs:
        sections += _program_section(layout, program)
    return "\n".join(sections) + "\n"


def _program_section(layout: Layout, program: Program) -> list[str]:
    environment = ",".join(
        f'{name}="{_checked(name, value)}"' for name, value in sorted(program.environment.items())
    )
    return [
        f"[program:{program.name}]",
        f"command={' '.join(_quoted_word(word) for word in program.command)}",
        f"directory={_quote(CHECKOUT)}",
        f"environment={environment}",
        f"priority={program.order}",
        # `up` starts each when what it needs is there: migrations stand between the database and
        # the rest.
        "autostart=false",
        "autorestart=true",
        "startsecs=2",
        # Longer than a port or a shared memory block of a killed predecessor stays taken.
        "startretries=20",
        f"stopsignal={program.stop_signal}",
        f"stopwaitsecs={program.stop_wait_s}",
        f"stopasgroup={str(program.stop_as_group).lower()}",
        "killasgroup=true",
        "redirect_stderr=true",
        f"stdout_logfile={_quote(layout.logs / (program.name + '.log'))}",
        "stdout_logfile_maxbytes=10MB",
        "stdout_logfile_backups=2",
    ]


def _quote(value: object) -> str:
    # A percent sign starts an expansion in this file, also in values that nobody expands.
    return str(value).replace("%", "%%")


def _quoted_word(word: str) -> str:
    return "'" + _checked("command", word).replace("'", "'\"'\"'") + "'"


def _checked(name: str, value: str) -> str:
    if '"' in value or "\n" in value:
        raise StackError(f"{name} holds a quote or a line break: {value!r}.", "leave them out")
    return _quote(value)


@dataclass(frozen=True)
class ProgramStatus:
    """What supervisor says of a program: `state` is RUNNING, STARTING, BACKOFF, FATAL, …"""

    name: str
    state: str
    pid: int
    detail: str


class Supervisor:
    """One stack's supervisord, reached by its socket."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.config = layout.local / "supervisord.conf"

    @contextlib.contextmanager
    def _rpc(self) -> Iterator[Any]:
        transport = SupervisorTransport(
            None, None, serverurl=f"unix://{self.layout.supervisor_socket}"
        )
        try:
            yield xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor
        finally:
            transport.close()

    def pid(self) -> int | None:
        """The daemon's process, or None when none answers."""
        try:
            with self._rpc() as rpc:
                return int(rpc.getPID())
        except (OSError, xmlrpc.client.Error, ValueError):
            return None

    def configure(self, programs: list[Program], environment: dict[str, str]) -> None:
        """Make these the programs there are. What has changed or gone is stopped, the rest runs on.

        `environment` is the daemon's own, used when none runs yet.
        """
        write_private(self.config, render(self.layout, programs))
        if self.pid() is None:
            self._launch(environment)
            return
        with self._rpc() as rpc:
            added, changed, removed = rpc.reloadConfig()[0]
            self.stop([*changed, *removed])
            for name in [*changed, *removed]:
                rpc.removeProcessGroup(name)
            for name in [*added, *changed]:
                rpc.addProcessGroup(name)

    def _launch(self, environment: dict[str, str]) -> None:
        self.layout.supervisor_socket.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.config)],
            env={**environment, MARKER: str(self.layout.local)},
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode or not poll(self.pid, 15):
            raise StackError(
                f"supervisord did not start:\n{done.stdout}{done.stderr}",
                f"see {self.layout.logs / 'supervisord.log'}",
            )

    def start(self, names: list[str]) -> None:
        """Start those that do not run, in the order given, without waiting for any."""
        with self._rpc() as rpc:
            for name in names:
                # It runs already, or is being started again after it died.
                with contextlib.suppress(xmlrpc.client.Fault):
                    rpc.startProcess(name, False)

    def statuses(self) -> list[ProgramStatus]:
        """Every program, in the order in which they start."""
        with self._rpc() as rpc:
            return [
                ProgramStatus(info["name"], info["statename"], info["pid"], info["description"])
                for info in rpc.getAllProcessInfo()
            ]

    def stop(self, names: list[str], timeout_s: float = 60) -> None:
        """Ask all of them at once to stop, and wait; supervisor kills those that do not."""
        with self._rpc() as rpc:
            for name in names:
                with contextlib.suppress(xmlrpc.client.Fault):
                    rpc.stopProcess(name, False)
        stopped = {"STOPPED", "EXITED", "FATAL", "UNKNOWN"}
        poll(lambda: all(s.state in stopped for s in self.statuses() if s.name in names), timeout_s)

    def shutdown(self, servers: list[str]) -> None:
        """Stop everything, the `servers` last, and the daemon itself."""
        names = [status.name for status in self.statuses()]
        self.stop([name for name in names if name not in servers])
        self.stop(servers)
        daemon = self.pid()
        with self._rpc() as rpc:
            rpc.shutdown()
        if daemon is not None:
            poll(lambda: not psutil.pid_exists(daemon), 30)
