"""How the OpenAPI document describes our keys; imported when the app is ready."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The security scheme `apiKey` of every operation that needs a key."""

    target_class = "tenants.api.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "sk_<prefix>_<secret>",
            "description": "An API key with the scope read, write (includes read) or admin "
            "(includes write).",
        }
