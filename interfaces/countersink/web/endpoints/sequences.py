"""``/v1/sequences/...``: hand out and peek at values; largest block, members, statuses and
texts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route, bodies
from countersink.web.http.openapi import (
    Closed,
    json_body,
    response,
    schema_of,
    words,
)
from countersink.web.services import Services

MAX_BLOCK: Final = 1_000_000
"""Values in one block."""
LOCK_WAIT_S: Final = 1
"""Seconds for which a try waits for a lock."""
THREADS: Final = 64
"""Requests that wait in MySQL for sequences: half as many may be locked until the others wait."""
PLACES: Final = 2
"""Requests that wait in MySQL for the same sequence."""
PLACE_WAIT_S: Final = 5.0
"""Seconds for which others wait for such a place."""


T = TypeVar("T")
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class ValueAsked(Closed):
    """Which value to hand out."""

    step: Annotated[
        _Int64 | None,
        Meta(
            description="From the last value; not 0. Default: 1.",
            extra_json_schema={"not": {"const": 0}},
        ),
    ] = None
    start: Annotated[_Int64 | None, words("The first value, where there is none yet.")] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_BLOCK)] | None, words("A block of so many values at once.")
    ] = None


class HandingOut:
    """The sequences, and places for each of them: one that a transaction has locked holds up no
    other. For the event loop's thread.
    """

    def __init__(self, services: Services) -> None:
        self.sequences = services.store.sequences_waiting(LOCK_WAIT_S)
        # Each as long as somebody has, or waits for, a place.
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(THREADS)

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what may wait for a lock in a thread of its own."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._threads)

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """A place in which to ask for a sequence's value.

        Raises:
            Problem: 503 all of them are taken for too long.
        """
        places = self._places.setdefault(name, asyncio.Semaphore(PLACES))
        try:
            async with asyncio.timeout(PLACE_WAIT_S):
                await places.acquire()
        except TimeoutError:
            raise Problem(
                503, "A transaction holds this sequence: try again", retry_after=1
            ) from None
        try:
            yield
        finally:
            places.release()


async def take(request: Request, services: Services, who: Identity) -> Response:
    """Hand out the next value, or a block of them."""
    name = _name(request, who)
    asked = await bodies.read_object(request, services, ValueAsked, optional=True)
    used = services.quotas.check(who, "sequences", {name})
    handing = services.one(HandingOut)
    sequences = handing.sequences
    try:
        async with handing.place(name):
            if asked.count is None:
                value = await handing.run(sequences.next, name, asked.step, start=asked.start)
                taken = {"value": value}
            else:
                block: range = await handing.run(
                    sequences.next_block, name, asked.count, asked.step, start=asked.start
                )
                taken = {"first": block[0], "last": block[-1], "step": block.step}
    except SequenceExhausted as error:
        raise Problem(409, str(error)) from None
    except SequenceUncertain:
        raise Problem(
            503,
            "The server may have handed out a value of which it could not tell; nobody else gets"
            " it: ask for the next one",
            retry_after=1,
        ) from None
    except ValueError as error:
        raise Problem(422, str(error)) from None
    used.add(name)
    return JSONResponse({"name": name, **taken})


async def peek(request: Request, services: Services, who: Identity) -> Response:
    """The last value that was handed out."""
    name = _name(request, who)
    try:
        value = await services.read_pool.run(request, who, services.store.sequences.peek, name)
    except ValueError as error:
        raise Problem(422, str(error)) from None
    return JSONResponse({"name": name, "value": value})


def _name(request: Request, who: Identity) -> str:
    name: str = request.path_params["name"]
    if not who.may_name(name):
        raise Problem(403, "The key may not name this sequence")
    return name


class SequenceValue(msgspec.Struct):
    """A sequence's value of the current period."""

    name: str
    value: int | None


class SequenceBlock(msgspec.Struct):
    """Values of a sequence, from the first to the last one."""

    name: str
    first: int
    last: int
    step: int


ROUTES: Final = (
    Route(
        "POST",
        "/v1/sequences/{name:path}/next",
        take,
        scope="ingest",
        name="nextValue",
        summary="Get your own number: nobody else gets it.",
        description="A request that is sent again gets another number: the first one is"
        " lost with the reply that was lost. Values have 64 bits; JavaScript's numbers 53.",
        body=json_body(ValueAsked, required=False),
        responses={
            "200": response(
                "The number, or with `count` the block of numbers.",
                {"oneOf": [schema_of(SequenceValue), schema_of(SequenceBlock)]},
            ),
            "409": "No value is left within the sequence's limits.",
            "422": "There can be no such name, step, start, count or parameter.",
            "503": "A number may be lost, or MySQL is away: ask again.",
        },
    ),
    Route(
        "GET",
        "/v1/sequences/{name:path}",
        peek,
        scope="read",
        name="lastValue",
        summary="The last number that was handed out; null where none was.",
        responses={"200": SequenceValue},
    ),
)
