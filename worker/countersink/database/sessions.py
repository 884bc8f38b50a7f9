"""Reused sessions: one for a thread (``KeptSession``, which waits while the database is away),
several for threads (``Pool``), the check of the tables' version, and ``Cancellation`` of reads."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from countersink.database.connection import IDLE_SECONDS, SessionOptions, connect, interrupt
from countersink.database.errors import (
    NO_SUCH_TABLE,
    Conflict,
    Misconfigured,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    Unavailable,
)
from countersink.database.session import Connect, Session, rerun
from countersink.database.url import Settings

PATIENCE_S: Final = 60.0
"""Seconds that :meth:`KeptSession.run` waits for a server that does not answer."""
PATIENT_ATTEMPTS: Final = 20
"""Attempts of :meth:`KeptSession.run` at work that conflicts with other transactions."""
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
BRIEF_READ_TIMEOUT_S: Final = 3.0
"""Seconds until a silent server counts as unavailable for a :func:`brief_session`."""
BRIEF_LOCK_WAIT_S: Final = 2
"""Seconds that a statement of a :func:`brief_session` waits for a lock."""

_FRESH_SECONDS: Final = IDLE_SECONDS / 2
"""Longest idle time of a reused session: after more the server may be about to end it."""

Result = TypeVar("Result")
Params = ParamSpec("Params")
Ready = Callable[[Session], None]
"""Prepares a session for a snapshot; raises StoreError."""


def open_tables(where: Settings | str, **options: Unpack[SessionOptions]) -> Session:
    """Log in as :func:`countersink.database.connection.connect` does; check the tables' version.

    Raises:
        SchemaMismatch: there are no tables, or they have another version.
        StoreError: as ``connect``.
    """
    session = connect(where, **options)
    try:
        require_schema(session)
    except BaseException:
        session.close()
        raise
    if session.checked or options.get("to_read", False):
        return session
    session.close()  # the tables were created after the login
    return open_tables(where, **options)


VERSION: Final = 1
"""The schema version that this program needs: that of its last migration."""


def schema_version(session: Session) -> int:
    """The version of the tables; 0 where there are no tables."""
    try:
        rows = session.query("SELECT COALESCE(MAX(version), 0) FROM schema_version")
    except SchemaMismatch as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return 0
    return int(rows[0][0])


def require_schema(session: Session) -> None:
    """Check that the tables have the version that this program needs.

    Raises:
        SchemaMismatch: older (run ``countersink migrate``) or newer (upgrade countersink).
    """
    found = schema_version(session)
    if found > VERSION:
        raise SchemaMismatch(
            f"the tables have version {found}, this countersink knows versions up to {VERSION}:"
            " upgrade countersink",
            newer=True,
        )
    if found < VERSION:
        state = f"the tables have version {found}" if found else "there are no tables yet"
        raise SchemaMismatch(
            f"{state}, this countersink needs version {VERSION}: run `countersink migrate`"
        )


class KeptSession(AbstractContextManager["KeptSession", None]):
    """A session that is opened at its first use, and again after it was lost or idle for long. For
    one thread, except :meth:`abort`.

    Args:
        connect: opens the session.
        stop: called while the server is unavailable; true ends the wait of :meth:`run`.
        attempts: attempts of :meth:`run` at work that conflicts with other transactions.
    """

    def __init__(
        self,
        connect: Connect,
        stop: Callable[[], bool] = lambda: False,
        *,
        attempts: int = PATIENT_ATTEMPTS,
    ) -> None:
        self._connect = connect
        self._stop = stop
        self._attempts = attempts
        self._used_at = 0.0
        self._session: Session | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self) -> Session:
        """The open session; to be called for each transaction.

        Raises:
            StoreError: the session cannot be opened.
        """
        now = time.monotonic()
        if now - self._used_at > _FRESH_SECONDS:
            self.close()
        self._used_at = now
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether a session is open now."""
        return self._session is not None and not self._session.closed

    def open(self) -> Self:
        """Connect, without waiting for an unavailable server.

        Raises:
            StoreError: the session cannot be opened.
        """
        self()
        return self

    def run(
        self,
        work: Callable[Concatenate[Session, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """The result of ``work`` for the session and ``args``. After a Conflict or a lost server it
        is run again, so it must check first whether it was done already.

        Raises:
            Conflict: each attempt conflicted with another transaction.
            Unavailable: the server has not answered for :data:`PATIENCE_S`.
            StoreError, and the exceptions of ``work``.
        """
        deadline: float | None = None
        pause = _PAUSE_S
        while True:
            try:
                return rerun(partial(work, self(), *args, **kwargs), attempts=self._attempts)
            except Unavailable:
                self.close()
                now = time.monotonic()
                deadline = now + PATIENCE_S if deadline is None else deadline
                if now >= deadline or self._stop():
                    raise
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE_S)

    def used(self) -> None:
        """Note the end of a transaction that may have taken long."""
        self._used_at = time.monotonic()

    def abort(self) -> None:
        """Break the connection, from any thread: a waiting call raises Unavailable."""
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """Close the session; it can be opened again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def brief_session(where: Settings | str) -> KeptSession:
    """A session with short timeouts, for callers that lose their turn while they wait."""
    options = SessionOptions(read_timeout=BRIEF_READ_TIMEOUT_S, lock_wait=BRIEF_LOCK_WAIT_S)
    return KeptSession(partial(open_tables, where, **options))


def is_temporary(error: Exception) -> bool:
    """Whether ``error`` may end by itself or by an operator's action, so that waiting makes sense.

    BadData and DuplicateKey are bugs: rows are checked before they are sent, and duplicates are
    handled where they can occur. Tables of a newer version need an upgrade of this program.
    """
    if isinstance(error, SchemaMismatch):
        return not error.newer
    return isinstance(error, Unavailable | Conflict | Refused | Misconfigured)


_KEEP: Final = 8
"""Idle sessions that a pool keeps; any number can be in use."""


def _is_fresh(session: Session, idle: float) -> bool:
    # Of several hosts another one may take writes by now: this one lacks the counts of that one,
    # and reads on it raise no error.
    return idle < _FRESH_SECONDS and (session.keep_until == math.inf or session.takes_writes())


class Pool:
    """Sessions shared by threads, of which a few are kept between two uses. A forked child opens
    its own sessions.

    Args:
        connect: opens a session.
        usable: whether a kept session can be used after so many idle seconds.
    """

    def __init__(
        self,
        connect: Connect,
        usable: Callable[[Session, float], bool] = _is_fresh,
    ) -> None:
        self._connect = connect
        self._usable = usable
        self._kept: list[tuple[float, Session]] = []
        self._pid = 0
        self._check_fork()

    @contextmanager
    def lent(self) -> Iterator[Session]:
        """A session outside a transaction; the block ends each transaction that it begins.

        Raises:
            StoreError: no session can be opened: nothing was sent.
        """
        session = self._take() or self._connect()
        try:
            yield session
        finally:
            self._give_back(session)

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work``, which only reads, in one snapshot of the database; twice where a kept
        session turns out to be broken, as after a restart of the server.

        Raises:
            ReadInterrupted: it took too long, or a :class:`Cancellation` ended it.
        """
        return self.read_after(lambda session: None, work)

    def read_after(self, ready: Ready, work: Callable[[Session], Result]) -> Result:
        """As :meth:`read`; ``ready`` is called with the session before the snapshot is taken."""
        kept = self._take()
        if kept is not None:
            with suppress(Unavailable):
                return self._read(kept, ready, work)
        return self._read(self._connect(), ready, work)

    def close(self) -> None:
        """Close the kept sessions. The pool can be used again."""
        self._check_fork()
        with self._lock:
            kept, self._kept = self._kept, []
        for _, session in kept:
            session.close()

    def _read(self, session: Session, ready: Ready, work: Callable[[Session], Result]) -> Result:
        cancellation = _CURRENT.get()
        try:
            ready(session)
            with (
                nullcontext() if cancellation is None else cancellation.reading(session),
                session.transaction(snapshot=True),
            ):
                return work(session)
        finally:
            self._give_back(session)

    def _take(self) -> Session | None:
        """The usable kept session that was used last, or None; unusable ones are closed."""
        self._check_fork()
        while True:
            with self._lock:
                if not self._kept:
                    return None
                since, session = self._kept.pop()
            now = time.monotonic()
            if now < session.keep_until and self._usable(session, now - since):
                return session
            session.close()

    def _give_back(self, session: Session) -> None:
        """Keep a session, or close it where there are enough, or where it was interrupted: a late
        KILL QUERY may still come.
        """
        self._check_fork()
        usable = not (session.closed or session.interrupted)
        with self._lock:
            if usable and len(self._kept) < _KEEP:
                self._kept.append((time.monotonic(), session))
                return
        session.close(hard=session.interrupted)

    def _check_fork(self) -> None:
        """In a forked child, drop the parent's sessions, and its lock, which a thread may hold."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._kept = []
            self._pid = os.getpid()


_AGAIN_S: Final = 0.1
"""Seconds between two KILL QUERY: one that comes between two statements has no effect."""

_CURRENT: ContextVar["Cancellation | None"] = ContextVar("cancellation", default=None)


class Cancellation:
    """Cancellation of a thread's reads by a :class:`Pool` within :meth:`applied`.

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
        """Apply to the reads of this thread within the block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def cancel(self) -> None:
        """End the reads, from another thread; returns when they have ended, so that no KILL QUERY
        can end the statement of another read. Never raises.
        """
        self.cancelled = True
        while True:
            with self._lock:  # until the server has answered, no other read gets the session
                if self._session is None:
                    return
                self._ended.clear()
                interrupt(self._session)
            self._ended.wait(_AGAIN_S)

    @contextmanager
    def reading(self, session: Session) -> Iterator[None]:
        """Note the session that reads within the block.

        Raises:
            ReadInterrupted: the reads were cancelled before.
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
    """Whether the reads of this thread were cancelled."""
    found = _CURRENT.get()
    return found is not None and found.cancelled
