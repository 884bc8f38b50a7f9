"""Sessions kept and opened again: that of one thread (``KeptSession``: waiting while the database
is away, ``PATIENCE_S``, pauses), those shared by threads (``Pool``: how many idle ones), short
time-outs, the check of the tables' version, and cancelling reads."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from countersink.database.errors import (
    NO_SUCH_TABLE,
    Conflict,
    Misconfigured,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    Unavailable,
)
from countersink.database.session import (
    IDLE_SECONDS,
    Connect,
    Session,
    SessionOptions,
    connect,
    rerun,
)
from countersink.database.url import Settings

PATIENCE_S: Final = 60.0
"""Seconds to wait for a server that was there before."""
PATIENT_ATTEMPTS: Final = 20
"""How often some work is tried where others are in the way."""
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
BRIEF_READ_TIMEOUT_S: Final = 3.0
"""Seconds that MySQL has to answer where whoever waits for it loses its turn."""
BRIEF_LOCK_WAIT_S: Final = 2
"""Seconds that others may hold up such a statement."""

_FRESH_SECONDS: Final = IDLE_SECONDS / 2
"""A session idle for longer is not trusted: the server is about to end it."""

Result = TypeVar("Result")
Params = ParamSpec("Params")
Ready = Callable[[Session], None]
"""Makes a session ready for a snapshot; raises StoreError where it cannot be."""


def open_tables(where: Settings | str, **options: Unpack[SessionOptions]) -> Session:
    """Log in as :func:`countersink.database.session.connect` does, and check the tables.

    Raises:
        SchemaMismatch: there are none, or others.
        StoreError: as connecting.
    """
    session = connect(where, **options)
    try:
        require_schema(session)
    except BaseException:
        session.close()
        raise
    if session.checked or options.get("to_read", False):
        return session
    session.close()  # the tables were made since it logged in
    return open_tables(where, **options)


VERSION: Final = 1
"""The schema's version that this program works with: that of the last migration."""


def schema_version(session: Session) -> int:
    """The version of the tables; 0 where there are none."""
    try:
        rows = session.query("SELECT COALESCE(MAX(version), 0) FROM schema_version")
    except SchemaMismatch as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return 0
    return int(rows[0][0])


def require_schema(session: Session) -> None:
    """Check that the tables are of the version that this program knows.

    Raises:
        SchemaMismatch: older (run ``countersink migrate``) or newer (upgrade countersink).
    """
    found = schema_version(session)
    if found > VERSION:
        raise SchemaMismatch(
            f"the tables have version {found}, this countersink knows up to {VERSION}:"
            " upgrade countersink",
            newer=True,
        )
    if found < VERSION:
        what = f"the tables have version {found}" if found else "there are no tables yet"
        raise SchemaMismatch(
            f"{what}, this countersink needs version {VERSION}: run `countersink migrate`"
        )


class KeptSession(AbstractContextManager["KeptSession", None]):
    """A session that is opened when it is needed, and again after it was lost, or not used for
    long. A context manager; for one thread, but for :meth:`abort`.

    Args:
        connect: opens one.
        stop: asked while the server is away; true: :meth:`run` waits no longer.
        attempts: how often :meth:`run` tries what meets another transaction.
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
        """The session. To be asked for anew for each transaction.

        Raises:
            StoreError: as opening it.
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
        """Whether there is a session now."""
        return self._session is not None and not self._session.closed

    def open(self) -> Self:
        """Connect, without patience.

        Raises:
            StoreError: it cannot be.
        """
        self()
        return self

    def run(
        self,
        work: Callable[Concatenate[Session, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """What ``work`` returns, given the session and ``args``; it is run again where another
        transaction was in the way or the server was lost: so it must look first what it has done
        already.

        Raises:
            Conflict: others were in the way at each attempt.
            Unavailable: the server has been away for :data:`PATIENCE_S`.
            StoreError, and whatever ``work`` raises.
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
        """Note that a transaction has ended which may have taken long."""
        self._used_at = time.monotonic()

    def abort(self) -> None:
        """Break the connection, from any thread: whoever waits on it gets Unavailable."""
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """Close it; it can be opened again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def brief_session(where: Settings | str) -> KeptSession:
    """A session with short time-outs: a server that hangs soon counts as gone."""
    return KeptSession(
        partial(
            open_tables,
            where,
            read_timeout=BRIEF_READ_TIMEOUT_S,
            lock_wait=BRIEF_LOCK_WAIT_S,
        )
    )


def passes(error: Exception) -> bool:
    """Whether ``error`` may go away by itself or by an operator's hand, so that one waits.

    BadData and DuplicateKey are none of these: rows are checked before they are sent, and the store
    deals with the other, so one that gets out is a bug. Nor are tables that are too new: this
    program has to be upgraded.
    """
    if isinstance(error, SchemaMismatch):
        return not error.newer
    return isinstance(error, Unavailable | Conflict | Refused | Misconfigured)


_KEEP: Final = 8
"""Idle sessions kept; any number can be in use."""


def _is_fresh(session: Session, idle: float) -> bool:
    # Of several hosts another one may take writes by now: what was counted there is missing here,
    # and who only reads gets no error.
    return idle < _FRESH_SECONDS and (session.keep_until == math.inf or session.takes_writes())


class Pool:
    """Sessions shared by threads, some of which are kept between two uses; a forked child makes its
    own.

    Args:
        connect: makes a new one.
        usable: whether one is good still that has been idle for so many seconds.
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
        """A session, outside a transaction, and left so.

        Raises:
            StoreError: there is none, and none can be made: nothing was sent.
        """
        session = self._take() or self._connect()
        try:
            yield session
        finally:
            self._give_back(session)

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in one snapshot of the database.

        A kept session may have died unnoticed (a restarted server): then once more on a new one.
        ``work`` only reads.

        Raises:
            ReadInterrupted: it took too long, or :mod:`countersink.database.sessions` ended it.
        """
        return self.read_after(lambda session: None, work)

    def read_after(self, first: Ready, work: Callable[[Session], Result]) -> Result:
        """As :meth:`read`; ``first`` is run on the session before the snapshot is taken.

        Raises:
            ReadInterrupted: it took too long, or :mod:`countersink.database.sessions` ended it.
        """
        kept = self._take()
        if kept is not None:
            with suppress(Unavailable):
                return self._read(kept, first, work)
        return self._read(self._connect(), first, work)

    def close(self) -> None:
        """Close the kept sessions. The pool can be used again."""
        self._check_fork()
        with self._lock:
            kept, self._kept = self._kept, []
        for _, session in kept:
            session.close()

    def _read(self, session: Session, first: Ready, work: Callable[[Session], Result]) -> Result:
        cancellation = _CURRENT.get()
        try:
            first(session)
            with (
                nullcontext() if cancellation is None else cancellation.reading(session),
                session.transaction(snapshot=True),
            ):
                return work(session)
        finally:
            self._give_back(session)

    def _take(self) -> Session | None:
        """Of the kept sessions the one that was used last, if it is usable; others are closed."""
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
        """Keep a session, if there is room for one more and it is not closed; nor is one that was
        interrupted: the server may still have it in mind.
        """
        self._check_fork()
        fit = not (session.closed or session.interrupted)
        with self._lock:
            if fit and len(self._kept) < _KEEP:
                self._kept.append((time.monotonic(), session))
                return
        session.close(hard=session.interrupted)

    def _check_fork(self) -> None:
        """In a forked child forget the parent's sessions, and the lock a thread may have held."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._kept = []
            self._pid = os.getpid()


_AGAIN_S: Final = 0.1
"""Seconds until the next KILL QUERY: one that comes between two statements ends none."""

_CURRENT: ContextVar["Cancellation | None"] = ContextVar("cancellation", default=None)


class Cancellation:
    """Ends the reads of one thread: those of a :class:`countersink.database.sessions.Pool` within
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
