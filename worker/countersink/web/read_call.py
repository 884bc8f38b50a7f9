"""One read for one request: it waits for its turn, and ends with its answer, when its time is over
or when its client is gone."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request

from countersink.store.cancellation import Cancellation
from countersink.store.errors import ReadInterrupted
from countersink.web.problem import Problem
from countersink.web.read_places import Kind
from countersink.web.services import Services

T = TypeVar("T")

RETRY_AFTER_S: Final = 5
_CANCELLING: Final[set[asyncio.Task[None]]] = set()
"""Held here until they are done: the event loop holds none."""


class ReadCall(Generic[T]):
    """A read.

    Args:
        services: what to work with.
        holder: the key or the address that has asked.
        kind: of the read.
        work: reads; blocks.
    """

    def __init__(self, services: Services, holder: str, kind: Kind, work: Callable[[], T]) -> None:
        self._services = services
        self._holder = holder
        self._kind = kind
        self._work = work
        self._begun = False
        self._cancellation = Cancellation()

    async def answer(self, request: Request) -> T:
        """What the work returns.

        Raises:
            Problem: 429 its holder has too many reads under way; 503 its time is over.
            ClientDisconnect: the client is gone.
            Exception: as the work.
        """
        seconds = self._services.options.read_timeout_s
        reading = asyncio.create_task(self._read())
        gone = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait(
                {reading, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                return reading.result()
            if gone.done():
                raise ClientDisconnect
            raise _too_slow(seconds)
        except ReadInterrupted as error:  # the server has looked at the clock
            raise _too_slow(seconds) from error
        finally:
            gone.cancel()
            if not reading.done():
                self._end(reading)

    async def _read(self) -> T:
        places = self._services.read_places
        with places.held(self._holder, self._kind) as own:
            async with own, places.limiter(self._kind):
                self._begun = True  # from here on it has a thread, until that has ended
                return await anyio.to_thread.run_sync(
                    self._in_thread, limiter=anyio.CapacityLimiter(1)
                )

    def _in_thread(self) -> T:
        with self._cancellation.applied():
            return self._work()

    def _end(self, reading: "asyncio.Task[T]") -> None:
        """See to it that it ends soon; nobody waits for that."""
        reading.add_done_callback(_forget)
        if not self._begun:
            reading.cancel()
            return
        task = asyncio.create_task(
            anyio.to_thread.run_sync(self._cancellation.cancel, limiter=anyio.CapacityLimiter(1))
        )
        _CANCELLING.add(task)
        task.add_done_callback(_CANCELLING.discard)


async def _gone(request: Request) -> None:
    """Wait until the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _forget(reading: "asyncio.Task[T]") -> None:
    if not reading.cancelled():
        reading.exception()  # nobody else asks


def _too_slow(seconds: float) -> Problem:
    return Problem(
        503,
        f"The answer was not there after {seconds:g} s (--read-timeout-s) and was given up: ask for"
        " less, such as a shorter range or a single counter, or again in a while",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
