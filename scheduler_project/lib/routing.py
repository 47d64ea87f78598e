"""One class per operation, one address for several; its rule: an address answers 405 with Allow."""

from collections.abc import Callable
from typing import Any

from django.http.response import HttpResponseBase

from scheduler_project.lib.api_view import ApiView


def resource(*operations: type[ApiView]) -> Callable[..., HttpResponseBase]:
    """Return the view of an address whose methods are those of several operation classes.

    Each class defines its own method only; what they say by method (`query_names`,
    `rate_classes`) is put together.
    """
    members: dict[str, Any] = {
        "query_names": {m: v for view in operations for m, v in view.query_names.items()},
        "rate_classes": {m: v for view in operations for m, v in view.rate_classes.items()},
        "repeatable": {name for view in operations for name in view.repeatable},
        "__doc__": operations[0].__doc__,
    }
    name = "".join(view.__name__ for view in operations)
    merged: type[ApiView] = type(name, operations, members)
    return merged.as_view()
