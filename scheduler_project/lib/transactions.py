"""One transaction from the outermost door to the innermost service, without savepoints.

Owns the rule that an error of an inner part undoes the whole: nobody in between may swallow it and
go on. So two round trips are saved for each part that a savepoint would have guarded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.db import transaction

_is_open: ContextVar[bool] = ContextVar("_is_open", default=False)


@contextmanager
def one_transaction() -> Iterator[None]:
    """Be a transaction, or a part of the one that an outer `one_transaction` has begun.

    Inside a plain `transaction.atomic()` it is a savepoint, like any other.
    """
    if _is_open.get():
        with transaction.atomic(savepoint=False):
            yield
        return
    token = _is_open.set(True)
    try:
        with transaction.atomic():
            yield
    finally:
        _is_open.reset(token)
