"""Hands out values of sequences: which MySQL errors leave the outcome uncertain, and idle sessions.

One statement does where there are no periods; a first value, and others, take a transaction.
"""

from functools import partial
from typing import Final

from countersink.database.app_connection import AppConnection, as_one, execute, query
from countersink.database.errors import (
    HELD,
    Conflict,
    ReadInterrupted,
    StoreError,
    Unavailable,
    UnknownZone,
)
from countersink.database.session import Session
from countersink.database.sessions import Pool
from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
from countersink.sequences.options import ValueRequest
from countersink.sequences.records import ADDED, add, hand_out

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
