"""What a key may do here: read for reading, write for the rest, or what the view names."""

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from scheduler_project.lib.problems import Problem
from tenants.domain import scope
from tenants.models import ApiKey

if TYPE_CHECKING:  # the framework imports this module while it builds APIView
    from rest_framework.views import APIView

_READING = {"GET", "HEAD", "OPTIONS"}


class HasScope(BasePermission):
    """Let a key pass that has the scope of this call; `required_scope` on the view overrides.

    Raises Problem authentication_required (401) without a key, insufficient_scope (403) else.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not isinstance(request.auth, ApiKey):
            raise Problem("authentication_required")
        needed = needed_scope(request.method or "", view)
        if not scope.allows(request.auth.scopes, needed):
            raise Problem(
                "insufficient_scope",
                f"This needs the scope {needed}; the key has {', '.join(request.auth.scopes)}.",
            )
        return True


def needed_scope(method: str, view: object) -> str:
    """Return the scope that calling `view` with `method` needs."""
    named: str | None = getattr(view, "required_scope", None)
    return named or (scope.READ if method in _READING else scope.WRITE)
