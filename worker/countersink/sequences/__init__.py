"""Sequences: numbers that are handed out once. The class ``Sequences`` is the interface for
programs. See ``options.py`` for the options of a sequence and their checks, and ``records.py`` for
the SQL.

A sequence can have periods (days, months or years): in each period it begins at its start again.
The table ``sequence`` has a base row for each sequence, with the options, and a row for each
period. The base row is created at the first use. To hand out a value, the base row is locked. One
statement does this if the sequence has no periods. A transaction of several statements is needed
for a first value, for sequences with periods, and where a cycle ends.
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
"""Errors of a server that takes no writes. After them no value was handed out."""
HANDING_IDLE_SECONDS: Final = 8 * 3600
"""Seconds after which the server ends an idle session that hands out values. The time can be long,
because such a session holds no lock while it is idle."""
PING_AFTER: Final = 10.0
"""Idle seconds after which a session is tested before it is used again. A firewall in between may
have dropped the connection."""


def take(sessions: Pool, table: str, name: bytes, asked: ValueRequest) -> range:
    """Hand out values on a session of the pool, and return them. A Conflict means that no value was
    handed out, so the caller can call this again.

    Args:
        sessions: sessions at READ COMMITTED.
        table: the table ``sequence`` with its database, quoted.
        name: the sequence's name in UTF-8.
        asked: which values the caller asks for.

    Raises:
        SequenceUncertain: the connection broke, or the statement was interrupted, before the reply.
            If values were handed out, they are lost.
        SequenceExhausted: a value would be beyond the sequence's limits or beyond 64 bits.
        StoreError: as raised by :meth:`Sequences.next`.
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
    """Hand out values in the transaction of a connection of the application, and return them.

    Args:
        connection: the application's connection.
        table: the table ``sequence`` with its database, quoted.
        name: the sequence's name in UTF-8.
        asked: which values the caller asks for.

    Raises:
        SequenceExhausted, UnknownZone, Conflict: as raised by :meth:`Sequences.next_in`.
        The driver's own exceptions, unchanged.
    """
    done = execute(connection, add_sql(table, name, asked))
    if done.rows == ADDED:
        return _values(done.insert_id, asked)
    with all_or_nothing(connection):
        return hand_out(
            partial(execute, connection), partial(query, connection), table, name, asked
        )


def _values(last: int, asked: ValueRequest) -> range:
    """Return the values that the statement of ``add_sql`` handed out. The last of them is ``last``.
    They are ``asked.step`` apart, or 1 apart if the request has no step. (For a sequence with
    another step of its own, that statement does not hand out several values.)
    """
    step = asked.step or 1
    return range(last - (asked.n - 1) * step, last + step, step)


def _is_uncertain(error: StoreError) -> bool:
    """Return True if a value may have been handed out although the error was raised; False if
    surely none was."""
    match error:
        case ReadInterrupted():
            return True
        case Conflict() | SequenceExhausted() | UnknownZone():
            return False
        case Unavailable():
            return error.code not in NOT_BEGUN
    return not error.code  # raised by the driver, which could not read the reply


def is_alive(session: Session, idle: float) -> bool:
    """Return whether a session of a pool still works after ``idle`` seconds without use. Query the
    server only if the session was idle for :data:`PING_AFTER` seconds, or the server has sent
    something unasked, such as the end of the connection; otherwise assume that it works. Close
    the session if it does not answer.
    """
    return (idle < PING_AFTER and session.silent()) or session.answers()


Result = TypeVar("Result")


class Sequences:
    """Hands out numbers, each of them once. Thread-safe and fork-safe.

    A sequence is created at its first use. Within a period no value is handed out twice, unless the
    sequence cycles, steps go both up and down, somebody sets, resets or deletes it, or a rollback
    takes back a value of :meth:`next_in`. A value may be lost if a connection breaks before the
    server's reply, so the values may have gaps.

    Names are texts of at most 255 bytes of UTF-8. They are compared byte by byte. Values and steps
    have 64 bits and may be negative; a value may be 0, a step may not. Every method raises
    TypeError or ValueError for an invalid name, value or step, and the errors of
    :mod:`countersink.database.errors`.

    Args:
        connect: opens a session at READ COMMITTED for handing out values. The session may be idle
            for a long time.
        connect_to_change: opens a session at READ COMMITTED for changes, with a short lock wait.
        pool: sessions for reading.
        database: name of countersink's database, for statements on the application's connections.
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
        """Hand out the next value. This is one statement and one round trip, except for the first
        value, for sequences with periods, and where a cycle ends. A connection that was idle for 10
        seconds is tested first.

        Args:
            name: the sequence's name.
            step: number to add to the last value; not 0. None for the sequence's own step, which is
                1 by default.
            start: the value to hand out if the present period has none yet. None for the sequence's
                own start; if it has none, this call's step or else the sequence's own.

        Raises:
            SequenceUncertain: the connection broke before the reply, or the statement was
                interrupted (KILL QUERY, ``max_statement_time``). If a value was handed out, it is
                lost: no caller gets it. Call again for another value.
            SequenceExhausted: the value would be beyond the sequence's limits or beyond 64 bits.
                (A sequence that cycles begins again instead, if the period has a value.) The last
                value is unchanged.
            Unavailable: no connection could be opened, or the server takes no writes. Nothing was
                handed out.
            UnknownZone: this machine does not know the sequence's time zone. Nothing was handed
                out.
            Conflict: at each attempt another transaction, such as one of an application, held the
                sequence for too long. Nothing was handed out.
        """
        return self._take(name, ValueRequest(step, start))[-1]

    def next_block(
        self, name: str, n: int, step: int | None = None, *, start: int | None = None
    ) -> range:
        """Hand out the next ``n`` values, which are ``step`` apart, and return them. This is one
        round trip if :meth:`next` is one; but several if ``step`` is None and the sequence's step
        is not 1.

        All of them count as handed out, whether the caller uses them or not. If one of them would
        be beyond the limits, a sequence that cycles, and has a value in the present period, hands
        out ``n`` values from its own start on instead. In all other cases, or if these values would
        be beyond the limits, too, SequenceExhausted is raised and nothing is handed out.

        Args:
            name: the sequence's name.
            n: number of values.
            step: difference between the values; None for the sequence's own step.
            start: the first value if the present period has none yet; None as for :meth:`next`.

        Raises:
            SequenceUncertain, SequenceExhausted, Unavailable, UnknownZone, Conflict: as raised by
                :meth:`next`.
            ValueError: also if ``n`` is below 1, or if ``n`` times ``step`` is beyond 64 bits.
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
        """Hand out the next value in the transaction of ``connection``, so that a rollback leaves
        no gap. Outside a transaction (with autocommit), the value is committed at once.

        A rollback takes the value back. Therefore all other users of the sequence wait until the
        transaction ends. Keep it short, and make this its last statement if you can.

        The driver's exceptions are passed on unchanged. After a deadlock (error 1213 or 1020) or a
        lock wait timeout (error 1205) roll back, and run the transaction again.

        ``LAST_INSERT_ID()`` of the connection may be another value afterwards. If you need the id
        of an AUTO_INCREMENT row, read it before. The present period depends on the connection's
        clock, which is the server's clock unless you ``SET timestamp``.

        Args:
            connection: a DB-API connection of the application to the server of the store. Its user
                has SELECT, INSERT and UPDATE on the table ``sequence``.
            name: the sequence's name.
            step: number to add to the last value; None for the sequence's own step.
            start: the value to hand out if the present period has none; None as for :meth:`next`.

        Raises:
            SequenceExhausted: as raised by :meth:`next`. The transaction is still open.
            UnknownZone: this machine does not know the sequence's time zone.
            Conflict: the sequence was deleted meanwhile. Roll back, and run the transaction again.
        """
        asked = ValueRequest(step, start)
        return take_in(connection, self._table, name_bytes(name), asked)[-1]

    def peek(self, name: str, *, period: date | None = None) -> int | None:
        """Return the last value that was handed out or set in a period, and hand out none. Return
        None if the period has no value, or if there is no such sequence.

        Args:
            name: the sequence's name.
            period: any local date within the period; None for the present period.

        Raises:
            ValueError: ``period`` is given, but the sequence has no periods.
        """
        return self._pool.read(partial(records.peek, name=name_bytes(name), day=period))

    def set(self, name: str, value: int) -> None:
        """Set the last value of the present period, so that the next value is one step further. The
        sequence is created if it does not exist.

        Raises:
            ValueError: ``value`` is beyond the sequence's limits.
            Conflict: transactions of applications held the sequence through all attempts. Nothing
                was changed.
        """
        checked = number(value, "a value")
        self._change(partial(records.set_value, name=name_bytes(name), value=checked))

    def reset(self, name: str) -> int | None:
        """Delete the last value of the present period, so that the next value is the start again.
        Past periods keep their values.

        Returns:
            the deleted value; None if there was none, or if there is no such sequence.

        Raises:
            Conflict: transactions of applications held the sequence through all attempts.
        """
        return self._change(partial(records.reset, name=name_bytes(name)))

    def reset_all(self) -> int:
        """Call :meth:`reset` for every sequence, one after another. Return the number of sequences
        that had a value in their present period.

        Raises:
            Conflict: transactions of applications held a sequence through all attempts. Those
                before it were reset. Run this again.
        """
        with self._changing.lent() as session:
            return records.reset_all(session)

    def configure(self, name: str, **options: Unpack[OptionChanges]) -> Sequence:
        """Change options of a sequence, which is created if it does not exist. Options that are not
        given stay as they are.

        After this has returned, every value is handed out by the new options. The value None sets
        an option to its default.

        Args:
            name: the sequence's name.
            start: first value of each period. By default it is the step.
            step: difference between a value and the next one. By default it is 1.
            minimum: smallest value. By default it is the smallest number of 64 bits.
            maximum: largest value. By default it is the largest number of 64 bits.
            cycle: True to begin again at the start when the next value would be beyond the limits;
                False, the default, to raise SequenceExhausted then.
            period: ``none``, ``day``, ``month`` or ``year``. Each period begins at the start, and
                the last value of each past period is kept. By default there are no periods.
            time_zone: IANA name of the time zone whose midnights begin the periods. By default it
                is UTC.

        Returns:
            the sequence with its new options.

        Raises:
            ValueError: an option is invalid, or contradicts another one; or the period or the time
                zone would change although some period has a value; or the present value is beyond
                the new limits.
            Conflict: transactions of applications held the sequence through all attempts. Nothing
                was changed.
        """
        changes = check_changes(options)
        return self._change(partial(records.configure, name=name_bytes(name), changes=changes))

    def periods(self, name: str) -> "builtins.list[Period]":
        """Return the last value of each period that has one, the earliest period first. A
        sequence without periods has one item at most: its last value. The list is empty if there
        is no value, or no such sequence.
        """
        return self._pool.read(partial(records.periods, name=name_bytes(name)))

    def total(self, name: str) -> int:
        """Return the sum of the last values of all periods of a sequence; 0 if there are none."""
        return sum(period.value for period in self.periods(name))

    def list(self, prefix: str = "") -> "builtins.list[Sequence]":
        """Return the sequences whose names begin with ``prefix``, by default all, sorted by name,
        byte by byte.

        Raises:
            UnknownZone: this machine does not know the time zone of one of them.
        """
        return self._pool.read(partial(records.read_all, prefix=name_bytes(prefix)))

    def delete(self, name: str) -> bool:
        """Delete a sequence with its options and all its periods. Return True; False if there was
        no such sequence.

        Raises:
            Conflict: transactions of applications held the sequence through all attempts. Nothing
                was deleted.
        """
        return self._change(partial(records.delete, name=name_bytes(name)))

    def close(self) -> None:
        """Close the idle connections, except those of ``pool``. The next use opens them again."""
        self._handing_out.close()
        self._changing.close()

    def _take(self, name: str, asked: ValueRequest) -> range:
        return rerun(partial(take, self._handing_out, self._table, name_bytes(name), asked))

    def _change(self, work: Callable[[Session], Result]) -> Result:
        with self._changing.lent() as session:
            return rerun_transaction(session, partial(work, session), attempts=records.ATTEMPTS)
