"""Hands out values of sequences: which MySQL errors are tried again and how often (``TRIES``),
uncertain outcomes, the messages when limits are reached, idle sessions.

With it the sessions that it uses, and what a process remembers of sequences. Nothing of that has to
be true: a statement that was made from it does its work only where it is, and otherwise changes
nothing, so that it is looked up again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from countersink.store.connection import Connect, Session, rerun
from countersink.store.errors import (
    CONFLICT,
    HELD,
    INTERRUPTED,
    Conflict,
    Refused,
    SequenceExhausted,
    SequenceUncertain,
    StoreError,
    Unavailable,
)
from countersink.store.in_app.connection import (
    AppConnection,
    Done,
    error_code,
    execute,
    may_keep_to_snapshot,
)
from countersink.store.sequences.options import (
    WITHOUT_PERIODS,
    PeriodLength,
    PeriodSql,
    Scheme,
    name_text,
    place_at,
    seconds_of,
)
from countersink.store.sequences.records import (
    SequenceTables,
    ValueRequest,
    go_on,
    hand_out,
    make_options,
)
from countersink.store.sessions import SharedSessions

TRIES: Final = 8
"""How often to look up a sequence that others are changing all the time."""
UNDONE: Final = CONFLICT - INTERRUPTED
"""Conflicts after which a statement on its own is known to have done nothing: run it again."""
NOT_BEGUN: Final = frozenset(
    {
        1047,  # WSREP has not yet prepared node for application use (Galera)
        1226,  # A resource limit of the user is reached
        1290,  # read_only: the connection leads to what is now a replica
        1792,  # Cannot execute statement in a READ ONLY transaction
        1836,  # Running in read-only mode
        3098,  # The member of the group cannot write (group replication)
        *HELD,
    }
)
"""Answers of a server that will not write, so nothing was handed out."""
LIMIT: Final = frozenset(
    {
        1264,  # Out of range value for column
        1690,  # BIGINT value is out of range in an expression
        3819,  # Check constraint is violated (MySQL)
        4025,  # CONSTRAINT failed (MariaDB)
    }
)
"""A value beyond the sequence's limits or 64 bits; see :func:`~.records.hand_out`."""
HANDING_IDLE_SECONDS: Final = 8 * 3600
"""The server ends such a session after so many idle seconds: they never hold a lock while idle."""
KEEP: Final = 8
"""Idle sessions kept; any number can be in use."""
PING_AFTER: Final = 10.0
"""Seconds of idleness after which a session is asked whether it is there: what lies between it and
the server may have forgotten it without a word."""
REMEMBERED: Final = 10_000
"""Sequences remembered; then all are forgotten. Each takes about 150 bytes."""


class _AtLimit(Exception):
    """A statement was undone for one of the codes of :data:`LIMIT`, the cause."""


Run = Callable[[str], Done]
"""Runs a statement; raises _AtLimit, and whatever else its caller is to see."""


class ValueAllocator:
    """Hands out values, on sessions of ours or on a connection of the application's.

    Args:
        sessions: at READ COMMITTED, of :func:`handing_sessions`.
        tables: where sequences are.
    """

    def __init__(self, sessions: SharedSessions, tables: SequenceTables) -> None:
        self._sessions = sessions
        self._tables = tables
        self.memory: Final = SequenceMemory()

    def take(self, name: bytes, asked: ValueRequest) -> range:
        """The values asked for, by a statement of its own.

        Raises:
            SequenceUncertain, SequenceExhausted, StoreError: as :meth:`Sequences.next`.
        """
        return self._take(name, asked, None)

    def take_in(self, connection: AppConnection, name: bytes, asked: ValueRequest) -> range:
        """The same in the transaction of ``connection``.

        Raises:
            SequenceExhausted, StoreError: as :meth:`Sequences.next_in`. And the driver's errors.
        """
        if not self.memory.knows(name):
            # Before the application's transaction asks for a row that is not there, which may lock
            # the gap where it would be. One that was made by others may be too new for it.
            own = may_keep_to_snapshot(connection)
            self._look_up(name, connection if own else None)
        return self._take(name, asked, connection)

    def _take(self, name: bytes, wanted: ValueRequest, connection: AppConnection | None) -> range:
        run = self._run if connection is None else partial(_run_in, connection)
        full_at: PeriodSql | None = None
        for _ in range(TRIES):
            asked = self._with_step(name, wanted)
            place = self.memory.place(name)
            try:
                done = run(hand_out(self._tables, name, place, asked))
            except _AtLimit as limit:
                done = self._go_on(run, name, place, asked)
                if not done.rows:
                    # No row, and no room for one; unless the sequence was changed in between.
                    if place == full_at:
                        raise _no_room(name, asked) from limit.__cause__
                    full_at = place
            if done.rows:
                return asked.values(done.insert_id)
            self._look_up(name, connection)
        clock = ""
        if connection is not None and place.condition:
            clock = ", or else the clock of the connection is not the server's (SET timestamp)"
        raise Conflict(
            f"the sequence {name_text(name)!r} was changed by others all the time{clock}: try again"
        )

    def _with_step(self, name: bytes, asked: ValueRequest) -> ValueRequest:
        """The server tells the last value only: where there are several the step must be known."""
        if asked.n == 1 or asked.step is not None:
            return asked
        known = replace(asked, step=self.memory.step(name), as_configured=True)
        if known.fits():
            return known
        self._look_up(name, None)  # the step may be another one by now
        known = replace(known, step=self.memory.step(name))
        if known.fits():
            return known
        raise SequenceExhausted(
            f"{asked.n} values of the sequence {name_text(name)!r} do not fit into 64 bits, since"
            f" they are {known.step} apart: ask for fewer, or configure another step"
        )

    def _go_on(self, run: Run, name: bytes, place: PeriodSql, asked: ValueRequest) -> Done:
        try:
            return run(go_on(self._tables, name, place, asked))
        except _AtLimit as limit:
            raise _exhausted(name, asked) from limit.__cause__

    def _look_up(self, name: bytes, connection: AppConnection | None) -> None:
        """Learn what the sequence is; a new one is given its options, nothing is handed out.

        With a ``connection`` on it: its transaction may have locked the place where they belong.
        """
        made = make_options(self._tables, name)
        with self._sessions.lent() as session:
            if self.memory.look_up(session, name):
                return
            if connection is None:
                rerun(partial(session.execute, made))
        if connection is not None:
            execute(connection, made)
        self.memory.made(name)

    def _run(self, sql: str) -> Done:
        with self._sessions.lent() as session:
            return rerun(partial(_run_once, session, sql))


def _run_once(session: Session, sql: str) -> Done:
    try:
        return session.hand_out(sql)
    except Conflict as error:
        if error.code in UNDONE:
            raise
        raise _uncertain(error) from error
    except Unavailable as error:
        if error.code in NOT_BEGUN:
            raise
        raise _uncertain(error) from error
    except StoreError as error:
        if error.code in LIMIT:
            raise _AtLimit from error
        if not error.code:
            # Not the server's answer: the driver could not make sense of it.
            session.close(hard=True)
            raise _uncertain(error) from error
        raise


def _run_in(connection: AppConnection, sql: str) -> Done:
    try:
        return execute(connection, sql)
    except Exception as error:  # whichever driver it is
        if error_code(error) in LIMIT:
            raise _AtLimit from error
        raise


def _uncertain(error: StoreError) -> SequenceUncertain:
    return SequenceUncertain(
        "the connection broke, or the statement was interrupted, so the server may have handed out"
        f" a value of which it could not tell ({error}). It will not hand it out again: ask for the"
        " next one",
        code=error.code,
    )


def _exhausted(name: bytes, asked: ValueRequest) -> SequenceExhausted:
    what, advice = "value", "set or reset it"
    if asked.n > 1:
        what, advice = f"block of {asked.n} values", "ask for fewer, set or reset it"
    return SequenceExhausted(
        f"the sequence {name_text(name)!r} has no {what} left within its limits: {advice}, or"
        " configure other limits"
    )


def _no_room(name: bytes, asked: ValueRequest) -> SequenceExhausted:
    what = "value" if asked.n == 1 else f"block of {asked.n} values"
    return SequenceExhausted(
        f"the sequence {name_text(name)!r} has no value yet, and its first {what} would be beyond"
        " its limits: give another start, or configure other limits"
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a sequence.

    Attributes:
        scheme: when it begins anew.
        step: the configured one.
    """

    scheme: Scheme = WITHOUT_PERIODS
    step: int = 1


_ORDINARY: Final = _Known()


class SequenceMemory:
    """The sequences that were looked up lately, and the server's clock. Thread-safe."""

    def __init__(self) -> None:
        # No lock, which a fork could leave locked: each access is a single one.
        self._known: dict[bytes, _Known] = {}
        # How far the server's clock is ahead of this process's monotonic one. The machine's own
        # clock may be wrong, and may be set. Known as soon as any sequence is.
        self._ahead = 0.0

    def knows(self, name: bytes) -> bool:
        """Whether the sequence was seen to have options."""
        return name in self._known

    def place(self, name: bytes) -> PeriodSql:
        """The period of a statement for this sequence, as far as is known.

        Raises:
            Refused: the sequence's time zone is unknown on this machine.
        """
        scheme = self._known.get(name, _ORDINARY).scheme
        try:
            return place_at(scheme, time.monotonic() + self._ahead)
        except Refused:
            self.forget(name)  # it may be configured anew meanwhile, or tzdata be installed
            raise

    def step(self, name: bytes) -> int:
        """The sequence's configured step, as far as is known."""
        return self._known.get(name, _ORDINARY).step

    def look_up(self, session: Session, name: bytes) -> bool:
        """Learn it anew; False if the sequence has no options."""
        rows = session.query(
            "SELECT UTC_TIMESTAMP(6), o.period, o.time_zone, o.step FROM (SELECT 1) AS one"
            " LEFT JOIN sequence_option AS o ON o.name = %s",
            (name,),
        )
        ((moment, period, time_zone, step),) = rows
        self._ahead = seconds_of(moment) - time.monotonic()
        if period is None:
            self.forget(name)
            return False
        self._remember(name, _Known(Scheme(cast(PeriodLength, period), time_zone), int(step)))
        return True

    def made(self, name: bytes) -> None:
        """The sequence was given the options of one that nobody has configured."""
        self._remember(name, _ORDINARY)

    def forget(self, name: bytes) -> None:
        """The sequence is not known any more."""
        self._known.pop(name, None)

    def _remember(self, name: bytes, known: _Known) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[name] = known


def handing_sessions(connect: Connect) -> SharedSessions:
    """Sessions that hand out values.

    A value whose reply is lost is lost. That must not happen to whoever merely comes back after a
    while, so a connection that the server has ended meanwhile is found out before anything is sent.
    """
    return SharedSessions(connect, KEEP, _is_alive)


def _is_alive(session: Session, idle: float) -> bool:
    """Whether it was alive a moment ago."""
    return (idle < PING_AFTER and session.silent()) or session.answers()
