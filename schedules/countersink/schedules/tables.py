"""Sessions of the scheduled processes."""

import time
from typing import Final

from countersink.store.connection import IDLE_SECONDS, Session
from countersink.store.tables import open_tables

SHORT_S: Final = 3.0
"""Seconds that MySQL has to answer where a lease is at stake."""
LOCK_WAIT_S: Final = 2
"""Seconds that others may hold up what the scheduled processes write down."""


class Kept:
    """A session that is opened when it is needed, and again after it was lost, or not used for
    long. For one thread, but for :meth:`abort`.

    Args:
        mysql_url: where.
        read_timeout: seconds until a silent server counts as gone.
        idle_seconds: the server ends the session, with its locks, after so many idle seconds.
    """

    def __init__(
        self,
        mysql_url: str,
        *,
        read_timeout: float = SHORT_S,
        idle_seconds: int = IDLE_SECONDS,
    ) -> None:
        self._mysql_url = mysql_url
        self._read_timeout = read_timeout
        self._idle_seconds = idle_seconds
        self._asked_at = 0.0
        self._session: Session | None = None

    def __call__(self) -> Session:
        """The session. To be asked for anew for each transaction.

        Raises:
            StoreError: as :func:`countersink.store.tables.open_tables`.
        """
        now = time.monotonic()
        if now - self._asked_at > self._idle_seconds / 2:
            self.close()  # the server is about to end it, or has
        self._asked_at = now
        if self._session is None or self._session.closed:
            self._session = open_tables(
                self._mysql_url,
                read_timeout=self._read_timeout,
                lock_wait=LOCK_WAIT_S,
                idle_seconds=self._idle_seconds,
            )
        return self._session

    def abort(self) -> None:
        """Break the connection, from any thread: whoever waits on it gets Unavailable."""
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """Close it; it can be opened again."""
        if self._session is not None:
            self._session.close()
            self._session = None
