"""What apps may rely on: names, arguments, and that an import brings no framework."""

import inspect

import countersink.producers.middleware
from countersink.producers.middleware import ROUTE, UNMATCHED, ASGIMiddleware, WSGIMiddleware
from tests.producers.helpers import imported


def test_public_names_are_pinned() -> None:
    assert countersink.producers.middleware.__all__ == [
        "ROUTE",
        "UNMATCHED",
        "ASGIMiddleware",
        "WSGIMiddleware",
    ]
    assert (ROUTE, UNMATCHED) == ("countersink.route", "__unmatched__")


def test_arguments_are_pinned() -> None:
    def arguments(kind: type) -> list[str]:
        return list(inspect.signature(kind).parameters)

    assert arguments(WSGIMiddleware) == [
        *("app", "producer", "counter", "route", "max_routes", "dimensions", "visitors"),
    ]
    assert arguments(ASGIMiddleware) == [
        *("app", "producer", "counter", "route", "websockets", "max_routes", "dimensions"),
        "visitors",
    ]


def test_import_brings_no_framework_and_no_event_loop() -> None:
    assert imported("countersink.producers.middleware", after="countersink.producers") == set()
