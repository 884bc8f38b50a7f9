"""SQL statements on a database connection that belongs to the application. The module runs the
statements, makes a group of them all-or-nothing, adds advice to error 1020, and chooses the slot
that the connection counts in.

Every driver with a DB-API cursor works: PyMySQL, mysqlclient, mysql-connector, and the raw
connection under SQLAlchemy or Django. The statements have no bound arguments, because each driver
binds them in its own way: names are checked before, keys are written as hex literals, and numbers
are formatted by ``:d``. The driver's exceptions are raised unchanged, because the application owns
the transaction and decides whether to retry it.

The slot depends on the session's variable ``innodb_snapshot_isolation``. Where it is off, all
connections share a few slots: a transaction can add to a row even if another connection has changed
that row since the transaction took its snapshot. Where it is on (MariaDB's default from 11.6.2 on),
InnoDB refuses such an addition with error 1020. Then each connection has a slot of its own, so that
only the connection itself and compaction change the rows of the slot.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from countersink.database.sql import PRIVATE_SLOTS, SHARED_SLOTS

SAVEPOINT: Final = "countersink_all_or_nothing"
"""Name of our savepoint. It replaces a savepoint of the application that has the same name, so it
is a name that an application is unlikely to use."""
_NO_SAVEPOINT: Final = 1305
"""MySQL error: SAVEPOINT … does not exist."""
_NO_CHAIN: Final = "AND NO CHAIN NO RELEASE"
"""SQL after COMMIT or ROLLBACK that overrides the application's ``completion_type``: with the value
1 the server would begin another transaction at once."""
_IN_TRANSACTION: Final = 1
_AUTOCOMMIT: Final = 2
"""This number and :data:`_IN_TRANSACTION` are bits of the status that servers send with each
reply."""
_CHANGED: Final = 1020
"""MySQL error: Record has changed since last read in table …"""
CHANGED_ADVICE: Final = (
    "countersink: another transaction has changed this row since your transaction took its"
    " snapshot, so innodb_snapshot_isolation forbids to change it. The server has rolled your"
    " transaction back: run it again from its beginning, as after a deadlock (1213)"
)
"""Note that is added to the driver's exception for error 1020."""


class AppConnection(Protocol):
    """A DB-API connection of the application."""

    def cursor(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of a statement that changes rows.

    Attributes:
        rows: number of changed rows, as the driver counts them. With the client flag
            CLIENT.FOUND_ROWS a row that was found and left unchanged counts as 1, too.
        insert_id: the value that the statement passed to ``LAST_INSERT_ID(expr)``, as a signed
            number; 0 if the statement did not call it.
    """

    rows: int
    insert_id: int


def execute(connection: AppConnection, sql: str) -> Executed:
    """Run a statement that returns no rows. Return the number of rows that it changed, and the
    value that it passed to ``LAST_INSERT_ID(expr)``.
    """
    with _executed(connection, sql) as cursor:
        return Executed(int(cursor.rowcount), signed(int(cursor.lastrowid or 0)))


def query(connection: AppConnection, sql: str) -> list[tuple[Any, ...]]:
    """Run a query and return its rows as tuples, even if the driver's cursors return
    dictionaries.
    """
    with _executed(connection, sql) as cursor:
        return [
            tuple(row.values()) if isinstance(row, dict) else tuple(row)
            for row in cursor.fetchall()
        ]


@contextmanager
def _executed(connection: AppConnection, sql: str) -> Iterator[Any]:
    """Run a statement and yield its cursor. The driver's exceptions are passed on; error 1020 gets
    the note :data:`CHANGED_ADVICE`. Raises TypeError if ``connection`` has no cursors.
    """
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
    """Return the server's error number from a driver's exception: its attribute ``errno``, or else
    its first argument (no number, if the error is not the server's); None if it has neither.
    """
    code = getattr(error, "errno", None)
    return error.args[0] if code is None and error.args else code


@contextmanager
def all_or_nothing(connection: AppConnection) -> Iterator[None]:
    """Make the statements of the block take effect all together or not at all. Their row locks last
    until the transaction ends.

    Within a transaction of the application, any exception of the block causes a rollback to a
    savepoint, and is raised. So if the application catches the error and commits, none of the
    block's statements takes effect. The savepoint stays until the transaction ends, because
    releasing it would cost another round trip. Outside a transaction (autocommit is on) the block
    is a transaction of its own: COMMIT at its end, ROLLBACK after an exception, which is raised.
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
    """Return whether the connection is in a transaction, or will begin one with its next statement,
    as far as the driver knows without asking the server. Return None if the driver cannot tell.
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
    """Return whether the savepoint exists that the caller has just set. Outside a transaction,
    SAVEPOINT leaves no savepoint, so the result tells whether the connection is in a transaction.
    """
    try:
        execute(connection, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
    except Exception as error:
        # The application chooses the driver, so the exception's class is unknown here.
        if error_code(error) != _NO_SAVEPOINT:
            raise
        return False
    return True


def signed(insert_id: int) -> int:
    """Return an insert id as a signed 64-bit number; the server's reply has it unsigned."""
    return insert_id - 2**64 if insert_id >= 2**63 else insert_id


def private_slot() -> str:
    """Return SQL for the number of a slot (of :data:`PRIVATE_SLOTS`, by the connection's id) that
    almost surely no other open connection has.
    """
    return f"{PRIVATE_SLOTS.start} + CONNECTION_ID() MOD {len(PRIVATE_SLOTS)}"


def shared_slot(app_slots: int) -> str:
    """Return SQL for the number of a shared slot: one of the first ``app_slots`` numbers of
    :data:`SHARED_SLOTS`, by the connection's id.
    """
    return f"{SHARED_SLOTS.start} + CONNECTION_ID() MOD {app_slots:d}"


def slot(app_slots: int, snapshot_isolation: bool) -> str:
    """Return SQL for the number of the slot that a connection counts in: a private slot while the
    connection's variable ``innodb_snapshot_isolation`` is on, else one of the shared slots.

    Args:
        app_slots: number of slots that connections share.
        snapshot_isolation: whether the server has the variable ``innodb_snapshot_isolation``.
    """
    if not snapshot_isolation:
        return shared_slot(app_slots)
    return f"IF(@@innodb_snapshot_isolation, {private_slot()}, {shared_slot(app_slots)})"
