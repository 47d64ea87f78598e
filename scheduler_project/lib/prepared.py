"""Hot statements planned once a connection, not once a request.

Django's own cursors put values into the text, so every statement is new to PostgreSQL; planning it
often costs more than its work. A statement executed here for the fifth time on a connection is
prepared (settings: `prepare_threshold`), and from then on only its values are sent.

For statements whose text is constant and whose best plan doesn't depend on the values. A pooler
between us and PostgreSQL must know prepared statements (PgBouncer from 1.21 on).
"""

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.utils import CursorWrapper


def prepared_cursor() -> CursorWrapper:
    """Return a cursor of the default connection; to be closed like any other (`with`).

    The server reads the values as they are typed: a parameter must stand where PostgreSQL knows
    its type, or have a cast.
    """
    # Itself, not Django's stand-in for it, which looks it up anew for each attribute.
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.queries_logged:
        # A log would show placeholders, or nothing for what is prepared already.
        return connection.cursor()
    # As `connection.cursor()` begins: the connection of a former request may be dead by now.
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        # The stubs know neither.
        plain = ServerBindingCursor(connection.connection)  # type: ignore[call-arg]
        cursor: CursorWrapper = connection._prepare_cursor(plain)  # type: ignore[attr-defined]
    return cursor
