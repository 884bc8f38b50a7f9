"""Statements on a connection of the application: execution, all-or-nothing groups, advice on error
1020, and the slot that the connection counts in.

Every driver with a DB-API cursor works: PyMySQL, mysqlclient, mysql-connector, and the raw
connection under SQLAlchemy or Django. Statements have no arguments, since drivers bind them
differently: names are checked, keys are hex literals, numbers are formatted by ``:d``. The driver's
exceptions are passed on unchanged: the application owns the transaction and decides on a retry.

The slot depends on the session's ``innodb_snapshot_isolation``. Off: connections share a few slots,
and a row that another connection has changed since this transaction's snapshot can still be added
to. On (MariaDB's default from 11.6.2 on): InnoDB refuses that with error 1020, so each connection
has a slot to itself, whose rows nothing but compaction changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

SAVEPOINT: Final = "countersink_all_or_nothing"
"""Replaces a savepoint of the application with the same name, so the name is an unlikely one."""
_NO_SAVEPOINT: Final = 1305
"""SAVEPOINT … does not exist."""
_NO_CHAIN: Final = "AND NO CHAIN NO RELEASE"
"""Overrides the application's ``completion_type``: 1 would begin another transaction."""
_IN_TRANSACTION: Final = 1
_AUTOCOMMIT: Final = 2
"""Bits of the status that servers send with each reply."""
_CHANGED: Final = 1020
"""Record has changed since last read in table …"""
CHANGED_ADVICE: Final = (
    "countersink: another transaction has changed this row since your transaction took its"
    " snapshot, so innodb_snapshot_isolation forbids to change it. The server has rolled your"
    " transaction back: run it again from its beginning, as after a deadlock (1213)"
)
"""Note that is added to the driver's error 1020."""


class AppConnection(Protocol):
    """A DB-API connection."""

    def cursor(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Executed:
    """Rows changed and insert id of a statement.

    Attributes:
        rows: number of changed rows as the driver counts them: under CLIENT.FOUND_ROWS an unchanged
            row counts as 1, too.
        insert_id: the value of ``LAST_INSERT_ID(expr)``, signed; 0 where the statement set none.
    """

    rows: int
    insert_id: int


def execute(connection: AppConnection, sql: str) -> Executed:
    """Run a statement that returns no rows."""
    with _executed(connection, sql) as cursor:
        return Executed(int(cursor.rowcount), signed(int(cursor.lastrowid or 0)))


def query(connection: AppConnection, sql: str) -> list[tuple[Any, ...]]:
    """Run a query; its rows as tuples, also with the application's dictionary cursors."""
    with _executed(connection, sql) as cursor:
        return [
            tuple(row.values()) if isinstance(row, dict) else tuple(row)
            for row in cursor.fetchall()
        ]


@contextmanager
def _executed(connection: AppConnection, sql: str) -> Iterator[Any]:
    """A cursor that has run a statement; :data:`CHANGED_ADVICE` is added to error 1020."""
    if not callable(getattr(connection, "cursor", None)):
        raise TypeError(
            f"{type(connection).__name__} is not a DB-API connection, as it has no cursor(): with"
            " SQLAlchemy, pass connection.connection"
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
    """The server's error number in a driver's exception: ``errno``, or its first argument."""
    code = getattr(error, "errno", None)
    return error.args[0] if code is None and error.args else code


@contextmanager
def all_or_nothing(connection: AppConnection) -> Iterator[None]:
    """Execute the block's statements all or not at all; their locks last as long as the
    transaction.

    Within a transaction of the application, a failed statement rolls back to a savepoint, so an
    application that catches the error and commits keeps no part of them. The savepoint stays until
    the transaction ends: releasing it would cost another round trip. Outside a transaction
    (autocommit) the block is a transaction.
    """
    inside = _in_transaction(connection)
    if inside is not False:
        execute(connection, f"SAVEPOINT {SAVEPOINT}")
    if inside is None:
        inside = _has_savepoint(connection)
    if inside:
        undo, end = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", None
    else:
        execute(connection, "START TRANSACTION")
        undo, end = f"ROLLBACK {_NO_CHAIN}", f"COMMIT {_NO_CHAIN}"
    try:
        yield
    except BaseException:
        # After a deadlock or a lost connection the whole transaction is rolled back already, as
        # the raised error says.
        with suppress(Exception):
            execute(connection, undo)
        raise
    if end is not None:
        execute(connection, end)


def _in_transaction(connection: AppConnection) -> bool | None:
    """Whether the connection is in a transaction, or begins one with its next statement, by the
    driver's own state; None where the driver does not know.
    """
    status = getattr(connection, "server_status", None)  # PyMySQL
    if type(status) is int:
        return status & (_IN_TRANSACTION | _AUTOCOMMIT) != _AUTOCOMMIT
    if getattr(connection, "in_transaction", None) is True:  # mysql-connector
        return True
    if callable(autocommit := getattr(connection, "get_autocommit", None)):  # mysqlclient
        return True if autocommit() is False else None
    return None


def _has_savepoint(connection: AppConnection) -> bool:
    """Whether the savepoint exists; outside a transaction it does not."""
    try:
        execute(connection, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
    except Exception as error:
        # The application chooses the driver, so the exception's class is unknown here.
        if error_code(error) != _NO_SAVEPOINT:
            raise
        return False
    return True


def signed(insert_id: int) -> int:
    """The signed 64-bit number for an insert id, which the server's reply has as unsigned."""
    return insert_id - 2**64 if insert_id >= 2**63 else insert_id


FIRST_SHARED: Final = 256
FIRST_PRIVATE: Final = 1024
PRIVATE_SLOTS: Final = 2**16 - FIRST_PRIVATE
"""All further slots of the column: two connections with the same slot have numbers that differ by a
multiple of this."""


def private_slot() -> str:
    """SQL for a connection's slot that practically no other open connection has."""
    return f"{FIRST_PRIVATE} + CONNECTION_ID() MOD {PRIVATE_SLOTS}"


def shared_slot(app_slots: int) -> str:
    """SQL for a connection's slot among ``app_slots`` that all connections share."""
    return f"{FIRST_SHARED} + CONNECTION_ID() MOD {app_slots:d}"


def slot(app_slots: int, snapshot_isolation: bool) -> str:
    """SQL for the slot that a connection counts in.

    Args:
        app_slots: number of slots that connections share.
        snapshot_isolation: whether the server has the variable ``innodb_snapshot_isolation``.
    """
    if not snapshot_isolation:
        return shared_slot(app_slots)
    return f"IF(@@innodb_snapshot_isolation, {private_slot()}, {shared_slot(app_slots)})"
