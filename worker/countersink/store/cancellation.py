"""Ending, from another thread, what a thread reads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from countersink.store.connection import Session
from countersink.store.errors import ReadInterrupted

_AGAIN_S: Final = 0.1
"""Seconds until the next KILL QUERY: one that comes between two statements ends none."""

_CURRENT: ContextVar["Cancellation | None"] = ContextVar("cancellation", default=None)


class Cancellation:
    """Ends the reads of one thread: those of a :class:`countersink.store.pool.Pool` within
    :meth:`applied`.

    Attributes:
        cancelled: :meth:`cancel` was called.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._ended = threading.Event()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Reads within the block, in this thread, are those to end."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def cancel(self) -> None:
        """End them; returns once they have ended, and no statement of another can be hit.

        In another thread than theirs. Never raises.
        """
        self.cancelled = True
        while True:
            with self._lock:  # until the server has answered, the session is nobody else's
                if self._session is None:
                    return
                self._ended.clear()
                self._session.interrupt()
            self._ended.wait(_AGAIN_S)

    @contextmanager
    def reading(self, session: Session) -> Iterator[None]:
        """A session that reads within the block.

        Raises:
            ReadInterrupted: it was cancelled before.
        """
        with self._lock:
            if self.cancelled:
                raise ReadInterrupted("the read was cancelled")
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None
                self._ended.set()


def is_cancelled() -> bool:
    """Whether the reads of this thread are to end."""
    found = _CURRENT.get()
    return found is not None and found.cancelled


def current() -> Cancellation | None:
    """What ends the reads of this thread; None: nothing does."""
    return _CURRENT.get()
