"""FastAPI: every request counted by its route template and status.

    COUNTERSINK_REDIS_URL=redis://localhost:6379/0 uvicorn --app-dir docs/examples fastapi_app:app

Then `countersink totals requests --by key` shows `GET /books/{number} 200` and the others.
At the end of the server the middleware stores what was counted; an app without it does so itself:

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(producer.flush)
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware

producer = Producer.from_env()

app = FastAPI()
app.add_middleware(ASGIMiddleware, producer=producer)


@app.get("/books/{number}")
def book(number: int) -> dict[str, int]:
    """A book, of which there are 1,000."""
    if number > 1_000:
        raise HTTPException(404)
    return {"book": number}


@app.post("/orders", status_code=201)
def order() -> dict[str, str]:
    """An order: counted as such, too."""
    producer.increment("orders", "placed")
    return {"order": "placed"}


@app.get("/report")
def report() -> StreamingResponse:
    """An answer in pieces."""

    async def lines() -> AsyncIterator[str]:
        for number in range(3):
            yield f"line {number}\n"

    return StreamingResponse(lines(), media_type="text/plain")


@app.get("/broken")
def broken() -> None:
    """A mistake: 500."""
    raise RuntimeError("this page is broken")
