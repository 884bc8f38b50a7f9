"""Connections that hand out values: kept for long, and known to be alive before they are used.

A value whose reply is lost is lost. That must not happen to whoever merely comes back after a
while, so a connection that the server has ended meanwhile is found out before anything is sent.
"""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from countersink.store import app_connection
from countersink.store.app_connection import Done
from countersink.store.connection import Connect, Session
from countersink.store.errors import StoreError

HANDING_IDLE_SECONDS: Final = 8 * 3600
"""The server ends such a session after so many idle seconds: they never hold a lock while idle."""
KEEP: Final = 8
"""Idle sessions kept; any number can be in use."""
PING_AFTER: Final = 10.0
"""Seconds of idleness after which a session is asked whether it is there: what lies between it and
the server may have forgotten it without a word."""


class HandingSession(Session):
    """A session that tells which value a statement handed out."""

    @classmethod
    def from_session(cls, session: Session) -> "HandingSession":
        """The same connection; the session given is not to be used any more."""
        return cls(
            session._connection,
            session.dialect,
            session.max_allowed_packet,
            session.snapshot_isolation,
        )

    def hand_out(self, sql: str) -> Done:
        """Run a statement; how many rows it changed, and the value it handed out."""
        with self._translated():
            return app_connection.execute(self._connection, sql)

    def silent(self) -> bool:
        """Whether nothing has come from the server since its last reply, not even a goodbye."""
        sock = getattr(self._connection, "_sock", None)
        if self.closed or sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def answers(self) -> bool:
        """Ask the server something that does nothing; never raises."""
        try:
            self.execute("DO 0")
        except StoreError:
            self.close(hard=True)
            return False
        return True


class Sessions:
    """Sessions kept between two uses, shared by threads; a forked child makes its own.

    Args:
        connect: makes a new one.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[tuple[float, HandingSession]] = []
        self._pid = os.getpid()

    @contextmanager
    def lent(self) -> Iterator[HandingSession]:
        """A session that was alive a moment ago, outside a transaction, and is left so.

        Raises:
            StoreError: there is none, and none can be made: nothing was sent.
        """
        session = self._take() or HandingSession.from_session(self._connect())
        try:
            yield session
        finally:
            self._give_back(session)

    def close(self) -> None:
        """Close the kept sessions. More can be made."""
        self._check_fork()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _take(self) -> HandingSession | None:
        self._check_fork()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, session = self._idle.pop()
            fresh = time.monotonic() - since < PING_AFTER
            if (fresh and session.silent()) or session.answers():
                return session

    def _give_back(self, session: HandingSession) -> None:
        if session.closed:
            return
        self._check_fork()
        with self._lock:
            if len(self._idle) < KEEP:
                self._idle.append((time.monotonic(), session))
                return
        session.close()

    def _check_fork(self) -> None:
        """In a forked child forget the parent's sessions, and the lock a thread may have held."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._idle = []
            self._pid = os.getpid()
