"""The examples for FastAPI, Flask and Django on real servers: totals exact, by template."""

import signal
import sys
from collections import Counter
from http.client import HTTPConnection

import pytest

from tests.producers.helpers import Queue, totals
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

ROUNDS = 4
EXAMPLES = {
    "fastapi": ("fastapi_app.py", "app", "{number}", ""),
    "flask": ("flask_app.py", "app", "<int:number>", ""),
    "django-wsgi": ("django_app.py", "application", "<int:number>", "/"),
    "django-asgi": ("django_app.py", "asgi_application", "<int:number>", "/"),
}


def port_of(child: Child) -> int:
    """Where it listens, as soon as it says so."""

    def said() -> int:
        assert child.running, child.output()
        lines = [line for line in child.output().splitlines() if line.isdigit()]
        return int(lines[0]) if lines else 0

    return eventually(said, timeout=60)


def ask(port: int, path: str, method: str = "GET") -> int:
    """The status of an answer, read to its end."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_counts_every_request(name: str, queue: Queue) -> None:
    file, app, parameter, slash = EXAMPLES[name]
    expected = {
        ("requests", f"GET /books/{parameter}{slash} 200"): ROUNDS,
        ("requests", f"GET /books/{parameter}{slash} 404"): ROUNDS,
        ("requests", "GET __unmatched__ 404"): ROUNDS,
        ("requests", f"POST /orders{slash} 201"): ROUNDS,
        ("orders", "placed"): ROUNDS,
        ("requests", f"GET /report{slash} 200"): ROUNDS,
        ("requests", f"GET /broken{slash} 500"): 3,
    }
    with Children() as children:
        child = children.start(
            [
                sys.executable,
                "-m",
                "tests.producers.middleware.run_example",
                f"docs/examples/{file}",
                app,
            ],
            environment={"COUNTERSINK_REDIS_URL": queue.url},
            name=name,
        )
        port = port_of(child)
        statuses: Counter[int] = Counter()
        for number in range(ROUNDS):
            statuses[ask(port, f"/books/{number}{slash}")] += 1
            statuses[ask(port, f"/books/{number + 1001}{slash}")] += 1
            statuses[ask(port, f"/unknown/{number}")] += 1
            statuses[ask(port, f"/orders{slash}", "POST")] += 1
            statuses[ask(port, f"/report{slash}")] += 1
        for _ in range(3):
            statuses[ask(port, f"/broken{slash}")] += 1
        assert statuses == {200: 2 * ROUNDS, 404: 2 * ROUNDS, 201: ROUNDS, 500: 3}
        child.terminate()
        assert child.wait() in (0, -signal.SIGTERM), child.output()
    assert totals(queue.client) == expected
