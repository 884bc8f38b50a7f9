"""Sequences: numbers handed out once, in one statement. ``Sequences``, for programs: ``next``,
``next_block``, ``next_in``, ``peek``, ``set``, ``reset``, ``configure``; checks are in
``options.py``, refusals of changes in ``records.py``. Hands out values of sequences: which MySQL
errors leave the outcome uncertain, and idle sessions.

The table ``sequence`` has a base row per sequence, which is made when it is first used and holds
its options, and a row per period. Whoever hands out a value locks the base row.

One statement does where there are no periods; a first value, and others, take a transaction.
"""

import builtins
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Final, TypeVar, Unpack

from countersink.database.app_connection import AppConnection, as_one, execute, query
from countersink.database.errors import (
    HELD,
    Conflict,
    ReadInterrupted,
    StoreError,
    Unavailable,
    UnknownZone,
)
from countersink.database.session import Connect, Session, rerun, rerun_transaction
from countersink.database.sessions import Pool
from countersink.database.sql import quoted
from countersink.sequences import records
from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
from countersink.sequences.options import (
    OptionChanges,
    ValueRequest,
    check_changes,
    name_bytes,
    number,
)
from countersink.sequences.records import ADDED, TABLE, Period, Sequence, add, hand_out

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
HANDING_IDLE_SECONDS: Final = 8 * 3600
"""The server ends such a session after so many idle seconds: they never hold a lock while idle."""
PING_AFTER: Final = 10.0
"""Seconds of idleness after which a session is asked whether it is there: what lies between it and
the server may have forgotten it without a word."""


def take(sessions: Pool, table: str, name: bytes, asked: ValueRequest) -> range:
    """The values asked for, on a session of ours, at READ COMMITTED; a Conflict has done nothing.

    Raises:
        SequenceUncertain, SequenceExhausted, StoreError: as :meth:`Sequences.next`.
    """
    with sessions.lent() as session:
        try:
            done = session.hand_out(add(table, name, asked))
            if done.rows == ADDED:
                return _values(done.insert_id, asked)
            with session.transaction():
                return hand_out(session.hand_out, session.query, table, name, asked)
        except StoreError as error:
            if not _leaves_it_open(error):
                raise
            session.close(hard=True)
            raise SequenceUncertain(
                "the connection broke, or the statement was interrupted, so the server may have"
                f" handed out a value of which it could not tell ({error}). It will not hand it out"
                " again: ask for the next one",
                code=error.code,
            ) from error


def take_in(connection: AppConnection, table: str, name: bytes, asked: ValueRequest) -> range:
    """The same in the transaction of ``connection``.

    Raises:
        SequenceExhausted, StoreError: as :meth:`Sequences.next_in`. And the driver's errors.
    """
    done = execute(connection, add(table, name, asked))
    if done.rows == ADDED:
        return _values(done.insert_id, asked)
    with as_one(connection):
        return hand_out(
            partial(execute, connection), partial(query, connection), table, name, asked
        )


def _values(last: int, asked: ValueRequest) -> range:
    """The values, from the last one; a step that is not given is 1 where there are several."""
    step = asked.step or 1
    return range(last - (asked.n - 1) * step, last + step, step)


def _leaves_it_open(error: StoreError) -> bool:
    """Whether a value may have been handed out, for all that the error says."""
    match error:
        case ReadInterrupted():
            return True
        case Conflict() | SequenceExhausted() | UnknownZone():
            return False
        case Unavailable():
            return error.code not in NOT_BEGUN
    return not error.code  # not the server's answer: the driver could not make sense of it


def is_alive(session: Session, idle: float) -> bool:
    """Whether a session that was idle for so many seconds was alive a moment ago."""
    return (idle < PING_AFTER and session.silent()) or session.answers()


Result = TypeVar("Result")


class Sequences:
    """Numbers that are handed out once. Thread-safe and fork-safe.

    A sequence comes into being when it is first used. Within a period no value is handed out twice,
    unless somebody sets or resets it, or it cycles; where a connection breaks before the reply a
    value may be lost, so there may be gaps.

    Names are any text of at most 255 bytes of UTF-8, compared byte by byte. Values and steps have
    64 bits; 0 and negative values are values like any other. Every method raises TypeError and
    ValueError for a name, value or step that cannot be, and what :mod:`countersink.database.errors`
    lists.

    Args:
        connect: makes sessions at READ COMMITTED for handing out, which the server should leave
            open for long.
        connect_to_change: makes sessions at READ COMMITTED for changes, with a short lock wait.
        pool: for reading.
        database: where the table is, for statements on the application's connections.
    """

    def __init__(
        self, connect: Connect, connect_to_change: Connect, pool: Pool, database: str
    ) -> None:
        self._table = f"{quoted(database)}.{TABLE}"
        # A value whose reply is lost is lost. So that a connection that the server has ended costs
        # none, it is found out before anything is sent.
        self._handing_out = Pool(connect, is_alive)
        self._changing = Pool(connect_to_change, is_alive)
        self._pool = pool

    def next(self, name: str, step: int | None = None, *, start: int | None = None) -> int:
        """Add, and get your own value: one statement, and one round trip, but for the first value
        and for sequences with periods.

        Args:
            name: of the sequence.
            step: to add to the last value; not 0. None: the configured one, else 1.
            start: the first value, where the sequence has none yet in its period. None: the
                configured one, else the step.

        Raises:
            SequenceUncertain: the connection broke before the reply, or the statement was
                interrupted (KILL QUERY, ``max_statement_time``). The value, if one was handed out,
                is lost: nobody will get it. Asking again gets another one.
            SequenceExhausted: the value would be beyond the sequence's limits or 64 bits. It is
                unchanged.
            Unavailable: no connection could be made; nothing was handed out.
            Conflict: an application's transaction held the sequence for too long; nothing was
                handed out.
        """
        return self._take(name, ValueRequest(step, start))[-1]

    def next_block(
        self, name: str, n: int, step: int | None = None, *, start: int | None = None
    ) -> range:
        """The next ``n`` values at once, ``step`` apart: for a busy caller.

        They are all handed out, whether they are used or not. In a sequence that cycles a block
        that does not fit before the end begins again at the start as a whole; in others it is
        refused as a whole.

        Raises:
            as :meth:`next`; ValueError also for ``n`` below 1.
        """
        return self._take(name, ValueRequest(step, start, n))

    def next_in(
        self,
        connection: AppConnection,
        name: str,
        step: int | None = None,
        *,
        start: int | None = None,
    ) -> int:
        """As :meth:`next`, in the transaction of the application's ``connection``: without gaps.

        The value comes back if the transaction rolls back, so nobody else gets one until it has
        ended: all users of the sequence wait for each other. Keep it short, and make this its last
        statement where you can.

        What the driver raises goes up as it is, deadlocks (1213, 1020) and lock waits (1205)
        included: roll back, and run the transaction again.

        The connection's ``LAST_INSERT_ID()`` may be another one afterwards: read the id of an
        AUTO_INCREMENT row of yours before. A period is that of the connection's clock, which is the
        server's unless you ``SET timestamp``.

        Args:
            connection: to the server of the store, by any driver with a DB-API cursor; its user has
                SELECT, INSERT and UPDATE on the table ``sequence``.
            name: as of :meth:`next`, and so are the others.

        Raises:
            SequenceExhausted: as :meth:`next`; the transaction is still open.
            Refused: the sequence's time zone is unknown on this machine.
        """
        asked = ValueRequest(step, start)
        return take_in(connection, self._table, name_bytes(name), asked)[-1]

    def peek(self, name: str, *, period: date | None = None) -> int | None:
        """The last value handed out, which is not taken by that; None if there is none.

        Args:
            name: of the sequence.
            period: a local date in the period that is meant. None: the current one.

        Raises:
            ValueError: a period, but the sequence has none.
        """
        return self._pool.read(partial(records.peek, name=name_bytes(name), day=period))

    def set(self, name: str, value: int) -> None:
        """Let ``value`` be the last one of the current period: the next one is a step further.

        Raises:
            ValueError: it is beyond the sequence's limits.
        """
        checked = number(value, "a value")
        self._change(partial(records.set_value, name=name_bytes(name), value=checked))

    def reset(self, name: str) -> int | None:
        """Begin the current period again: the next value is the start.

        Returns:
            the last value that it had; None if it had none.
        """
        return self._change(partial(records.reset, name=name_bytes(name)))

    def reset_all(self) -> int:
        """Reset every sequence, one after another; how many had a value.

        Raises:
            Conflict: one was held by others all the time; run it again.
        """
        with self._changing.lent() as session:
            return records.reset_all(session)

    def configure(self, name: str, **options: Unpack[OptionChanges]) -> Sequence:
        """Make a sequence, or change what is given of one; what is not given stays.

        Nobody goes by the old options once this has returned. None stands for the default.

        Args:
            name: of the sequence.
            start: first value of each period. By default the step.
            step: from a value to the next one. By default 1.
            minimum: smallest value. By default that of 64 bits.
            maximum: largest value. By default that of 64 bits.
            cycle: begin again at the start where the next value would be beyond the limits, instead
                of raising SequenceExhausted. By default False.
            period: ``none``, ``day``, ``month`` or ``year``: begin again with each, whoever asks
                first, and keep what the past ones came to. By default ``none``.
            time_zone: IANA name; whose midnights begin the periods. By default UTC.

        Returns:
            the sequence as it is now.

        Raises:
            ValueError: a value that cannot be; or a period or time zone that would change although
                the sequence has handed out values; or limits that its value is beyond.
            Conflict: applications' transactions held the sequence all the time; nothing changed.
        """
        changes = check_changes(options)
        return self._change(partial(records.configure, name=name_bytes(name), changes=changes))

    def periods(self, name: str) -> "builtins.list[Period]":
        """What the sequence came to in each period that it was used in, the earliest first."""
        return self._pool.read(partial(records.periods, name=name_bytes(name)))

    def total(self, name: str) -> int:
        """The sum of the last values of all periods; 0 where there is none."""
        return sum(period.value for period in self.periods(name))

    def list(self, prefix: str = "") -> "builtins.list[Sequence]":
        """The sequences whose names begin with ``prefix``, by name, compared byte by byte."""
        return self._pool.read(partial(records.read_all, prefix=name_bytes(prefix)))

    def delete(self, name: str) -> bool:
        """Delete a sequence, its options and all its periods; False if there was none.

        Raises:
            Conflict: applications' transactions held it all the time; nothing was deleted.
        """
        return self._change(partial(records.delete, name=name_bytes(name)))

    def close(self) -> None:
        """Close the connections. More are made when they are needed."""
        self._handing_out.close()
        self._changing.close()

    def _take(self, name: str, asked: ValueRequest) -> range:
        return rerun(partial(take, self._handing_out, self._table, name_bytes(name), asked))

    def _change(self, work: Callable[[Session], Result]) -> Result:
        with self._changing.lent() as session:
            return rerun_transaction(session, partial(work, session), attempts=records.ATTEMPTS)
