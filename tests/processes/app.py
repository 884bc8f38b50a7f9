"""What the servers of the bench serve: apps that count each request that they answer.

The answer is the id of the process that counted it, so that what is lost can be laid at one's door.
The producer is one of the module, as in most applications: a server that loads the app before it
forks leaves it to the children.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware, WSGIMiddleware

producer = Producer.from_env()


def _pid(*ignored: object) -> str:
    return str(os.getpid())


def _page(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = _pid().encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def wsgi_handler(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Counts in its handler."""
    producer.increment("hits", _pid())
    return _page(environ, start_response)


wsgi_middleware = WSGIMiddleware(_page, producer, counter="hits", route=_pid)
"""Counted by the middleware."""


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"  # no lifespan
    body = _pid().encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def asgi_handler(scope: Any, receive: Any, send: Any) -> None:
    """Counts in its handler."""
    if scope["type"] == "http":
        producer.increment("hits", _pid())
    await _answer(scope, receive, send)


asgi_middleware = ASGIMiddleware(_answer, producer, counter="hits", route=_pid)
"""Counted by the middleware."""


def flask_handler() -> Any:
    """Flask's own app, which counts in its handler."""
    import flask  # noqa: PLC0415 (for one of the servers)

    def page() -> str:
        producer.increment("hits", _pid())
        return _pid()

    app = flask.Flask(__name__)
    app.add_url_rule("/", "page", page)
    return app


def flask_middleware() -> Any:
    """Flask's own app, counted by the helper for it."""
    import flask  # noqa: PLC0415

    from countersink.producers.integrations.flask import count_requests  # noqa: PLC0415

    app = flask.Flask(__name__)
    app.add_url_rule("/", "page", _pid)
    count_requests(app, producer, counter="hits")
    return app
