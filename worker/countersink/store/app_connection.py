"""Statements on a connection that the application owns, in whatever transaction it has begun.

Any driver with a DB-API cursor does: PyMySQL, mysqlclient, mysql-connector, and the raw connection
under SQLAlchemy or Django. Statements come without arguments, since drivers bind them differently:
names are checked, keys are hex literals, numbers go through ``:d``. What the driver raises goes up
as it is: the transaction is the application's, and so is the decision to retry it.
"""

from dataclasses import dataclass
from typing import Any, Protocol


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
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        return Done(int(cursor.rowcount), signed(int(cursor.lastrowid or 0)))
    finally:
        cursor.close()


def query(connection: AppConnection, sql: str) -> list[tuple[Any, ...]]:
    """Run a query; its rows as tuples, whatever kind of cursor the application uses."""
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        return [
            tuple(row.values()) if isinstance(row, dict) else tuple(row)
            for row in cursor.fetchall()
        ]
    finally:
        cursor.close()


def signed(insert_id: int) -> int:
    """The signed number whose 64 bits a server's reply gives as an unsigned one."""
    return insert_id - 2**64 if insert_id >= 2**63 else insert_id
