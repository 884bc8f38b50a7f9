"""The OpenAPI document: all routes are in it, it is whole, and it is true."""

import json
import re
from typing import Any

import jsonschema
import requests

from countersink.web.app import ROUTES
from countersink.web.http.openapi import document
from tests.web.serving import Web

DOCUMENT = json.loads(json.dumps(document(ROUTES)))
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def references(value: Any) -> list[str]:
    """All ``$ref`` below ``value``."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in references(each)]
    if isinstance(value, list):
        return [ref for each in value for ref in references(each)]
    return []


def test_every_door_is_in_it_but_the_pages() -> None:
    shown = {
        (route.method.lower(), route.path.replace(":path", ""))
        for route in ROUTES
        if not route.hidden
    }
    assert {(method, path) for path, method, _ in OPERATIONS} == shown
    assert all(not path.startswith("/v1") for path in [d.path for d in ROUTES if d.hidden])


def test_references_lead_somewhere() -> None:
    for reference in references(DOCUMENT):
        found: Any = DOCUMENT
        for word in reference.removeprefix("#/").split("/"):
            found = found[word]
        assert found


def test_names_of_operations_are_different() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_operation_is_whole() -> None:
    for path, method, operation in OPERATIONS:
        assert operation["summary"], (method, path)
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
        for parameter in operation["parameters"]:
            jsonschema.Draft202012Validator.check_schema(parameter["schema"])
        statuses = operation["responses"]
        assert any(status.startswith("2") for status in statuses)
        assert {"400", "408", "421", "429", "431", "500", "503"} <= statuses.keys()
        assert (not operation["security"]) or {"401", "403"} <= statuses.keys()
        assert ("requestBody" not in operation) or {"413", "415"} <= statuses.keys()
        for response in statuses.values():
            assert "$ref" in response or response["description"]
            for content in response.get("content", {}).values():
                jsonschema.Draft202012Validator.check_schema(content["schema"])


def test_it_is_served_to_everybody_and_says_whether_a_key_is_needed(
    opened: Web, guarded: Web
) -> None:
    def served(web: Web) -> Any:
        answer = requests.get(f"{web.url}/openapi.json", timeout=20)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json"
        return answer.json()

    with opened.beside(routes=ROUTES) as web:
        document = served(web)
        assert {} in document["paths"]["/v1/increments"]["post"]["security"]
    with guarded.beside(routes=ROUTES) as web:
        assert {} not in served(web)["paths"]["/v1/increments"]["post"]["security"]
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {*DOCUMENT["paths"], "/openapi.json"}
