"""Fill a stack's database: tables, static files, an administrator, the demo tenants, their keys.

A child process with the settings in its environment runs it, once for all of these: starting
Django costs more than the work. Reads a request as JSON from standard input, answers in JSON.
"""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from scheduler_project.lib.env import SettingError

ADMIN_USER = "admin"
# The exit code that says: a setting is wrong, and standard error holds the sentence about it.
BAD_SETTINGS = 3


def prepare(admin_password: str, tenants: list[str]) -> dict[str, Any]:
    """Migrate, collect static files, make the administrator and the tenants that are missing."""
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    _ensure_admin(admin_password)
    for name in tenants:
        call_command("tenant_create", "--name", name, "--if-missing", stdout=io.StringIO())
    return {}


def _ensure_admin(password: str) -> None:
    from django.contrib.auth import get_user_model

    user, _ = get_user_model().objects.get_or_create(
        username=ADMIN_USER, defaults={"is_staff": True, "is_superuser": True}
    )
    # The stack's file says how to log in, and it tells the truth.
    if not user.check_password(password):
        user.set_password(password)
        user.save(update_fields=["password"])


def make_keys(tenants: list[str]) -> dict[str, str]:
    """Make a new key with all scopes for each tenant; returns them by tenant name."""
    keys = {}
    for name in tenants:
        output = io.StringIO()
        words = ["--tenant", name, "--name", "make up", "--scopes", "admin", "--json"]
        call_command("apikey_create", *words, stdout=output)
        keys[name] = json.loads(output.getvalue())["key"]
    return keys


def check_settings() -> dict[str, Any]:
    """Nothing more: whoever gets here has read the settings and found them sound."""
    return {}


def _set_up() -> None:
    """Start Django; settings that are wrong end the process with a sentence, not a traceback."""
    try:
        django.setup()
        # Reads the settings, as they are imported with the checks.
        from scheduler_project.checks import refuse_unsound_start

        refuse_unsound_start()
    except (SettingError, ImproperlyConfigured) as error:
        print(error, file=sys.stderr)
        sys.exit(BAD_SETTINGS)


if __name__ == "__main__":
    _set_up()
    request = json.load(sys.stdin)
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "check_settings": check_settings,
        "prepare": prepare,
        "make_keys": make_keys,
    }
    answer = actions[request.pop("action")](**request)
    json.dump(answer, sys.stdout)
