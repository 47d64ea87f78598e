"""How often a key may call; its rule: each key has its own allowance per class of call."""

import math
from typing import TYPE_CHECKING

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from scheduler_project.lib.problems import Problem
from scheduler_project.lib.rate_limit import Rate, limiter
from tenants.models import ApiKey

if TYPE_CHECKING:  # the framework imports this module while it builds APIView
    from rest_framework.views import APIView

_READING = {"GET", "HEAD"}


class KeyThrottle(BaseThrottle):
    """Raises Problem rate_limited (429, Retry-After); tells every caller the RateLimit headers."""

    def allow_request(self, request: Request, view: "APIView") -> bool:
        if not isinstance(request.auth, ApiKey):
            return True
        rate = rate_of(class_of_call(request.method or "", view))
        headers = {"RateLimit-Policy": rate.policy()}
        decision = limiter().take(str(request.auth.api_key_id), rate)
        if decision is not None:
            headers["RateLimit"] = decision.limit(rate)
        # The middleware adds them, to problems too.
        request._request.rate_limit_headers = headers  # type: ignore[attr-defined]
        if decision is None or decision.allowed:
            return True
        seconds = max(1, math.ceil(decision.retry_after_s))
        raise Problem(
            "rate_limited",
            f"At most {rate.per_s:g} {rate.name} calls a second, {rate.burst} at once.",
            headers={"Retry-After": str(seconds)},
        )


def class_of_call(method: str, view: object) -> str:
    """Return the class whose rate applies: the view's own for this method, else read or write."""
    named: str | None = getattr(view, "rate_classes", {}).get(method)
    return named or ("read" if method in _READING else "write")


def rate_of(name: str) -> Rate:
    """Return the rate of a class of call, from RATE_LIMITS."""
    per_s, burst = settings.RATE_LIMITS[name]
    return Rate(name, per_s, burst)
