"""The endpoints ``/v1/sequences/...``, which hand out values of sequences and read the last one."""

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

from countersink.runtime.limits import MAX_AMOUNT, MIN_AMOUNT
from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route, bodies
from countersink.web.http.openapi import (
    Closed,
    doc,
    json_body,
    response,
    schema_of,
)
from countersink.web.services import Services

MAX_BLOCK: Final = 1_000_000
"""Maximum number of values in one block."""
LOCK_WAIT_S: Final = 1
"""Maximum seconds that a statement waits for the lock of a sequence."""
THREADS: Final = 64
"""Maximum number of requests that use MySQL at the same time. If half as many sequences are locked,
requests for them take all threads, and requests for other sequences wait."""
PLACES: Final = 2
"""Maximum number of requests for the same sequence that use MySQL at the same time."""
PLACE_WAIT_S: Final = 5.0
"""Maximum seconds that a further request for the same sequence waits until another one ends."""


T = TypeVar("T")
_Int64 = Annotated[int, Meta(ge=MIN_AMOUNT, le=MAX_AMOUNT)]


class ValueAsked(Closed):
    """A request for one value, or a block of values, of a sequence."""

    step: Annotated[
        _Int64 | None,
        Meta(
            description="Difference to the last value; not 0. Default: 1.",
            extra_json_schema={"not": {"const": 0}},
        ),
    ] = None
    start: Annotated[_Int64 | None, doc("The first value of a new sequence.")] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_BLOCK)] | None, doc("Number of values of a block.")
    ] = None


class SequencePlaces:
    """Two limits of the requests that take values of sequences at the same time. :meth:`place`
    admits :data:`PLACES` requests per sequence; :meth:`run` has :data:`THREADS` threads for all
    sequences. So if an application's transaction has locked a sequence, requests for it hold at
    most :data:`PLACES` of the threads. Use it only in the event loop's thread.

    Args:
        services: have the store.

    Attributes:
        sequences: the sequences; their statements wait for a lock for at most :data:`LOCK_WAIT_S`.
    """

    def __init__(self, services: Services) -> None:
        self.sequences = services.store.sequences_waiting(LOCK_WAIT_S)
        # An item lives as long as a request has, or waits for, a place.
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(THREADS)

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``work``, which may wait for a lock, in one of the :data:`THREADS` threads for all
        sequences, and return its result. Wait for a thread if none is free. Call this method within
        :meth:`place`."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._threads)

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """Let at most :data:`PLACES` requests for the sequence ``name`` into the body of ``async
        with`` at the same time. A further request waits before the body.

        Raises:
            Problem: 503 the request has waited for :data:`PLACE_WAIT_S` seconds; the body does not
                run.
        """
        places = self._places.setdefault(name, asyncio.Semaphore(PLACES))
        try:
            async with asyncio.timeout(PLACE_WAIT_S):
                await places.acquire()
        except TimeoutError:
            raise Problem(
                503, "A transaction has locked this sequence: try again", retry_after=1
            ) from None
        try:
            yield
        finally:
            places.release()


async def take(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/sequences/{name}/next``: hand out the next value of a sequence, or, if the
    body has ``count``, a block of its next values. A sequence that does not exist is created.

    Raises:
        Problem: 403 the API key may not name the sequence, or would exceed its limit of names of
            sequences; 409 the sequence's limits or 64 bits leave too few values; 422 the name or
            the body is not valid; 503 other requests hold the sequence's places for too long, or
            MySQL's reply was lost; also the problems of
            :func:`~countersink.web.http.bodies.read_object`.
        Unavailable, Conflict: MySQL is away, or the sequence stays locked; ``web/app.py`` answers
            503.
    """
    name = _name(request, who)
    asked = await bodies.read_object(request, services, ValueAsked, optional=True)
    used = services.quotas.check(who, "sequences", {name})
    places = services.single(SequencePlaces)
    sequences = places.sequences
    try:
        async with places.place(name):
            if asked.count is None:
                value = await places.run(sequences.next, name, asked.step, start=asked.start)
                taken = {"value": value}
            else:
                block: range = await places.run(
                    sequences.next_block, name, asked.count, asked.step, start=asked.start
                )
                taken = {"first": block[0], "last": block[-1], "step": block.step}
    except SequenceExhausted as error:
        raise Problem(409, str(error)) from None
    except SequenceUncertain:
        raise Problem(
            503,
            "MySQL's reply was lost, and a value may be lost with it (no other request gets it):"
            " ask for the next one",
            retry_after=1,
        ) from None
    except ValueError as error:
        raise Problem(422, str(error)) from None
    used.add(name)
    return JSONResponse({"name": name, **taken})


async def peek(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/sequences/{name}`` with the last value that a sequence has handed out in its
    current period. The value is null if there is none, or no such sequence.

    Raises:
        Problem: 403 the API key may not name the sequence; 422 the name is not valid; also the
            problems of :meth:`~countersink.web.read_pool.ReadPool.run`.
    """
    name = _name(request, who)
    try:
        value = await services.read_pool.run(request, who, services.store.sequences.peek, name)
    except ValueError as error:
        raise Problem(422, str(error)) from None
    return JSONResponse({"name": name, "value": value})


def _name(request: Request, who: Identity) -> str:
    name: str = request.path_params["name"]
    if not who.may_name(name):
        raise Problem(403, "This key may not name this sequence")
    return name


class SequenceValue(msgspec.Struct):
    """A value of a sequence, in its current period."""

    name: str
    value: int | None


class SequenceBlock(msgspec.Struct):
    """A block of values of a sequence."""

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
        summary="Get the next number, which no other request gets.",
        description="A repeated request gets another number; if the first reply was lost, its"
        " number is lost. Values have 64 bits; JavaScript's numbers have 53.",
        body=json_body(ValueAsked, required=False),
        responses={
            "200": response(
                "The number, or with `count` the block of numbers.",
                {"oneOf": [schema_of(SequenceValue), schema_of(SequenceBlock)]},
            ),
            "409": "No value is left within the sequence's limits.",
            "422": "The name, step, start, count or a parameter is not valid.",
            "503": "MySQL is away, or its reply was lost, maybe with a number: try again.",
        },
    ),
    Route(
        "GET",
        "/v1/sequences/{name:path}",
        peek,
        scope="read",
        name="lastValue",
        summary="The last number handed out; null: none was.",
        responses={"200": SequenceValue},
    ),
)
