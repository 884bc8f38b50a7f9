"""Sessions kept and opened again: idle pool of readers (how many), waiting while the database
is away (``PATIENCE_S``, pauses), short time-outs, and cancelling reads."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from countersink.store.connection import (
    IDLE_SECONDS,
    Connect,
    Session,
    SessionOptions,
    connect,
    rerun,
)
from countersink.store.errors import (
    Conflict,
    Misconfigured,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    Unavailable,
)
from countersink.store.migrate import require_schema
from countersink.store.settings import Settings

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

Result = TypeVar("Result")
Params = ParamSpec("Params")


def open_tables(where: Settings | str, **options: Unpack[SessionOptions]) -> Session:
    """Log in as :func:`countersink.store.connection.connect` does, and check the tables.

    Raises:
        SchemaMismatch: there are none, or others.
        StoreError: as connecting.
    """
    session = connect(where, **options)
    try:
        require_schema(session)
        if not session.checked and not options.get("to_read", False):
            # The tables were made since it logged in.
            session.close()
            session = connect(where, **options)
            require_schema(session)
    except BaseException:
        session.close()
        raise
    return session


class KeptSession:
    """A session that is opened when it is needed, and again after it was lost, or not used for
    long. For one thread, but for :meth:`abort`.

    Args:
        connect: opens one.
        idle_seconds: the server ends the session, with its locks, after so many idle seconds.
    """

    def __init__(self, connect: Connect, *, idle_seconds: int = IDLE_SECONDS) -> None:
        self._connect = connect
        self._idle_seconds = idle_seconds
        self._used_at = 0.0
        self._session: Session | None = None

    def __call__(self) -> Session:
        """The session. To be asked for anew for each transaction.

        Raises:
            StoreError: as opening it.
        """
        now = time.monotonic()
        if now - self._used_at > self._idle_seconds / 2:
            self.close()  # the server is about to end it, or has
        self._used_at = now
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    def used(self) -> None:
        """Note that a transaction has ended which may have taken long."""
        self._used_at = time.monotonic()

    def abort(self) -> None:
        """Break the connection, from any thread: whoever waits on it gets Unavailable."""
        session = self._session
        if session is not None:
            session.abort()

    def close(self, *, hard: bool = False) -> None:
        """Close it, ``hard`` without a word to the server; it can be opened again."""
        session, self._session = self._session, None
        if session is not None:
            session.close(hard=hard)


class PatientSession:
    """Runs work on a session, and again where another transaction was in the way or the server was
    lost: so the work must look first what it has done already. A context manager; for one thread.

    Args:
        connect: opens a session.
        stop: asked while the server is away; true: wait no longer.
        attempts: how often to try what meets another transaction.
    """

    def __init__(
        self,
        connect: Connect,
        stop: Callable[[], bool] = lambda: False,
        *,
        attempts: int = PATIENT_ATTEMPTS,
    ) -> None:
        self._session = KeptSession(connect)
        self._stop = stop
        self._attempts = attempts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; it can be used again."""
        self._session.close()

    def open(self) -> Self:
        """Connect, without patience.

        Raises:
            StoreError: it cannot be.
        """
        self._session()
        return self

    def run(
        self,
        work: Callable[Concatenate[Session, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """What ``work`` returns, given the session and ``args``.

        Raises:
            Conflict: others were in the way at each attempt.
            Unavailable: the server has been away for :data:`PATIENCE_S`.
            StoreError, and whatever ``work`` raises.
        """
        deadline: float | None = None
        pause = _PAUSE_S
        while True:
            try:
                return rerun(
                    partial(work, self._session(), *args, **kwargs), attempts=self._attempts
                )
            except Unavailable:
                self._session.close()
                now = time.monotonic()
                deadline = now + PATIENCE_S if deadline is None else deadline
                if now >= deadline or self._stop():
                    raise
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE_S)


def brief_session(where: Settings | str, *, idle_seconds: int = IDLE_SECONDS) -> KeptSession:
    """A session with short time-outs: a server that hangs soon counts as gone."""

    connect = partial(
        open_tables,
        where,
        read_timeout=BRIEF_READ_TIMEOUT_S,
        lock_wait=BRIEF_LOCK_WAIT_S,
        idle_seconds=idle_seconds,
    )
    return KeptSession(connect, idle_seconds=idle_seconds)


def passes(error: Exception) -> bool:
    """Whether ``error`` may go away by itself or by an operator's hand, so that one waits.

    BadData and DuplicateKey are none of these: rows are checked before they are sent, and the store
    deals with the other, so one that gets out is a bug. Nor are tables that are too new: this
    program has to be upgraded.
    """
    if isinstance(error, SchemaMismatch):
        return not error.newer
    return isinstance(error, Unavailable | Conflict | Refused | Misconfigured)


_KEEP: Final = 4
"""Idle sessions kept; any number can be in use."""
_FRESH_SECONDS: Final = IDLE_SECONDS / 2
"""A session idle for longer is not trusted: the server is about to end it."""


class SharedSessions:
    """Sessions shared by threads, some of which are kept between two uses; a forked child makes its
    own.

    Args:
        connect: makes a new one.
        keep: so many at most; any number can be in use.
        usable: whether one is good still that has been idle for so many seconds.
    """

    def __init__(
        self, connect: Connect, keep: int, usable: Callable[[Session, float], bool]
    ) -> None:
        self._connect = connect
        self._most = keep
        self._usable = usable
        self._kept: list[tuple[float, Session]] = []
        self._forget()

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def lent(self) -> Iterator[Session]:
        """A session, outside a transaction, and left so.

        Raises:
            StoreError: there is none, and none can be made: nothing was sent.
        """
        session = self.take() or self._connect()
        try:
            yield session
        finally:
            self.give_back(session)

    def take(self) -> Session | None:
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

    def give_back(self, session: Session) -> None:
        """Keep a session, if there is room for one more and it is not closed."""
        if session.closed:
            return
        self._check_fork()
        with self._lock:
            if len(self._kept) < self._most:
                self._kept.append((time.monotonic(), session))
                return
        session.close()

    def close(self) -> None:
        """Close the kept sessions. Others can be given back."""
        self._check_fork()
        with self._lock:
            kept, self._kept = self._kept, []
        for _, session in kept:
            session.close()

    def _check_fork(self) -> None:
        """In a forked child forget the parent's sessions, and the lock a thread may have held."""
        if self._pid != os.getpid():
            self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept = []
        self._pid = os.getpid()


def _is_fresh(session: Session, idle: float) -> bool:
    if idle >= _FRESH_SECONDS:
        return False
    # Of several hosts another one may take writes by now: what was counted there is missing here,
    # and who only reads gets no error.
    return session.keep_until == math.inf or session.takes_writes()


class Pool:
    """Sessions for reading, shared by threads; a forked child makes its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._sessions = SharedSessions(connect, _KEEP, _is_fresh)

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in one snapshot of the database.

        A kept session may have died unnoticed (a restarted server): then once more on a new one.
        ``work`` only reads.

        Raises:
            ReadInterrupted: it took too long, or :mod:`countersink.store.sessions` ended it.
        """
        return self.read_after(lambda session: None, work)

    def read_after(
        self, first: Callable[[Session], None], work: Callable[[Session], Result]
    ) -> Result:
        """As :meth:`read`; ``first`` is run on the session before the snapshot is taken.

        Raises:
            ReadInterrupted: it took too long, or :mod:`countersink.store.sessions` ended it.
        """
        kept = self._sessions.take()
        if kept is not None:
            try:
                return self._run(kept, first, work)
            except Unavailable:
                kept.close(hard=True)
        return self._run(self._connect(), first, work)

    def close(self) -> None:
        """Close the kept sessions. The pool can be used again."""
        self._sessions.close()

    def _run(
        self,
        session: Session,
        first: Callable[[Session], None],
        work: Callable[[Session], Result],
    ) -> Result:
        cancellation = current()
        try:
            first(session)
            with (
                nullcontext() if cancellation is None else cancellation.reading(session),
                session.transaction(snapshot=True),
            ):
                return work(session)
        finally:
            self._give_back(session)

    def _give_back(self, session: Session) -> None:
        # What was interrupted is not kept: the server may still have it in mind.
        if session.interrupted:
            session.close(hard=True)
        else:
            self._sessions.give_back(session)


_AGAIN_S: Final = 0.1
"""Seconds until the next KILL QUERY: one that comes between two statements ends none."""

_CURRENT: ContextVar["Cancellation | None"] = ContextVar("cancellation", default=None)


class Cancellation:
    """Ends the reads of one thread: those of a :class:`countersink.store.sessions.Pool` within
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


def current() -> Cancellation | None:
    """What ends the reads of this thread; None: nothing does."""
    return _CURRENT.get()
