"""Sequences: numbers that are handed out once. ``Sequences`` is their interface for programs. See
``options.py`` for the options and their checks, and ``records.py`` for the SQL.

The table ``sequence`` has a base row per sequence, which is created at its first use and has its
options, and a row per period. Handing out a value locks the base row: by one statement where the
sequence has no periods; a first value, a period or the end of a cycle takes a transaction.
"""

import builtins
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Final, TypeVar, Unpack

from countersink.database.app_connection import AppConnection, all_or_nothing, execute, query
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
from countersink.sequences.records import ADDED, TABLE, Period, Sequence, add_sql, hand_out

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
"""Errors of a server that does not write, so nothing was handed out."""
HANDING_IDLE_SECONDS: Final = 8 * 3600
"""Idle seconds after which the server ends a session for handing out, which never holds a lock
while idle."""
PING_AFTER: Final = 10.0
"""Idle seconds after which the server is asked before a session is used again: a firewall between
may have dropped the connection."""


def take(sessions: Pool, table: str, name: bytes, asked: ValueRequest) -> range:
    """Hand out the requested values on a session of the pool, at READ COMMITTED. After a Conflict
    nothing was handed out.

    Raises:
        SequenceUncertain, SequenceExhausted, StoreError: as :meth:`Sequences.next`.
    """
    with sessions.lent() as session:
        try:
            done = session.hand_out(add_sql(table, name, asked))
            if done.rows == ADDED:
                return _values(done.insert_id, asked)
            with session.transaction():
                return hand_out(session.hand_out, session.query, table, name, asked)
        except StoreError as error:
            if not _is_uncertain(error):
                raise
            session.close(hard=True)
            raise SequenceUncertain(
                "the connection broke, or the statement was interrupted, before the server's reply"
                f" ({error}). If a value was handed out, it is lost, as none is handed out twice:"
                " ask for the next one",
                code=error.code,
            ) from error


def take_in(connection: AppConnection, table: str, name: bytes, asked: ValueRequest) -> range:
    """Hand out the requested values in the transaction of ``connection``.

    Raises:
        SequenceExhausted, StoreError: as :meth:`Sequences.next_in`. And the driver's errors.
    """
    done = execute(connection, add_sql(table, name, asked))
    if done.rows == ADDED:
        return _values(done.insert_id, asked)
    with all_or_nothing(connection):
        return hand_out(
            partial(execute, connection), partial(query, connection), table, name, asked
        )


def _values(last: int, asked: ValueRequest) -> range:
    """The values that end with ``last``. For several values the step is known: 1 by default."""
    step = asked.step or 1
    return range(last - (asked.n - 1) * step, last + step, step)


def _is_uncertain(error: StoreError) -> bool:
    """Whether a value may have been handed out in spite of the error."""
    match error:
        case ReadInterrupted():
            return True
        case Conflict() | SequenceExhausted() | UnknownZone():
            return False
        case Unavailable():
            return error.code not in NOT_BEGUN
    return not error.code  # raised by the driver, which could not read the reply


def is_alive(session: Session, idle: float) -> bool:
    """Whether a session can be used after so many idle seconds."""
    return (idle < PING_AFTER and session.silent()) or session.answers()


Result = TypeVar("Result")


class Sequences:
    """Numbers that are handed out once. Thread-safe and fork-safe.

    A sequence is created at its first use. Within a period no value is handed out twice, unless the
    sequence is set or reset, or cycles. A value is lost where a connection breaks before the reply,
    so there may be gaps.

    Names are texts of at most 255 bytes of UTF-8, compared byte by byte. Values and steps have 64
    bits; 0 and negative values are valid. Every method raises TypeError and ValueError for an
    invalid name, value or step, and the errors of :mod:`countersink.database.errors`.

    Args:
        connect: opens sessions at READ COMMITTED for handing out, with a long idle time.
        connect_to_change: opens sessions at READ COMMITTED for changes, with a short lock wait.
        pool: sessions for reading.
        database: countersink's database, for statements on the application's connections.
    """

    def __init__(
        self, connect: Connect, connect_to_change: Connect, pool: Pool, database: str
    ) -> None:
        self._table = f"{quoted(database)}.{TABLE}"
        # A value whose reply is lost is lost, so each kept connection is checked before its use.
        self._handing_out = Pool(connect, is_alive)
        self._changing = Pool(connect_to_change, is_alive)
        self._pool = pool

    def next(self, name: str, step: int | None = None, *, start: int | None = None) -> int:
        """The next value: one statement and one round trip, except for the first value and for
        sequences with periods.

        Args:
            name: the sequence's name.
            step: number to add to the last value; not 0. None: the configured step, else 1.
            start: the first value, where the sequence has none in its period. None: the configured
                start, else the step.

        Raises:
            SequenceUncertain: the connection broke before the reply, or the statement was
                interrupted (KILL QUERY, ``max_statement_time``). If a value was handed out, it is
                lost: no caller gets it. Call again for another value.
            SequenceExhausted: the value would be beyond the sequence's limits or 64 bits. The
                sequence is unchanged.
            Unavailable: no connection could be opened; nothing was handed out.
            Conflict: an application's transaction held the sequence for too long; nothing was
                handed out.
        """
        return self._take(name, ValueRequest(step, start))[-1]

    def next_block(
        self, name: str, n: int, step: int | None = None, *, start: int | None = None
    ) -> range:
        """The next ``n`` values in one statement, ``step`` apart.

        All are handed out, used or not. A block that does not fit before the end of the sequence
        begins at the start if the sequence cycles, and is refused otherwise.

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
        """The next value, in the transaction of the application's ``connection``: without gaps.

        A rollback returns the value, so all other users of the sequence wait until the transaction
        ends. Keep it short, and make this its last statement where possible.

        The driver's exceptions are passed on unchanged. After a deadlock (1213, 1020) or a lock
        wait (1205), roll back and run the transaction again.

        The connection's ``LAST_INSERT_ID()`` may have changed afterwards: read the id of an
        AUTO_INCREMENT row before. Periods go by the connection's clock, which is the server's
        unless you ``SET timestamp``.

        Args:
            connection: DB-API connection to the server of the store; its user has SELECT, INSERT
                and UPDATE on the table ``sequence``.
            name, step, start: as of :meth:`next`.

        Raises:
            SequenceExhausted: as :meth:`next`; the transaction is still open.
            UnknownZone: the sequence's time zone is unknown on this machine.
        """
        asked = ValueRequest(step, start)
        return take_in(connection, self._table, name_bytes(name), asked)[-1]

    def peek(self, name: str, *, period: date | None = None) -> int | None:
        """The last value handed out, without handing out one; None: there is none.

        Args:
            name: the sequence's name.
            period: a local date within the period. None: the current period.

        Raises:
            ValueError: a period is given, and the sequence has no periods.
        """
        return self._pool.read(partial(records.peek, name=name_bytes(name), day=period))

    def set(self, name: str, value: int) -> None:
        """Set the last value of the current period; the next value is a step further.

        Raises:
            ValueError: ``value`` is beyond the sequence's limits.
        """
        checked = number(value, "a value")
        self._change(partial(records.set_value, name=name_bytes(name), value=checked))

    def reset(self, name: str) -> int | None:
        """Delete the value of the current period: the next value is the start.

        Returns:
            the deleted value; None: there was none.
        """
        return self._change(partial(records.reset, name=name_bytes(name)))

    def reset_all(self) -> int:
        """Reset every sequence, one after another; number of sequences that had a value.

        Raises:
            Conflict: transactions of applications held a sequence all the time; run it again.
        """
        with self._changing.lent() as session:
            return records.reset_all(session)

    def configure(self, name: str, **options: Unpack[OptionChanges]) -> Sequence:
        """Create a sequence, or change the given options of one.

        Every value is handed out by the new options once this has returned. None sets the default.

        Args:
            name: the sequence's name.
            start: first value of each period. By default the step.
            step: difference between a value and the next one. By default 1.
            minimum: smallest value. By default that of 64 bits.
            maximum: largest value. By default that of 64 bits.
            cycle: begin again at the start where the next value would be beyond the limits, instead
                of raising SequenceExhausted. By default False.
            period: ``none``, ``day``, ``month`` or ``year``: each period begins at the start, and
                the last value of each past period is kept. By default ``none``.
            time_zone: IANA name of the zone whose midnights begin the periods. By default UTC.

        Returns:
            the sequence with its new options.

        Raises:
            ValueError: an option is invalid; or period or time zone would change after values were
                handed out; or the present value is beyond the new limits.
            Conflict: applications' transactions held the sequence all the time; nothing changed.
        """
        changes = check_changes(options)
        return self._change(partial(records.configure, name=name_bytes(name), changes=changes))

    def periods(self, name: str) -> "builtins.list[Period]":
        """The last value of each period in which the sequence was used, the earliest first."""
        return self._pool.read(partial(records.periods, name=name_bytes(name)))

    def total(self, name: str) -> int:
        """The sum of the last values of all periods; 0 where there are no values."""
        return sum(period.value for period in self.periods(name))

    def list(self, prefix: str = "") -> "builtins.list[Sequence]":
        """The sequences whose names begin with ``prefix``, by name, compared byte by byte."""
        return self._pool.read(partial(records.read_all, prefix=name_bytes(prefix)))

    def delete(self, name: str) -> bool:
        """Delete a sequence, its options and all its periods; False: there was no such sequence.

        Raises:
            Conflict: applications' transactions held it all the time; nothing was deleted.
        """
        return self._change(partial(records.delete, name=name_bytes(name)))

    def close(self) -> None:
        """Close the connections. They are opened again at the next use."""
        self._handing_out.close()
        self._changing.close()

    def _take(self, name: str, asked: ValueRequest) -> range:
        return rerun(partial(take, self._handing_out, self._table, name_bytes(name), asked))

    def _change(self, work: Callable[[Session], Result]) -> Result:
        with self._changing.lent() as session:
            return rerun_transaction(session, partial(work, session), attempts=records.ATTEMPTS)
