"""How the OpenAPI document shows our strict fields; importing it registers them."""

from collections.abc import Callable
from typing import Any, Final

from drf_spectacular.extensions import OpenApiSerializerExtension, OpenApiSerializerFieldExtension

from scheduler_project.lib import fields


class StrictObject(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = "scheduler_project.lib.fields.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        schema["additionalProperties"] = False
        return schema


class StrictField(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Shows the bounds of our own fields, which the library can't know."""

    target_class = "rest_framework.fields.Field"
    match_subclasses = True

    @classmethod
    def _matches(cls, target: Any) -> bool:
        return isinstance(target, tuple(_SCHEMAS))

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        make = next(make for kind, make in _SCHEMAS.items() if isinstance(self.target, kind))
        return make(self.target)


_SCHEMAS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    fields.TextField: lambda f: {
        "type": "string",
        "minLength": max(f.shortest, 0 if f.allow_blank else 1),
        "maxLength": f.longest,
    },
    fields.WholeNumberField: lambda f: {"type": "integer", "minimum": f.low, "maximum": f.high},
    fields.NumberField: lambda f: {"type": "number", "minimum": f.low, "maximum": f.high},
    fields.FlagField: lambda f: {"type": "boolean"},
    fields.OneOfField: lambda f: {"type": "string", "enum": [str(c) for c in f.choices]},
    fields.InstantField: lambda f: {"type": "string", "format": "date-time"},
    fields.IdField: lambda f: {"type": "string", "format": "uuid"},
}
