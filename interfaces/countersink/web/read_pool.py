"""Reads of totals: how many may be under way (429), how long one may take (503), and which status
(404, 422, 503), text and Retry-After each error of a read becomes.

A read waits for its turn, and ends with its answer, when its time is over or when its client is
gone.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio
from starlette.requests import ClientDisconnect, Request

from countersink.counting.errors import (
    DamagedSketch,
    InexactZone,
    NoSketches,
    NotUnique,
    RolledUp,
    UnknownCounter,
    UnknownDimension,
)
from countersink.database.errors import ReadInterrupted, StoreError, UnknownZone
from countersink.database.sessions import Cancellation
from countersink.reads.errors import QueueReadStopped, QueueTooLong
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem

LOGGER: Final = logging.getLogger("countersink.web")
MAX_READS: Final = 32
"""Reads with one key, or from one address without, that are under way or wait for their turn."""
MAX_PENDING_READS: Final = 8
"""The same of those that read the queue, of which one is under way at a time."""
RETRY_AFTER_S: Final = 5

T = TypeVar("T")


class ReadPool:
    """Runs reads in threads. For the event loop's thread.

    Reads with one key have a part of the threads: whatever these do, others have a thread to read
    in. One read at a time looks into the queue: that takes memory, and the interpreter from all
    others.

    Args:
        threads: that read at once.
        seconds: that one read may take, with the wait for its turn.

    Attributes:
        queue: bounds those that look into the queue.
    """

    def __init__(self, threads: int, seconds: float) -> None:
        self.queue: Final = anyio.CapacityLimiter(1)
        self._threads: Final = anyio.CapacityLimiter(threads)
        self._threads_of_one: Final = max(1, threads // 2)
        self._seconds = seconds
        # Each as long as its holder reads, or waits for it.
        self._holders: WeakValueDictionary[tuple[str, bool], anyio.CapacityLimiter]
        self._holders = WeakValueDictionary()

    @property
    def taken(self) -> int:
        """Reads that are under way or wait."""
        return sum(map(_number, self._holders.values()))

    async def run(
        self,
        request: Request,
        who: Identity,
        work: Callable[..., T],
        *args: Any,
        pending: bool = False,
    ) -> T:
        """What ``work`` returns, in a thread of those that read; it is ended when the request's
        time is over, or its client gone.

        Args:
            request: the request.
            who: has asked.
            work: blocks.
            args: its arguments.
            pending: it looks into the queue.

        Raises:
            Problem: 429 they have too many reads under way; 503 its time is over; as ``work``.
            ClientDisconnect: the client is gone.
        """
        name = who.key_id or request.scope["countersink.client"], pending
        most = MAX_PENDING_READS if pending else MAX_READS
        at_once = most if pending else self._threads_of_one
        own = self._holders.setdefault(name, anyio.CapacityLimiter(at_once))
        if _number(own) >= most:
            raise Problem(
                429,
                f"{most} reads with this key, or from this address, are under way already: wait"
                " for their answers",
                retry_after=2,
            )
        begun, cancellation = asyncio.Event(), Cancellation()

        def in_thread() -> T:
            with cancellation.applied():
                return work(*args)

        async def read() -> T:
            async with own, self.queue if pending else self._threads:
                begun.set()  # from here on it has a thread, until that has ended
                return await anyio.to_thread.run_sync(in_thread, limiter=anyio.CapacityLimiter(1))

        reading = asyncio.create_task(read())
        gone = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait(
                {reading, gone}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                return reading.result()
            if gone.done():
                raise ClientDisconnect
            raise _too_slow(self._seconds)
        except ReadInterrupted as error:  # the server has looked at the clock
            raise _too_slow(self._seconds) from error
        finally:
            gone.cancel()
            if not reading.done():  # it ends soon; nobody waits for that
                # Nobody else asks for its exception.
                reading.add_done_callback(lambda done: done.cancelled() or done.exception())
                if begun.is_set():
                    threading.Thread(target=cancellation.cancel, name="cancel", daemon=True).start()
                else:
                    reading.cancel()


def _number(limiter: anyio.CapacityLimiter) -> int:
    """How many have a place, or wait for one."""
    return limiter.borrowed_tokens + limiter.statistics().tasks_waiting


async def _gone(request: Request) -> None:
    """Wait until the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_slow(seconds: float) -> Problem:
    return Problem(
        503,
        f"The answer was not there after {seconds:g} s (--read-timeout-s) and was given up: ask for"
        " less, such as a shorter range or a single counter, or again in a while",
        retry_after=RETRY_AFTER_S,
    )


@contextmanager
def read_problems(*, without_pending: bool = False) -> Iterator[None]:
    """Turn what a read cannot tell into a problem.

    Args:
        without_pending: it is asked for without what is pending, where that could be asked for.

    Raises:
        Problem: 404 nobody has counted it; 422 what is asked for cannot be told, or is no question;
            503 it cannot be told now.
    """
    try:
        yield
    except UnknownCounter as error:
        again = "; if it was a moment ago, ask with include_pending=true" if without_pending else ""
        text = f"{_sentence(error)}{again}. GET /v1/counters lists what was"
        raise Problem(404, text) from error
    except RolledUp as error:
        up_to = error.rolled_up_to.isoformat()
        raise Problem(422, _sentence(error), extra={"rolled_up_to": up_to}) from error
    except (InexactZone, UnknownDimension, NotUnique) as error:
        raise Problem(422, _sentence(error)) from error
    except (DamagedSketch, NoSketches, UnknownZone) as error:
        LOGGER.error("%s", error, extra={"action": "unreadable"})
        raise Problem(500, _sentence(error)) from error
    except QueueTooLong as error:
        raise Problem(
            503,
            f"{_sentence(error)}, which is more than is read for one answer: ask without"
            " include_pending, or again once the workers have caught up (countersink totals"
            " --include-pending reads all of it)",
            retry_after=30,
        ) from error
    except QueueReadStopped as error:
        raise Problem(503, "This server is about to end: ask again", retry_after=2) from error
    except StoreError:
        raise  # some of them are ValueErrors too
    except ValueError as error:
        raise Problem(422, _sentence(error)) from error


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
