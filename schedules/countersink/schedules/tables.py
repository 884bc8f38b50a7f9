"""Sessions of the scheduled processes."""

from typing import Final

from countersink.store.connection import Session
from countersink.store.tables import open_tables

SHORT_S: Final = 3.0
"""Seconds that MySQL has to answer where a lease is at stake."""


LOCK_WAIT_S: Final = 2
"""Seconds that others may hold up what the scheduled processes write down."""


class Kept:
    """A session that is opened when it is needed, and again after it was lost. For one thread."""

    def __init__(self, mysql_url: str, *, read_timeout: float = SHORT_S) -> None:
        self._mysql_url = mysql_url
        self._read_timeout = read_timeout
        self._session: Session | None = None

    def __call__(self) -> Session:
        """The session.

        Raises:
            StoreError: as :func:`countersink.store.tables.open_tables`.
        """
        if self._session is None or self._session.closed:
            self._session = open_tables(
                self._mysql_url, read_timeout=self._read_timeout, lock_wait=LOCK_WAIT_S
            )
        return self._session

    def close(self) -> None:
        """Close it; it can be opened again."""
        if self._session is not None:
            self._session.close()
            self._session = None
