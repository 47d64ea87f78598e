"""The OpenAPI document: whole, with an example of everything, and true to the views."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.staticfiles import finders

from scheduler_project.lib.problem_catalogue import PROBLEMS
from scheduler_project.pages import openapi_document
from tests.api.test_walk_routes import ROUTES
from tests.support.api_client import ApiClient

METHODS = ("get", "post", "put", "patch", "delete")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi_document()["paths"].items():
        for method, described in methods.items():
            yield path, method, described


def as_documented(path: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)


EVERY_OPERATION = pytest.mark.parametrize(
    ("path", "method", "described"),
    [pytest.param(*facts, id=f"{facts[1].upper()} {facts[0]}") for facts in operations()],
)


def test_the_document_is_served_without_a_key_and_may_be_cached(db: None) -> None:
    answer = ApiClient(None).get("/v1/openapi.json")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/json"
    document = answer.json()
    assert document == json.loads(json.dumps(openapi_document()))
    assert document["openapi"].startswith("3.1")
    assert answer["Cache-Control"] == "public, max-age=60"


def test_every_operation_of_the_routes_is_described_and_no_other() -> None:
    routed = {
        (as_documented(route.path), method.lower())
        for route in ROUTES
        for method in route.methods - {"HEAD"}
        if route.needs_key
    }
    assert {(path, method) for path, method, _ in operations()} == routed


@EVERY_OPERATION
def test_an_operation_has_a_summary_an_id_and_a_good_answer_with_an_example(
    path: str, method: str, described: dict[str, Any]
) -> None:
    assert described["summary"]
    assert described["operationId"]
    good = {s: a for s, a in described["responses"].items() if s.startswith("2")}
    assert len(good) == 1
    ((status, answer),) = good.items()
    if status == "204":
        assert "content" not in answer
        return
    content = answer["content"]["application/json"]
    assert content["schema"]
    assert content["examples"]


@EVERY_OPERATION
def test_a_body_is_json_and_has_an_example(
    path: str, method: str, described: dict[str, Any]
) -> None:
    if "requestBody" in described:
        assert list(described["requestBody"]["content"]) == ["application/json"]
        content = described["requestBody"]["content"]["application/json"]
        assert content["examples"]
    else:
        assert method in ("get", "delete") or path.endswith(("/runs", "/cancel", "{run_id}/replay"))


@EVERY_OPERATION
def test_every_problem_of_an_operation_has_an_example_that_exists(
    path: str, method: str, described: dict[str, Any]
) -> None:
    examples = openapi_document()["components"]["examples"]
    bad = {s: a for s, a in described["responses"].items() if s[0] in "45"}
    assert {"400", "401", "403", "406", "429", "500", "503"} <= set(bad)
    assert ("404" in bad) == ("{" in path) or path == "/v1/runs"
    for status, answer in bad.items():
        content = answer["content"]["application/problem+json"]
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
        for code, example in content["examples"].items():
            assert example == {"$ref": f"#/components/examples/{code}"}
            assert str(examples[code]["value"]["status"]) == status


@EVERY_OPERATION
def test_the_parameters_of_the_document_are_those_of_the_view(
    path: str, method: str, described: dict[str, Any]
) -> None:
    (view,) = [route.view for route in ROUTES if as_documented(route.path) == path]
    documented = {p["name"] for p in described.get("parameters", ()) if p["in"] == "query"}
    assert documented == set(view.query_names.get(method.upper(), ()))


def test_every_problem_has_an_example_of_its_own() -> None:
    examples = openapi_document()["components"]["examples"]
    assert set(examples) == set(PROBLEMS)
    for code, example in examples.items():
        assert example["value"]["code"] == code
        assert example["value"]["status"] == PROBLEMS[code].status


def test_operations_are_told_apart_by_their_ids() -> None:
    ids = [described["operationId"] for _, _, described in operations()]
    assert len(ids) == len(set(ids))


def test_every_reference_leads_somewhere() -> None:
    document = openapi_document()

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for child in value.values():
                yield from references(child)
        elif isinstance(value, list):
            for child in value:
                yield from references(child)

    for reference in set(references(document)):
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        assert target


def test_a_key_is_described_as_a_bearer_token() -> None:
    (scheme,) = openapi_document()["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert all(described["security"] == [{"apiKey": []}] for _, _, described in operations())


def test_input_objects_refuse_what_they_do_not_know_in_the_document_too() -> None:
    schemas = openapi_document()["components"]["schemas"]
    inputs = [name for name in schemas if "Input" in name]
    assert inputs
    assert all(schemas[name]["additionalProperties"] is False for name in inputs)


def test_the_docs_page_loads_nothing_from_elsewhere(db: None) -> None:
    answer = ApiClient(None).get("/docs", Accept="text/html")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "/v1/openapi.json" in page
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assets = re.findall(r'["\'](/static/[^"\']+)["\']', page)
    assert assets
    assert all(finders.find(asset.removeprefix("/static/")) for asset in assets)
