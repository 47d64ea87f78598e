"""A migrated database with two tenants and their keys, made once and copied for each stack.

Copying takes a fraction of a second; migrating for every test would take several.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scheduler_project.stack.layout import CHECKOUT
from tests.support.servers import start_postgres
from tests.support.services import test_settings

TENANTS = ["Acme", "Globex"]


@dataclass(frozen=True)
class Template:
    """`directory` holds the data of a stopped server; `keys` are by tenant, with all scopes."""

    directory: Path
    keys: dict[str, str]

    def copy_to(self, directory: Path) -> None:
        """Give `directory` a database of its own."""
        command = ["cp", "-a", "--reflink=auto", str(self.directory / "postgres"), str(directory)]
        subprocess.run(command, check=True)


def make_template(directory: Path, marker: Path) -> Template:
    """Build the template in `directory`, by the same steps as `make up`."""
    directory.mkdir(parents=True, mode=0o711)
    server = start_postgres(directory, marker)
    try:
        environment = test_settings(directory, server.url, "redis://127.0.0.1:1/0")
        _seed(environment, action="prepare", admin_password="only-for-tests", tenants=TENANTS)
        keys = _seed(environment, action="make_keys", tenants=TENANTS)
    finally:
        server.stop()
    return Template(directory, keys)


def _seed(environment: dict[str, str], **request: object) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_project.stack.seed"],
        input=json.dumps(request),
        env={
            "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            **environment,
        },
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer
