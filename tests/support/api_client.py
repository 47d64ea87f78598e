"""Requests to the API inside the test process, through every middleware."""

import json
from typing import Any, cast

from django.http import HttpResponse
from django.test import Client

from tenants.models import Tenant
from tenants.services import apikey_issue


class Answer(HttpResponse):
    """The type of what the test client returns: a response with `json()`."""

    def json(self) -> Any:
        raise NotImplementedError("the test client puts its own in place")


class ApiClient:
    """Speaks with one key (or none); bodies are JSON unless they are bytes."""

    def __init__(self, key: str | None) -> None:
        self.key = key
        # A crash must be seen as the 500 a customer would get, not as an exception.
        self._client = Client(raise_request_exception=False)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **headers: str,
    ) -> Answer:
        """Send a request; header names are given like `If_Match="1"`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            named.setdefault("Authorization", f"Bearer {self.key}")
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        return cast(
            Answer,
            self._client.generic(method, path, data, content_type=content_type, headers=named),
        )

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.send("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.send("DELETE", path, **headers)


def client_of(tenant: Tenant, *scopes: str) -> ApiClient:
    """Return a client with a new key of `tenant` (default scopes: write)."""
    issued = apikey_issue(tenant=tenant, name="test", scopes=scopes or ["write"])
    return ApiClient(issued.text)


def assert_problem(response: HttpResponse, status: int, code: str) -> dict[str, Any]:
    """Check that the answer is a whole problem of this code; return its body."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["request_id"] == response["X-Request-Id"]
    assert body["title"]
    assert body["detail"]
    return body
