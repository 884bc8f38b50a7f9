"""Handing out values: what to do with whatever the server says."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from countersink.store import app_connection
from countersink.store.app_connection import AppConnection, Done
from countersink.store.errors import (
    Conflict,
    SequenceExhausted,
    SequenceUncertain,
    StoreError,
    Unavailable,
)
from countersink.store.rerun import rerun
from countersink.store.sequences.arguments import name_text
from countersink.store.sequences.boundaries import Place
from countersink.store.sequences.connections import HandingSession, Sessions
from countersink.store.sequences.memory import Memory
from countersink.store.sequences.statements import Asked, Tables, go_on, hand_out, make_options

TRIES: Final = 8
"""How often to look up a sequence that others are changing all the time."""

UNDONE: Final = frozenset(
    {
        1020,  # Record has changed since last read
        1205,  # Lock wait timeout
        1213,  # Deadlock, or a lost certification on Galera
        1614,  # XA_RBDEADLOCK
        1637,  # Too many active concurrent transactions
        3101,  # Rolled back by group replication
        3572,  # NOWAIT met a lock
    }
)
"""Conflicts after which a statement on its own is known to have done nothing: run it again."""
NOT_BEGUN: Final = frozenset(
    {
        1047,  # WSREP has not yet prepared node for application use (Galera)
        1226,  # A resource limit of the user is reached
        1290,  # read_only: the connection leads to what is now a replica
        1792,  # Cannot execute statement in a READ ONLY transaction
        1836,  # Running in read-only mode
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
"""A value beyond the sequence's limits or 64 bits; see :func:`~.statements.hand_out`."""


class AtLimit(Exception):
    """A statement was undone for one of the codes of :data:`LIMIT`, the cause."""


Run = Callable[[str], Done]
"""Runs a statement; raises AtLimit, and whatever else its caller is to see."""


class Handing:
    """Hands out values, on sessions of ours or on a connection of the application's.

    Args:
        sessions: at READ COMMITTED.
        tables: where sequences are.
    """

    def __init__(self, sessions: Sessions, tables: Tables) -> None:
        self._sessions = sessions
        self._tables = tables
        self.memory: Final = Memory()

    def take(self, name: bytes, asked: Asked) -> range:
        """The values asked for, by a statement of its own.

        Raises:
            SequenceUncertain, SequenceExhausted, StoreError: as :meth:`Sequences.next`.
        """
        return self._take(name, asked, None)

    def take_in(self, connection: AppConnection, name: bytes, asked: Asked) -> range:
        """The same in the transaction of ``connection``.

        Raises:
            SequenceExhausted, StoreError: as :meth:`Sequences.next_in`. And the driver's errors.
        """
        if not self.memory.knows(name):
            # Before the application's transaction asks for a row that is not there, which may lock
            # the gap where it would be. One that was made by others may be too new for it.
            own = app_connection.may_keep_to_snapshot(connection)
            self._look_up(name, connection if own else None)
        return self._take(name, asked, connection)

    def _take(self, name: bytes, wanted: Asked, connection: AppConnection | None) -> range:
        run = self._run if connection is None else partial(_run_in, connection)
        full_at: Place | None = None
        for _ in range(TRIES):
            asked = self._with_step(name, wanted)
            place = self.memory.place(name)
            try:
                done = run(hand_out(self._tables, name, place, asked))
            except AtLimit as limit:
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

    def _with_step(self, name: bytes, asked: Asked) -> Asked:
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

    def _go_on(self, run: Run, name: bytes, place: Place, asked: Asked) -> Done:
        try:
            return run(go_on(self._tables, name, place, asked))
        except AtLimit as limit:
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
            app_connection.execute(connection, made)
        self.memory.made(name)

    def _run(self, sql: str) -> Done:
        with self._sessions.lent() as session:
            return rerun(partial(_run_once, session, sql))


def _run_once(session: HandingSession, sql: str) -> Done:
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
            raise AtLimit from error
        if not error.code:
            # Not the server's answer: the driver could not make sense of it.
            session.close(hard=True)
            raise _uncertain(error) from error
        raise


def _run_in(connection: AppConnection, sql: str) -> Done:
    try:
        return app_connection.execute(connection, sql)
    except Exception as error:  # whichever driver it is
        if app_connection.error_code(error) in LIMIT:
            raise AtLimit from error
        raise


def _uncertain(error: StoreError) -> SequenceUncertain:
    return SequenceUncertain(
        "the connection broke, or the statement was interrupted, so the server may have handed out"
        f" a value of which it could not tell ({error}). It will not hand it out again: ask for the"
        " next one",
        code=error.code,
    )


def _exhausted(name: bytes, asked: Asked) -> SequenceExhausted:
    what, advice = "value", "set or reset it"
    if asked.n > 1:
        what, advice = f"block of {asked.n} values", "ask for fewer, set or reset it"
    return SequenceExhausted(
        f"the sequence {name_text(name)!r} has no {what} left within its limits: {advice}, or"
        " configure other limits"
    )


def _no_room(name: bytes, asked: Asked) -> SequenceExhausted:
    what = "value" if asked.n == 1 else f"block of {asked.n} values"
    return SequenceExhausted(
        f"the sequence {name_text(name)!r} has no value yet, and its first {what} would be beyond"
        " its limits: give another start, or configure other limits"
    )
