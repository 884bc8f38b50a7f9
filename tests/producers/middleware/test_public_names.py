"""What apps may rely on: names, arguments, and that an import brings no framework."""

import inspect
import subprocess
import sys

import countersink.producers.middleware
from countersink.producers.middleware import ROUTE, UNMATCHED, ASGIMiddleware, WSGIMiddleware
from tests.support.processes import child_environment


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
    script = (
        "import sys, countersink.producers; before = set(sys.modules);"
        "import countersink.producers.middleware;"
        "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    new = ran.stdout.split()
    assert "countersink.producers.middleware.wsgi" in new
    assert {name for name in new if not name.startswith("countersink")} == set()
