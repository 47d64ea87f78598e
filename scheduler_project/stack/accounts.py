"""Which account a database server runs as: our own, or an unprivileged one when we are root.

Owns the rule that PostgreSQL never runs as root (it refuses to), without opening the directories
above a checkout to everybody.
"""

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scheduler_project.stack.errors import StackError

_ACCOUNT_NAME = "scheduler-postgres"


@dataclass(frozen=True)
class Account:
    """Numbers of a system account."""

    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account to drop to, made when it is missing; None when we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_ACCOUNT_NAME)
    except KeyError:
        _create_account()
        entry = pwd.getpwnam(_ACCOUNT_NAME)
    return Account(entry.pw_uid, entry.pw_gid)


def _create_account() -> None:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir=/nonexistent"]
    made = subprocess.run(
        [*command, "--shell=/usr/sbin/nologin", _ACCOUNT_NAME], capture_output=True, text=True
    )
    # 9: another stack made it in the meantime.
    if made.returncode not in (0, 9):
        raise StackError(
            f"Cannot make the account {_ACCOUNT_NAME} for PostgreSQL: {made.stderr.strip()}",
            "run as another user than root, or set DATABASE_URL to a server of your own",
        )


def as_account(
    account: Account | None, paths: list[Path], *, dies_with_parent: bool = False
) -> list[str]:
    """Return the words to put before a command so that it runs as `account` and reaches `paths`.

    `dies_with_parent`: the kernel kills it when the thread that started it ends.

    A checkout below a directory that is closed to others (/root, mktemp -d) stays closed: the
    command gets the one capability to pass through and read, nobody else gets anything.
    """
    if account is None and not dies_with_parent:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "setpriv is missing, without which PostgreSQL cannot run as root.",
            "install util-linux, or set DATABASE_URL to a server of your own",
        )
    words = [setpriv]
    if account is not None:
        words += [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
        if not all(_passable(path) for path in paths):
            # The bit: access(2), by which PostgreSQL looks for its own programs, would else leave
            # the capability out of account.
            words += [
                "--securebits=+no_setuid_fixup",
                "--inh-caps=+dac_read_search",
                "--ambient-caps=+dac_read_search",
            ]
    if dies_with_parent:
        words += ["--pdeathsig=KILL"]
    return [*words, "--"]


def _passable(path: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
