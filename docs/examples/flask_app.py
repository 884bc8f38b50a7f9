"""Flask: every request counted by its URL rule and status.

    COUNTERSINK_REDIS_URL=redis://localhost:6379/0 flask --app docs/examples/flask_app.py run

Then `countersink totals requests --by key` shows `GET /books/<int:number> 200` and the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask, Response, abort

from countersink.producers import Producer
from countersink.producers.integrations.flask import count_requests

producer = Producer.from_env()

app = Flask(__name__)
count_requests(app, producer)


@app.get("/books/<int:number>")
def book(number: int) -> dict[str, int]:
    """A book, of which there are 1,000."""
    if number > 1_000:
        abort(404)
    return {"book": number}


@app.post("/orders")
def order() -> tuple[dict[str, str], int]:
    """An order: counted as such, too."""
    producer.increment("orders", "placed")
    return {"order": "placed"}, 201


@app.get("/report")
def report() -> Response:
    """An answer in pieces."""

    def lines() -> Iterator[str]:
        for number in range(3):
            yield f"line {number}\n"

    return Response(lines(), mimetype="text/plain")


@app.get("/broken")
def broken() -> None:
    """A mistake: 500."""
    raise RuntimeError("this page is broken")
