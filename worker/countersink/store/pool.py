"""A few sessions kept open between two reads."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final, TypeVar

from countersink.store.cancellation import current
from countersink.store.connection import IDLE_SECONDS, Connect, Session
from countersink.store.errors import Unavailable

_KEEP: Final = 4
"""Idle sessions kept; any number can be in use."""
_FRESH_SECONDS: Final = IDLE_SECONDS / 2
"""A session idle for longer is not trusted: the server is about to end it."""

Result = TypeVar("Result")


class Pool:
    """Sessions for reading, shared by threads; a forked child makes its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Session]] = []
        self._pid = os.getpid()

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in one snapshot of the database.

        A kept session may have died unnoticed (a restarted server): then once more on a new one.
        ``work`` only reads.

        Raises:
            ReadInterrupted: it took too long, or :mod:`countersink.store.cancellation` ended it.
        """
        kept = self._take()
        if kept is not None:
            try:
                return self._run(kept, work)
            except Unavailable:
                kept.close(hard=True)
        return self._run(self._connect(), work)

    def close(self) -> None:
        """Close the kept sessions. The pool can be used again."""
        self._check_fork()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _run(self, session: Session, work: Callable[[Session], Result]) -> Result:
        cancellation = current()
        try:
            with (
                nullcontext() if cancellation is None else cancellation.reading(session),
                session.transaction(snapshot=True),
            ):
                return work(session)
        finally:
            self._give_back(session)

    def _take(self) -> Session | None:
        self._check_fork()
        found: Session | None = None
        stale = []
        with self._lock:
            while self._idle and found is None:
                since, session = self._idle.pop()
                if time.monotonic() - since < _FRESH_SECONDS:
                    found = session
                else:
                    stale.append(session)
        for session in stale:
            session.close()
        return found

    def _give_back(self, session: Session) -> None:
        self._check_fork()
        with self._lock:
            # What was interrupted is not kept: the server may still have it in mind.
            if not (session.closed or session.interrupted) and len(self._idle) < _KEEP:
                self._idle.append((time.monotonic(), session))
                return
        session.close(hard=session.interrupted)

    def _check_fork(self) -> None:
        """In a forked child forget the parent's sessions, and the lock a thread may have held."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._idle = []
            self._pid = os.getpid()
