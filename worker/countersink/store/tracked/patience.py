"""Changing triggers of a table that others are using.

A statement that makes or drops a trigger waits until no transaction uses the table, and whoever
comes to use it meanwhile waits behind it. So it waits for two seconds at most, lets the others
pass, and tries again.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from countersink.store.connection import Connect, Session
from countersink.store.errors import Conflict
from countersink.store.tracked.triggers import SQL_MODE

LOCK_WAIT: Final = 2
"""Seconds that others may have to wait behind a statement."""
ATTEMPTS: Final = 15
_PAUSES: Final = (0.2, 1.0)
"""Seconds between two attempts, at least and at most."""

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
                    f" be changed ({error}): end it, then run this again. SELECT"
                    " trx_mysql_thread_id, trx_started FROM information_schema.innodb_trx ORDER BY"
                    " trx_started shows the oldest ones; KILL and that number ends one",
                    code=error.code,
                ) from error
            notice(f"waiting for a transaction that uses {table} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(random.uniform(*_PAUSES))
