"""What a stack remembers between two `make up`: its secrets, its ports, its API keys.

Owns the rule that a secret is made once, at random, and is readable by its owner alone.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path


def _random_secret() -> str:
    # Letters, digits, - and _ only: it stands in URLs and in supervisor's configuration as it is.
    return secrets.token_urlsafe(18)


@dataclass
class State:
    """Saved as JSON. `ports` is by service name, `api_keys` by tenant name."""

    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(64))
    postgres_password: str = field(default_factory=_random_secret)
    redis_password: str = field(default_factory=_random_secret)
    admin_password: str = field(default_factory=_random_secret)
    flower_password: str = field(default_factory=_random_secret)
    ports: dict[str, int] = field(default_factory=dict)
    api_keys: dict[str, str] = field(default_factory=dict)


def load_state(path: Path) -> State:
    """Return the saved state, or a new one where there is none; new ones are saved at once.

    Saved before first use: a database initialised with a password that a killed process took
    with it could never be opened again.
    """
    if path.exists():
        return State(**json.loads(path.read_text()))
    state = State()
    save_state(path, state)
    return state


def save_state(path: Path, state: State) -> None:
    """Replace the file whole."""
    write_private(path, json.dumps(asdict(state), indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner alone from the first byte on."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
