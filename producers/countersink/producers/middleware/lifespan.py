"""The end of an ASGI server, as it tells its app: the time to store what was counted
(https://asgi.readthedocs.io/en/latest/specs/lifespan.html).
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def live(
    app: App, flush: Callable[[], None], scope: Scope, receive: Receive, send: Send
) -> None:
    """Let ``app`` answer the server's lifespan messages, and flush before it says that it has shut
    down. An app that knows no lifespan is answered for.
    """
    asked = False

    async def hear() -> Message:
        nonlocal asked
        asked = True
        return await receive()

    async def say(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            await _aside(flush)
        await send(message)

    try:
        await app(scope, hear, say)
    except Exception:
        # Whoever knows the protocol asks what the server says before anything else can fail.
        if asked:
            raise
    if asked:
        return
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await _aside(flush)
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _aside(flush: Callable[[], None]) -> None:
    """Flush in a thread, where asyncio offers one; else here: no request is waiting any more."""
    asyncio = sys.modules.get("asyncio")  # importing it takes long, and trio does without
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        flush()
    else:
        await loop.run_in_executor(None, flush)
