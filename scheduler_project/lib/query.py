"""Query parameters; its rule: an unknown or repeated one is refused, so that no filter is lost.

A misspelt filter that was ignored would answer with rows nobody asked for.
"""

import re
from collections.abc import Collection
from typing import Final

from django.http import QueryDict
from rest_framework.request import Request

from scheduler_project.lib.fields import MOST_UNKNOWN_TOLD, nearest
from scheduler_project.lib.problems import FieldProblem, invalid_fields

MAX_VALUE_LENGTH: Final = 1_024
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def read_query(
    request: Request, names: Collection[str], repeatable: Collection[str] = ()
) -> QueryDict:
    """Return the query, which has only `names` (once each) and `repeatable` (`getlist`).

    Raises Problem invalid_request that names every parameter that is unknown, given twice, too
    long, or holds control characters.
    """
    query = request._request.GET
    known = {*names, *repeatable}
    errors: list[FieldProblem] = []
    for name, values in query.lists():
        shown = _CONTROL.sub("?", name[:100])
        if name not in known:
            if len(errors) >= MOST_UNKNOWN_TOLD:
                continue
            hint = nearest(name, known) if known else "This address takes no parameters."
            errors.append(FieldProblem(shown, "unknown_field", "No such query parameter.", hint))
        elif len(values) > 1 and name not in repeatable:
            errors.append(FieldProblem(shown, "repeated", "The parameter is given twice."))
        elif any(_CONTROL.search(value) for value in values):
            errors.append(
                FieldProblem(shown, "invalid_character", "The value holds a control character.")
            )
        elif any(len(value) > MAX_VALUE_LENGTH for value in values):
            errors.append(
                FieldProblem(shown, "too_long", f"At most {MAX_VALUE_LENGTH} characters.")
            )
    if errors:
        raise invalid_fields(errors)
    return query
