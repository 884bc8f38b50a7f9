"""Requests to ASGI apps without a server: each message of either side at a time that is chosen."""

import asyncio
from collections.abc import Iterable
from typing import Any

from countersink.producers.middleware.asgi import App, Message

REQUEST: Message = {"type": "http.request", "body": b"", "more_body": False}
DISCONNECT: Message = {"type": "http.disconnect"}
LIFESPAN: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]


def http(path: str, method: str = "GET") -> dict[str, Any]:
    """The scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"shop")],
        "server": ("shop", 80),
    }


def websocket(path: str) -> dict[str, Any]:
    """The scope of a websocket."""
    scope = {**http(path), "type": "websocket", "scheme": "ws", "subprotocols": []}
    del scope["method"]
    return scope


def sent(app: App, scope: dict[str, Any], says: Iterable[Message] = (REQUEST,)) -> list[Message]:
    """What `app` sends, and raises as it does, when the server says this and is then silent."""
    messages: list[Message] = []

    async def run() -> None:
        waiting = list(says)
        silent = asyncio.Event()

        async def receive() -> Message:
            if not waiting:
                await silent.wait()
            return waiting.pop(0)

        async def send(message: Message) -> None:
            messages.append(message)

        await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(run())
    return messages


def status(app: App, path: str, method: str = "GET") -> int:
    """The status that `app` answers with."""
    return int(sent(app, http(path, method))[0]["status"])
