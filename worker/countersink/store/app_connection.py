"""Statements on a connection that the application owns, in whatever transaction it has begun.

Any driver with a DB-API cursor does: PyMySQL, mysqlclient, mysql-connector, and the raw connection
under SQLAlchemy or Django. Statements come without arguments, since drivers bind them differently:
names are checked, keys are hex literals, numbers go through ``:d``. What the driver raises goes up
as it is: the transaction is the application's, and so is the decision to retry it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

SAVEPOINT: Final = "countersink_all_or_nothing"
"""One of the application's of this name would be replaced, so it should not have any."""
_NO_SAVEPOINT: Final = 1305
"""SAVEPOINT … does not exist."""
_ENDS: Final = "AND NO CHAIN NO RELEASE"
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
    """What a statement did.

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
    cursor = _cursor(connection)
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


def may_keep_to_snapshot(connection: AppConnection) -> bool:
    """Whether a transaction is open that refuses rows newer than its snapshot, if it has one.

    Which it does where ``innodb_snapshot_isolation`` is on. Servers do not tell of the snapshot.
    """
    found = query(
        connection,
        "SHOW SESSION VARIABLES"
        " WHERE Variable_name IN ('in_transaction', 'innodb_snapshot_isolation')",
    )
    return len(found) == 2 and all(value in ("ON", b"ON", "1", b"1") for _, value in found)


def _cursor(connection: AppConnection) -> Any:
    if not callable(getattr(connection, "cursor", None)):
        raise TypeError(
            f"a {type(connection).__name__} is no driver's connection, which has a cursor():"
            " of SQLAlchemy's give connection.connection"
        )
    return connection.cursor()


@contextmanager
def as_one(connection: AppConnection) -> Iterator[None]:
    """Let several statements do all or nothing, and hold their locks as long as the transaction.

    In the application's transaction they are undone by a savepoint where one of them fails, so that
    whoever catches the error and commits all the same keeps no half of them. Outside any, which is
    what autocommit is, they have a transaction of their own.
    """
    execute(connection, f"SAVEPOINT {SAVEPOINT}")
    try:
        # Nothing is undone, but outside a transaction there is no such savepoint.
        execute(connection, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
    except Exception as error:
        # The driver is the application's, so its exceptions are of classes unknown here.
        if error.args[:1] != (_NO_SAVEPOINT,):
            raise
        execute(connection, "START TRANSACTION")
        # Whatever completion_type the application has set: with 1 another transaction would begin.
        undo, end = f"ROLLBACK {_ENDS}", f"COMMIT {_ENDS}"
    else:
        undo, end = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", f"RELEASE SAVEPOINT {SAVEPOINT}"
    try:
        yield
    except BaseException:
        _try(connection, undo)
        raise
    execute(connection, end)


def _try(connection: AppConnection, sql: str) -> None:
    try:
        execute(connection, sql)
    except Exception:
        # A deadlock has undone the whole transaction, and a lost connection too: the error that
        # goes up says so.
        return


def signed(insert_id: int) -> int:
    """The signed number whose 64 bits a server's reply gives as an unsigned one."""
    return insert_id - 2**64 if insert_id >= 2**63 else insert_id
