"""``ReadPool`` runs reads of totals in threads, with limits of their number (429) and duration
(503). ``read_problems`` turns errors of a read into HTTP problems (404, 422, 500, 503).

A read ends with its result, at its time limit, or when its client disconnects.
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
from countersink.stream.errors import QueueReadStopped, QueueTooLong
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem

LOGGER: Final = logging.getLogger("countersink.web")
MAX_READS: Final = 32
"""Maximum number of reads, running or waiting, of one key, or of one address without a key."""
MAX_PENDING_READS: Final = 8
"""Maximum number of reads of one key or address that also read the queue. They are counted apart
from :data:`MAX_READS`. Of all keys together, one such read runs at a time."""
RETRY_AFTER_S: Final = 5

T = TypeVar("T")


class ReadPool:
    """Runs reads in threads. Use it only in the event loop's thread.

    The reads of one API key use at most half of the threads (at least one), so that other clients
    find a free thread. The same limit applies to all requests without a key from one address. Only
    one read of all keys at a time reads the queue, because this takes much memory and holds the
    interpreter lock for long.

    Args:
        threads: number of threads; the read of the queue has a further one.
        seconds: time limit of a read, including its wait for a thread.

    Attributes:
        queue: the limiter that admits one read of the queue at a time.
    """

    def __init__(self, threads: int, seconds: float) -> None:
        self.queue: Final = anyio.CapacityLimiter(1)
        self._threads: Final = anyio.CapacityLimiter(threads)
        self._threads_per_holder: Final = max(1, threads // 2)
        self._seconds = seconds
        # An item lives as long as its holder has a read.
        self._holders: WeakValueDictionary[tuple[str, bool], anyio.CapacityLimiter]
        self._holders = WeakValueDictionary()

    @property
    def taken(self) -> int:
        """The number of reads that are running or waiting."""
        return sum(map(_reads, self._holders.values()))

    async def run(
        self,
        request: Request,
        who: Identity,
        work: Callable[..., T],
        *args: Any,
        pending: bool = False,
    ) -> T:
        """Call ``work`` in a thread of the pool, and return its result. At the time limit, or when
        the client disconnects, raise without a result: a call that waits for its thread is dropped,
        and the MySQL statement of a running call is interrupted.

        Args:
            request: the request. Its body must have been read before: the wait for the disconnect
                would consume it.
            who: identity of the request; each key, and each address without a key, has a limit of
                reads.
            work: the read, which may block.
            args: arguments of ``work``.
            pending: whether ``work`` reads the queue; of all such reads, one runs at a time.

        Raises:
            Problem: 429 this key or address has :data:`MAX_READS` unfinished reads already
                (:data:`MAX_PENDING_READS` of the queue); 503 the read reached the time limit, ours
                or MySQL's.
            ClientDisconnect: the client has disconnected.
            Exception: whatever else ``work`` raises.
        """
        holder = who.key_id or request.scope["countersink.client"], pending
        most = MAX_PENDING_READS if pending else MAX_READS
        at_once = most if pending else self._threads_per_holder
        places = self._holders.setdefault(holder, anyio.CapacityLimiter(at_once))
        if _reads(places) >= most:
            raise Problem(
                429,
                f"This key, or this address, has {most} unfinished reads already: wait for their"
                " answers",
                retry_after=2,
            )
        begun, cancellation = asyncio.Event(), Cancellation()

        def in_thread() -> T:
            with cancellation.applied():
                return work(*args)

        async def read() -> T:
            async with places, self.queue if pending else self._threads:
                begun.set()  # from here on the read has a thread, until that has ended
                return await anyio.to_thread.run_sync(in_thread, limiter=anyio.CapacityLimiter(1))

        reading = asyncio.create_task(read())
        disconnect = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {reading, disconnect}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                return reading.result()
            if disconnect.done():
                raise ClientDisconnect
            raise _too_slow(self._seconds)
        except ReadInterrupted as error:  # by the time limit of the MySQL server
            raise _too_slow(self._seconds) from error
        finally:
            disconnect.cancel()
            if not reading.done():  # it ends soon, and nobody waits for it
                # Retrieves the exception, which asyncio would otherwise log.
                reading.add_done_callback(lambda done: done.cancelled() or done.exception())
                if begun.is_set():
                    threading.Thread(target=cancellation.cancel, name="cancel", daemon=True).start()
                else:
                    reading.cancel()


def _reads(limiter: anyio.CapacityLimiter) -> int:
    """Return the number of running and waiting reads of a key or address. ``limiter`` limits the
    reads of this key or address."""
    return limiter.borrowed_tokens + limiter.statistics().tasks_waiting


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_slow(seconds: float) -> Problem:
    return Problem(
        503,
        f"The read took longer than {seconds:g} s (--read-timeout-s) and was stopped: ask for less,"
        " such as a shorter range or a single counter, or try again later",
        retry_after=RETRY_AFTER_S,
    )


@contextmanager
def read_problems(*, without_pending: bool = False) -> Iterator[None]:
    """Turn the errors that a read raises within the block into problems. Other errors pass
    unchanged, such as a StoreError because MySQL is away.

    Args:
        without_pending: True if the endpoint has the parameter ``include_pending`` and the request
            did not set it. The text of 404 then suggests to set it.

    Raises:
        Problem: 404 unknown counter; 422 an invalid query, or one that the stored buckets cannot
            answer; 500 damaged data, a missing library, or a time zone that this machine does not
            know; 503 the queue is too long, or the server is stopping.
    """
    try:
        yield
    except UnknownCounter as error:
        hint = "; include_pending=true includes its pending rows" if without_pending else ""
        text = f"{sentence(error)}{hint}. GET /v1/counters lists all counters"
        raise Problem(404, text) from error
    except RolledUp as error:
        up_to = error.rolled_up_to.isoformat()
        raise Problem(422, sentence(error), extra={"rolled_up_to": up_to}) from error
    except (InexactZone, UnknownDimension, NotUnique) as error:
        raise Problem(422, sentence(error)) from error
    except (DamagedSketch, NoSketches, UnknownZone) as error:
        LOGGER.error("%s", error, extra={"action": "unreadable"})
        raise Problem(500, sentence(error)) from error
    except QueueTooLong as error:
        raise Problem(
            503,
            f"{sentence(error)}, the most that one answer reads: ask without include_pending, or"
            " again when the workers have caught up (countersink totals --include-pending has no"
            " limit)",
            retry_after=30,
        ) from error
    except QueueReadStopped as error:
        raise Problem(503, "This server is stopping: try again", retry_after=2) from error
    except StoreError:
        raise  # some of them are ValueErrors too
    except ValueError as error:
        raise Problem(422, sentence(error)) from error


def sentence(error: Exception) -> str:
    """Return the message of an error, beginning with a capital letter."""
    text = str(error)
    return text[:1].upper() + text[1:]
