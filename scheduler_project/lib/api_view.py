"""The base of every API view; its rule: what all routes share is checked in one place, in order.

Method (405), form of the answer (406), key (401), scope (403), rate (429), query (400), and then
the view's own work.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.views import APIView

from scheduler_project.lib.problems import Problem
from scheduler_project.lib.query import read_query


class ApiView(APIView):
    """A view with strict methods and query parameters.

    `query_names` gives, by method, the parameters it takes (the rest are refused), `repeatable`
    those that may come more than once; `rate_classes` the class of call where it is not just
    read or write; `required_scope` a scope other than the method's.
    """

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    query_names: ClassVar[Mapping[str, Collection[str]]] = {}
    repeatable: ClassVar[Collection[str]] = ()
    rate_classes: ClassVar[Mapping[str, str]] = {}
    required_scope: ClassVar[str | None] = None

    # The query, checked, once `initial` has passed.
    query: QueryDict

    def initial(self, request: Request, *args: Any, **options: Any) -> None:
        # First of all: a method that doesn't exist is no question of keys and scopes.
        if request.method not in self.allowed_methods:
            allowed = ", ".join(self.allowed_methods)
            raise Problem("method_not_allowed", headers={"Allow": allowed})
        super().initial(request, *args, **options)
        method = "GET" if request.method == "HEAD" else request.method
        names = self.query_names.get(method or "", ())
        self.query = read_query(request, names, self.repeatable)
