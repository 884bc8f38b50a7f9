"""ASGI: what was counted is stored before the server is told that the app has shut down."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware
from countersink.producers.middleware.asgi import Message, Receive, Scope, Send
from tests.producers.helpers import total
from tests.producers.middleware.asgi_calls import LIFESPAN, sent

SCOPE = {"type": "lifespan", "asgi": {"version": "3.0"}}
STARTED: Message = {"type": "lifespan.startup.complete"}
DONE: Message = {"type": "lifespan.shutdown.complete"}


@pytest.fixture
def producer(redis_url: str) -> Iterator[Producer]:
    """Producer that has counted 3, of which it has sent 1, and hardly sends more by itself."""
    with Producer(redis_url, flush_interval=3600) as made:
        made.increment("hits")
        assert made.flush(20)
        made.increment("hits")
        made.increment("hits")
        yield made


def living(*answers: Message) -> Any:
    """An app that answers one message of the server's after the other; raises what is None."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for answer in answers:
            await receive()
            if answer is None:
                raise RuntimeError("broken")
            await send(answer)

    return app


async def assuming_http(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    pass


def stored_at_each(app: Any, count: Callable[[], int]) -> list[tuple[str, int]]:
    """What is said, and how much is stored then."""
    said: list[tuple[str, int]] = []

    async def main() -> None:
        waiting = list(LIFESPAN)

        async def receive() -> Message:
            return waiting.pop(0)

        async def send(message: Message) -> None:
            said.append((message["type"], count()))

        await asyncio.wait_for(app(SCOPE, receive, send), 30)

    asyncio.run(main())
    return said


@pytest.mark.parametrize(
    ("app", "end"),
    [
        pytest.param(living(STARTED, DONE), "complete", id="knows it"),
        pytest.param(assuming_http, "complete", id="raises"),
        pytest.param(silent, "complete", id="returns"),
        pytest.param(
            living(STARTED, {"type": "lifespan.shutdown.failed"}), "failed", id="fails in the end"
        ),
    ],
)
def test_what_was_counted_is_stored_before_the_shutdown_is_complete(
    app: Any, end: str, producer: Producer, redis_client: redis.Redis
) -> None:
    middleware = ASGIMiddleware(app, producer)
    said = stored_at_each(middleware, lambda: total(redis_client))
    assert [name for name, _ in said] == ["lifespan.startup.complete", f"lifespan.shutdown.{end}"]
    assert said[-1][1] == 3


def test_an_app_that_cannot_start_says_so_itself(producer: Producer) -> None:
    failed: Message = {"type": "lifespan.startup.failed", "message": "no database"}
    assert sent(ASGIMiddleware(living(failed), producer), dict(SCOPE), LIFESPAN) == [failed]
    with pytest.raises(RuntimeError, match="broken"):
        sent(ASGIMiddleware(living(None), producer), dict(SCOPE), LIFESPAN)  # type: ignore[arg-type]


def test_a_flush_that_fails_does_not_keep_the_server_from_ending() -> None:
    class Broken:
        def increment(self, counter: str, key: str) -> None:
            pass

        def flush(self, timeout: float) -> bool:
            raise OSError("broken")

    app = ASGIMiddleware(living(STARTED, DONE), Broken())
    assert sent(app, dict(SCOPE), LIFESPAN) == [STARTED, DONE]
