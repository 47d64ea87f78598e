"""Loads hot SQL statements from files, each under its name: one home for every contended query.

A file holds statements that begin with a line `-- name: claim_due_cursors`; the comment lines
after it say purpose, guard and index. Parameters are psycopg's `%(name)s`.
"""

import re
from pathlib import Path

_NAME = re.compile(r"^-- name: (?P<name>[a-z_]+)\s*$", re.MULTILINE)


def load_named_sql(directory: Path) -> dict[str, str]:
    """Return every statement of the directory's *.sql files by name.

    Raises ValueError when a name is used twice or text stands before the first name.
    """
    statements: dict[str, str] = {}
    for path in sorted(directory.glob("*.sql")):
        before, *parts = _NAME.split(path.read_text(encoding="utf-8"))
        if before.strip() and not all(
            line.startswith("--") for line in before.splitlines() if line.strip()
        ):
            raise ValueError(f"{path.name}: a statement stands before the first name")
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in statements:
                raise ValueError(f"{path.name}: the name {name} is used twice")
            statements[name] = body.strip().rstrip(";")
    return statements
