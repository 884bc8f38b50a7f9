"""Sessions that are used again: ``KeptSession`` for one thread, whose ``run`` waits while MySQL is
away, and ``Pool`` for several. ``Cancellation`` ends reads. Also the check of the tables' version.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
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
from countersink.runtime.process import Closable

PATIENCE_S: Final = 60.0
"""Seconds for which :meth:`KeptSession.run` waits for a server that does not answer."""
PATIENT_ATTEMPTS: Final = 20
"""Number of times that :meth:`KeptSession.run` tries work that meets a Conflict each time."""
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
BRIEF_READ_TIMEOUT_S: Final = 3.0
"""Seconds without a reply after which a :func:`brief_session` counts the server as unavailable."""
BRIEF_LOCK_WAIT_S: Final = 2
"""Seconds that a statement of a :func:`brief_session` waits for a lock."""

_FRESH_SECONDS: Final = IDLE_SECONDS / 2
"""Idle seconds up to which a session is reused. After more the server may be about to end it."""

Result = TypeVar("Result")
Params = ParamSpec("Params")
Ready = Callable[[Session], None]
"""A function that prepares a session before a snapshot is taken. It may raise StoreError."""


def open_tables(where: Settings | str, **options: Unpack[SessionOptions]) -> Session:
    """Log in, check that the tables have the version this program needs, and return the session.

    Args:
        where: the URL or the settings of the database.
        options: timeouts, isolation level and other options of the session.

    Raises:
        SchemaMismatch: there are no tables, or they have another version.
        StoreError: the login or the check failed.
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
"""The version of the tables that this program needs: the version of its last migration."""


def schema_version(session: Session) -> int:
    """Return the version of the tables; 0 if there are no tables."""
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
        SchemaMismatch: there are no tables, or older or newer ones. The message says what to do.
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


class KeptSession(Closable):
    """A session for one thread. It is opened at its first use, and opened again if it is lost or
    idle for too long. Only :meth:`abort` may be called by other threads.

    Args:
        connect: opens the session.
        stop: called by :meth:`run` after an Unavailable. If it returns true, ``run`` gives up.
        attempts: number of calls that raise Conflict after which :meth:`run` gives up.
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

    def __call__(self) -> Session:
        """Return the session, for one transaction. Open a new one if none is open or it idled 15 s.

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
        """Open the session now, and return this object. If the server is away, raise immediately.

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
        """Call ``work`` with the session and the other arguments, and return its result. ``work``
        is called again after Conflict or Unavailable, so it must first check whether an earlier
        call was committed. All other exceptions are raised at once.

        Raises:
            Conflict: each attempt conflicted with another transaction.
            Unavailable: the server was unavailable, and ``stop`` returned true, or
                :data:`PATIENCE_S` had passed since the first Unavailable."""
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
        """Record that a transaction ends now, so that its duration does not count as idle time."""
        self._used_at = time.monotonic()

    def abort(self) -> None:
        """Break the connection. Any thread may call this. A running query raises Unavailable."""
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """Close the session. The next use opens it again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def brief_session(where: Settings | str) -> KeptSession:
    """Return a KeptSession for short work, not open yet. It waits 3 s for a reply, 2 for a lock."""
    options = SessionOptions(read_timeout=BRIEF_READ_TIMEOUT_S, lock_wait=BRIEF_LOCK_WAIT_S)
    return KeptSession(partial(open_tables, where, **options))


def is_temporary(error: Exception) -> bool:
    """Return whether ``error`` may go away by itself or after an operator has acted, so that a
    worker or a job tries again: True for Unavailable, Conflict, Refused and Misconfigured, and for
    SchemaMismatch if the tables are missing or old. False for others, also for newer tables.
    """
    if isinstance(error, SchemaMismatch):
        return not error.newer
    return isinstance(error, Unavailable | Conflict | Refused | Misconfigured)


_KEEP: Final = 8
"""Maximum of idle sessions that a pool keeps. Any number of sessions can be in use."""


def _is_fresh(session: Session, idle: float) -> bool:
    # Of several hosts another one may take writes by now: this one lacks the counts of that one,
    # and reads on it raise no error.
    return idle < _FRESH_SECONDS and (session.keep_until == math.inf or session.takes_writes())


class Pool:
    """A pool of sessions that threads share: each session is used by one thread at a time, and a
    few idle ones are kept. A forked child opens its own sessions.

    Args:
        connect: opens a session, at REPEATABLE READ if :meth:`read` is used.
        usable: gets a kept session and its idle seconds, and returns whether it can be used again.
            The default requires less than 15 s and, if the URL has several hosts, a server that
            still takes writes.
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
        """Yield a session in no transaction. The block must end any transaction that it begins.

        Raises:
            StoreError: no session can be opened. The block was not run.
        """
        session = self._take() or self._connect()
        try:
            yield session
        finally:
            self._give_back(session)

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Call ``work``, which only reads, in one snapshot of the database, and return its result.
        After Unavailable on a kept session, ``work`` is called once more, with a new session.

        Raises:
            StoreError: a query failed; ReadInterrupted if it took too long or was cancelled.
        """
        return self.read_after(lambda session: None, work)

    def read_after(self, ready: Ready, work: Callable[[Session], Result]) -> Result:
        """Call ``ready(session)``, which may wait or raise; then ``work`` as :meth:`read` does."""
        kept = self._take()
        if kept is not None:
            with suppress(Unavailable):
                return self._read(kept, ready, work)
        return self._read(self._connect(), ready, work)

    def close(self) -> None:
        """Close the idle sessions that the pool keeps. The pool can be used again."""
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
        """Return the usable kept session used last, or None. Close unusable ones used later."""
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
        """Keep a session after its use. Close it instead if it is broken, if it was interrupted
        (a late KILL QUERY may still come), or if the pool keeps enough sessions.
        """
        self._check_fork()
        usable = not (session.closed or session.interrupted)
        with self._lock:
            if usable and len(self._kept) < _KEEP:
                self._kept.append((time.monotonic(), session))
                return
        session.close(hard=session.interrupted)

    def _check_fork(self) -> None:
        """In a forked child, forget the parent's sessions, and replace the lock, which another
        thread of the parent may have held during the fork.
        """
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._kept = []
            self._pid = os.getpid()


_AGAIN_S: Final = 0.1
"""Seconds between two KILL QUERY. One that comes between two statements has no effect."""

_CURRENT: ContextVar["Cancellation | None"] = ContextVar("cancellation", default=None)


class Cancellation:
    """A way to end another thread's reads through a :class:`Pool`: after :meth:`cancel`, its reads
    in a block of :meth:`applied` raise ReadInterrupted.

    Attributes:
        cancelled: whether :meth:`cancel` was called.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._ended = threading.Event()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let :meth:`cancel` end this thread's reads in the block; they raise ReadInterrupted."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def cancel(self) -> None:
        """End the running read, and refuse later reads in :meth:`applied`. Return when the read
        has ended, so that no KILL QUERY can hit another read. This never raises.
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
        """Let :meth:`cancel` interrupt this session within the block. Called by the pool.

        Raises:
            ReadInterrupted: :meth:`cancel` was called before.
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
    """Return whether the reads of this thread were cancelled: False outside of ``applied``."""
    found = _CURRENT.get()
    return found is not None and found.cancelled
