"""Changing triggers of a table that others are using.

A statement that makes or drops a trigger waits until no transaction uses the table, and whoever
comes to use it meanwhile waits behind it, readers too. So it waits for a second at most, lets the
others pass for at least as long, and tries again.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from countersink.store.connection import Connect, Session
from countersink.store.errors import Conflict
from countersink.store.tracked.triggers import SQL_MODE

LOCK_WAIT: Final = 1
"""Seconds that others may have to wait behind a statement."""
ATTEMPTS: Final = 15
PAUSES: Final = (1.0, 2.0)
"""Seconds between two attempts, at least and at most."""

_KILL: Final = "KILL and that number ends one"

Notice = Callable[[str], object]
"""Is told, in a sentence, what is being waited for."""


def quiet(notice: str) -> None:
    """Tell nobody."""


@contextmanager
def changing(connect: Connect) -> Iterator[Session]:
    """A session for making and dropping triggers."""
    with connect() as session:
        session.execute(
            "SET SESSION lock_wait_timeout = %s, SESSION sql_mode = %s", (LOCK_WAIT, SQL_MODE)
        )
        yield session


def change(
    session: Session,
    statement: str,
    table: str,
    *,
    notice: Notice = quiet,
) -> None:
    """Run one statement that needs a table for itself, in short waits.

    Args:
        session: one of :func:`changing`.
        statement: makes or drops a trigger.
        table: which one, for messages.
        notice: is told that it waits.

    Raises:
        Conflict: others used the table all the time; says how to find them.
        StoreError: as any statement.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            session.execute(statement)
            return
        except Conflict as error:
            if attempt == ATTEMPTS:
                raise Conflict(
                    f"a transaction has been using {table} all the time, so its triggers could not"
                    f" be changed ({error}): end it, then run this again."
                    f" {_finding(session, table)}",
                    code=error.code,
                ) from error
            notice(f"waiting for a transaction that uses {table} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(random.uniform(*PAUSES))


def _finding(session: Session, table: str) -> str:
    """How to find whoever has the metadata lock of a table."""
    name = session.literal(table)
    if session.dialect.name == "mysql":
        return (
            "SELECT t.processlist_id, t.processlist_user, t.processlist_time"
            " FROM performance_schema.metadata_locks AS m"
            " JOIN performance_schema.threads AS t ON t.thread_id = m.owner_thread_id"
            f" WHERE CONCAT(m.object_schema, '.', m.object_name) = {name}"
            f" says who uses it (to a user with SELECT on performance_schema); {_KILL}"
        )
    return (
        "SELECT p.id, p.user, p.time, t.trx_started FROM information_schema.processlist AS p"
        " LEFT JOIN information_schema.innodb_trx AS t ON t.trx_mysql_thread_id = p.id"
        " ORDER BY t.trx_started IS NULL, t.trx_started"
        " says who uses what, the oldest transactions first (to a user with PROCESS); with the"
        " plugin, SELECT thread_id FROM information_schema.metadata_lock_info"
        f" WHERE CONCAT(table_schema, '.', table_name) = {name} says who uses this table; {_KILL}"
    )
