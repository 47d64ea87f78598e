"""An output serializer's work by plain calls; its rule: it shows what the serializer would show.

The serializer stays the one description of the answer, for the code and for the OpenAPI document.
Its own `to_representation` looks every field's way up anew for each object, which costs several
times the work itself.
"""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

from rest_framework import serializers

from scheduler_project.lib.fields import InstantField
from scheduler_project.lib.instants import format_instant

Show = Callable[[Any], Any]


def plain_output(serializer: serializers.Serializer[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return what shows an object as `serializer` does, JSON-ready; put together once.

    The object has the sources as attributes (methods are called); a nested object is a mapping.
    Values are taken to have their field's type already, as rows and dataclasses do.
    """
    shows = [
        (name, _from_attributes(serializer, field)) for name, field in serializer.fields.items()
    ]
    return lambda shown: {name: show(shown) for name, show in shows}


def _from_attributes(serializer: serializers.Serializer[Any], field: Any) -> Show:
    if isinstance(field, serializers.SerializerMethodField):
        method: Show = getattr(serializer, field.method_name or "")
        return method
    return _then(attrgetter(".".join(field.source_attrs)), _formatter(field))


def _formatter(field: Any) -> Show:
    match field:
        case InstantField():
            return format_instant
        case serializers.UUIDField():
            return str
        case serializers.FloatField():
            return float
        case serializers.Serializer():
            members = [
                (name, _then(itemgetter(name), _formatter(member)))
                for name, member in field.fields.items()
            ]
            return lambda mapping: {name: show(mapping) for name, show in members}
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _then(get: Show, show: Show) -> Show:
    def shown(of: Any) -> Any:
        value = get(of)
        if callable(value):
            value = value()
        return None if value is None else show(value)

    return shown
