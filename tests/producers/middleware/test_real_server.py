"""On uvicorn: clients that leave early, and answers that are streamed."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from countersink.producers.middleware import ROUTE, ASGIMiddleware
from countersink.producers.middleware.asgi import Receive, Scope, Send
from countersink.producers.testing import RecordingProducer

SECONDS = 60
REQUEST = b"GET /%s HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n"


class App:
    """`/slow` answers when the client is gone; `/stream` sends a piece, and another when told."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.over = asyncio.Event()
        self.more = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = scope["path"]
        self.asked.set()
        if scope["path"] == "/slow":
            while (await receive())["type"] != "http.disconnect":
                pass
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await self.more.wait()
            await send({"type": "http.response.body", "body": b"two"})
        self.over.set()


@asynccontextmanager
async def serving(app: ASGIMiddleware) -> AsyncIterator[int]:
    """Serve until the end of the block; the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="critical", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server._serve([listener]))  # without its signal handlers
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, SECONDS)


def test_a_client_that_leaves_before_the_answer_counts_as_499(producer: RecordingProducer) -> None:
    async def main() -> None:
        app = App()
        async with serving(ASGIMiddleware(app, producer)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST % b"slow")
            await asyncio.wait_for(app.asked.wait(), SECONDS)
            writer.close()
            await asyncio.wait_for(app.over.wait(), SECONDS)

    asyncio.run(main())
    producer.assert_counted("requests", {"GET /slow 499": 1})


def test_a_stream_counts_when_it_begins_and_comes_as_it_is_sent(
    producer: RecordingProducer,
) -> None:
    async def main() -> None:
        app = App()
        async with serving(ASGIMiddleware(app, producer)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST % b"stream")
            await asyncio.wait_for(reader.readuntil(b"one"), SECONDS)
            producer.assert_counted("requests", {"GET /stream 200": 1})
            app.more.set()
            assert b"two" in await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()

    asyncio.run(main())
    producer.assert_counted("requests", {"GET /stream 200": 1})
