"""Query parameters of lists of runs, read strictly; what is wrong is refused by the name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.instants import parse_instant
from scheduler_project.lib.problems import invalid


def one_of(view: ApiView, name: str, known: Sequence[str]) -> str | None:
    """The parameter, None when it is not given; Problem unless it is one of the known."""
    text = view.query.get(name)
    if text is not None and text not in known:
        raise invalid(name, "invalid_choice", f"This must be one of {', '.join(known)}.")
    return text


def instant_of(view: ApiView, name: str) -> datetime | None:
    """The parameter as an instant, None when it is not given."""
    text = view.query.get(name)
    if text is None:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise invalid(
            name, "invalid_instant", str(error), "2027-03-01T15:00:00Z; a + in a query is %2B"
        ) from None


def id_of(view: ApiView, name: str) -> UUID | None:
    """The parameter as an id, None when it is not given."""
    text = view.query.get(name)
    if text is None:
        return None
    try:
        value = UUID(text)
    except ValueError:
        value = None
    # UUID() also takes braces, "urn:uuid:" and no dashes; an id has one spelling.
    if value is None or str(value) != text.lower():
        raise invalid(name, "invalid_uuid", "This must be a UUID with dashes.")
    return value
