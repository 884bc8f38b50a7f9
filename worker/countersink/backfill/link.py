"""A connection that comes back: what is run on it must be safe to be run again."""

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from countersink.store.connection import IDLE_SECONDS, Session
from countersink.store.errors import Unavailable
from countersink.store.rerun import rerun
from countersink.store.tables import open_tables

PATIENCE: Final = 60.0
"""Seconds to wait for a server that was there before."""
ATTEMPTS: Final = 20
"""How often some work is tried where others are in the way."""
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

Result = TypeVar("Result")


class Link:
    """Sessions at READ COMMITTED, one after the other. A context manager; for one thread.

    Args:
        mysql_url: the database.
        stop: asked while the server is away; true: wait no longer.
    """

    def __init__(self, mysql_url: str, stop: Callable[[], bool]) -> None:
        self._url = mysql_url
        self._stop = stop
        self._session: Session | None = None
        self._used = 0.0

    def __enter__(self) -> Self:
        self.run(lambda session: None, patience=0.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def run(self, work: Callable[[Session], Result], *, patience: float = PATIENCE) -> Result:
        """Do some work; again where it met another transaction, and on a new connection where the
        old one was lost in the midst of it: so it must look first what it has done already.

        Raises:
            Conflict: others were in the way at each of :data:`ATTEMPTS`.
            Unavailable: the server has been away for ``patience`` seconds.
            StoreError, and whatever ``work`` raises.
        """
        deadline: float | None = None
        pause = _PAUSE
        while True:
            try:
                result = rerun(partial(work, self._open()), attempts=ATTEMPTS)
            except Unavailable:
                self._close()
                now = time.monotonic()
                deadline = now + patience if deadline is None else deadline
                if now >= deadline or self._stop():
                    raise
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)
            else:
                self._used = time.monotonic()
                return result

    def _open(self) -> Session:
        session = self._session
        # The server ends idle sessions: do not find out by a failing transaction.
        if session is not None and time.monotonic() - self._used > IDLE_SECONDS / 2:
            self._close()
            session = None
        if session is None or session.closed:
            session = self._session = open_tables(self._url)
        return session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
