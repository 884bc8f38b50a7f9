"""Statements on the application's own connection: savepoint, advice on error 1020, and the slots
that such connections count in.

Any driver with a DB-API cursor does: PyMySQL, mysqlclient, mysql-connector, and the raw connection
under SQLAlchemy or Django. Statements come without arguments, since drivers bind them differently:
names are checked, keys are hex literals, numbers go through ``:d``. What the driver raises goes up
as it is: the transaction is the application's, and so is the decision to retry it.

Triggers and statements of such a connection count in slots of their own. Where the session's
``innodb_snapshot_isolation`` is off, connections share a few slots: a row that another one has
changed since this transaction's snapshot is added to all the same. Where it is on (MariaDB's
default from 11.6.2 on), InnoDB refuses that with error 1020. There each connection has a slot of
its own, in which nobody but compaction changes a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

SAVEPOINT: Final = "countersink_all_or_nothing"
"""One of the application's of this name would be replaced, so it should not have any."""
_NO_SAVEPOINT: Final = 1305
"""SAVEPOINT … does not exist."""
_ENDS: Final = "AND NO CHAIN NO RELEASE"
_IN_TRANSACTION: Final = 1
_AUTOCOMMIT: Final = 2
"""Bits of the status that servers send with each answer."""
_CHANGED: Final = 1020
"""Record has changed since last read in table …"""
CHANGED_ADVICE: Final = (
    "countersink: another transaction has changed this row since the snapshot of yours, which"
    " innodb_snapshot_isolation does not let yours change. The server has rolled it back: run it"
    " again from its beginning, as after a deadlock (1213)"
)
"""Added to that error."""


class AppConnection(Protocol):
    """A DB-API connection."""

    def cursor(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Done:
    """Rows changed and insert id of a statement.

    Attributes:
        rows: how many rows it changed, as the driver counts them: where the application has set
            CLIENT.FOUND_ROWS, a row that stays as it was counts as 1.
        insert_id: signed, as ``LAST_INSERT_ID(expr)`` set it; 0 where nothing did.
    """

    rows: int
    insert_id: int


def execute(connection: AppConnection, sql: str) -> Done:
    """Run a statement that returns no rows."""
    with _executed(connection, sql) as cursor:
        return Done(int(cursor.rowcount), signed(int(cursor.lastrowid or 0)))


def query(connection: AppConnection, sql: str) -> list[tuple[Any, ...]]:
    """Run a query; its rows as tuples, whatever kind of cursor the application uses."""
    with _executed(connection, sql) as cursor:
        return [
            tuple(row.values()) if isinstance(row, dict) else tuple(row)
            for row in cursor.fetchall()
        ]


@contextmanager
def _executed(connection: AppConnection, sql: str) -> Iterator[Any]:
    """A cursor on which a statement was run; to its error is added what to do, if it is ours."""
    if not callable(getattr(connection, "cursor", None)):
        raise TypeError(
            f"a {type(connection).__name__} is no driver's connection, which has a cursor():"
            " of SQLAlchemy's give connection.connection"
        )
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        yield cursor
    except Exception as error:
        if error_code(error) == _CHANGED:
            error.add_note(CHANGED_ADVICE)
        raise
    finally:
        cursor.close()


def error_code(error: Exception) -> object:
    """The server's error number, as the drivers have it: in ``errno``, or as the first argument."""
    code = getattr(error, "errno", None)
    return error.args[0] if code is None and error.args else code


@contextmanager
def as_one(connection: AppConnection) -> Iterator[None]:
    """Let several statements do all or nothing, and hold their locks as long as the transaction.

    In the application's transaction they are undone by a savepoint where one of them fails, so that
    whoever catches the error and commits all the same keeps no half of them. It stays until the
    transaction ends: to release it would cost another round trip. Outside any transaction, which
    is what autocommit is, they have one of their own.
    """
    inside = _in_transaction(connection)
    if inside is not False:
        execute(connection, f"SAVEPOINT {SAVEPOINT}")
    if inside is None:
        inside = _is_there(connection)
    if inside:
        undo, end = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", None
    else:
        execute(connection, "START TRANSACTION")
        # Whatever completion_type the application has set: with 1 another transaction would begin.
        undo, end = f"ROLLBACK {_ENDS}", f"COMMIT {_ENDS}"
    try:
        yield
    except BaseException:
        # A deadlock has undone the whole transaction, and a lost connection too: the error that
        # goes up says so.
        with suppress(Exception):
            execute(connection, undo)
        raise
    if end is not None:
        execute(connection, end)


def _in_transaction(connection: AppConnection) -> bool | None:
    """Whether a statement would be part of a longer transaction, as far as the driver knows without
    asking the server; None where it does not.
    """
    status = getattr(connection, "server_status", None)  # PyMySQL
    if type(status) is int:
        return status & (_IN_TRANSACTION | _AUTOCOMMIT) != _AUTOCOMMIT
    if getattr(connection, "in_transaction", None) is True:  # mysql-connector
        return True
    if callable(autocommit := getattr(connection, "get_autocommit", None)):  # mysqlclient
        return True if autocommit() is False else None
    return None


def _is_there(connection: AppConnection) -> bool:
    """Whether the savepoint is there, which outside a transaction it is not."""
    try:
        execute(connection, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
    except Exception as error:
        # The driver is the application's, so its exceptions are of classes unknown here.
        if error_code(error) != _NO_SAVEPOINT:
            raise
        return False
    return True


def signed(insert_id: int) -> int:
    """The signed number whose 64 bits a server's reply gives as an unsigned one."""
    return insert_id - 2**64 if insert_id >= 2**63 else insert_id


FIRST_SHARED: Final = 256
FIRST_OWN: Final = 1024
OWN_SLOTS: Final = 2**16 - FIRST_OWN
"""All others that the column has: connections of the same slot are so many connections apart."""


def own_slot() -> str:
    """SQL for the slot that hardly any other connection has."""
    return f"{FIRST_OWN} + CONNECTION_ID() MOD {OWN_SLOTS}"


def shared_slot(app_slots: int) -> str:
    """SQL for the slot of a connection among ``app_slots`` that all share."""
    return f"{FIRST_SHARED} + CONNECTION_ID() MOD {app_slots:d}"


def slot(app_slots: int, snapshot_isolation: bool) -> str:
    """SQL for the slot that a connection counts in.

    Args:
        app_slots: over how many slots connections spread where they share them.
        snapshot_isolation: whether the server has the variable ``innodb_snapshot_isolation``.
    """
    if not snapshot_isolation:
        return shared_slot(app_slots)
    return f"IF(@@innodb_snapshot_isolation, {own_slot()}, {shared_slot(app_slots)})"
