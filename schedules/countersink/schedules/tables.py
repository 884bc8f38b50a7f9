"""Sessions of the scheduled processes."""

from typing import Final

from countersink.store.connection import Session, connect
from countersink.store.migrate import require_schema
from countersink.store.settings import Settings

SHORT_S: Final = 3.0
"""Seconds that MySQL has to answer where a lease is at stake."""


def open_tables(mysql_url: str, *, read_timeout: float = SHORT_S, lock_wait: int = 2) -> Session:
    """A session at READ COMMITTED on tables of our version.

    Raises:
        SchemaMismatch: there are none, or others.
        StoreError: as :func:`countersink.store.connection.connect`.
    """
    session = connect(Settings.parse(mysql_url), read_timeout=read_timeout, lock_wait=lock_wait)
    try:
        require_schema(session)
    except BaseException:
        session.close()
        raise
    return session


class Kept:
    """A session that is opened when it is needed, and again after it was lost. For one thread."""

    def __init__(self, mysql_url: str, *, read_timeout: float = SHORT_S) -> None:
        self._mysql_url = mysql_url
        self._read_timeout = read_timeout
        self._session: Session | None = None

    def __call__(self) -> Session:
        """The session.

        Raises:
            StoreError: as :func:`open_tables`.
        """
        if self._session is None or self._session.closed:
            self._session = open_tables(self._mysql_url, read_timeout=self._read_timeout)
        return self._session

    def close(self) -> None:
        """Close it; it can be opened again."""
        if self._session is not None:
            self._session.close()
            self._session = None
