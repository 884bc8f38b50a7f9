"""A session that lasts, whatever becomes of its connections."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Self, TypeVar

from countersink.store.connection import Connect, Session
from countersink.store.errors import Unavailable
from countersink.store.tables import open_tables

LOCK_WAIT_S: Final = 1
"""Seconds that a correction waits for what others hold, as others wait behind it."""
READ_TIMEOUT_S: Final = 120.0
"""Seconds that summing up a bucket may take, where one key has very many rows."""

_RECONNECTS: Final = 5
_RECONNECT_PAUSE_S: Final = 0.3

Result = TypeVar("Result")


def connect_for(mysql_url: str) -> Connect:
    """How to get sessions as correcting needs them."""
    return partial(
        open_tables,
        mysql_url,
        isolation="REPEATABLE READ",
        read_timeout=READ_TIMEOUT_S,
        lock_wait=LOCK_WAIT_S,
    )


class Keeper:
    """A session that is made again when it is lost. For one thread.

    Args:
        connect: makes sessions.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._session: Session | None = None

    def run(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work``, which can be run again whatever became of it, on the session.

        Raises:
            Unavailable: the server was lost time and again.
            StoreError: what ``work`` raised.
        """
        for attempt in range(_RECONNECTS):
            try:
                return work(self.session())
            except Unavailable:
                time.sleep(_RECONNECT_PAUSE_S * (attempt + 1))
        return work(self.session())

    def session(self) -> Session:
        """The session, a new one if it was lost."""
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
