"""An application's own connection, and what it and the tables are asked in tests."""

from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql

from countersink.database.session import Session
from countersink.store import Store
from tests.support.waiting import eventually

Connection: TypeAlias = "pymysql.Connection[Any]"

MOST: Final = 10**27 - 1
"""Largest amount of the tables; a row that has so much fails the next increment, 1264."""


def open_app(url: str, **options: Any) -> Connection:
    """A connection as an application makes one: not autocommitting, with the server's settings."""
    parts = urlsplit(url)
    given: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/") or None,
    }
    return pymysql.connect(**(given | options))


def run(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    """Run a statement; its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def set_amount(connection: Connection, key: str, amount: int) -> None:
    """Set the amount of a key's only row, as nothing but SQL by hand does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE counter_slot SET amount = %s WHERE counter_key = %s", (amount, key.encode())
        )


def commit_one(store: Store, app: Connection, *counted: Any, **more: Any) -> None:
    """Increment in the application's transaction, and commit it."""
    store.increment(app, *counted, **more)
    app.commit()


def without_snapshot_isolation(connection: Connection) -> None:
    """Have it add to rows that others have changed since its snapshot, where servers differ.

    MariaDB refuses that by default from 11.6.2 on; then each connection has slots of its own.
    """
    if run(connection, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
        run(connection, "SET SESSION innodb_snapshot_isolation = OFF")


def labels(session: Session, counter: str = "orders") -> dict[str, int]:
    """What each bucket of a counter holds."""
    found = session.query(
        "SELECT CAST(bucket AS CHAR), SUM(amount) FROM counter_slot WHERE counter = %s"
        " GROUP BY bucket",
        (counter,),
    )
    return {bucket: int(amount) for bucket, amount in found}


def app_slots(session: Session, counter: str = "orders") -> dict[int, int]:
    """What each slot of a counter holds."""
    found = session.query(
        "SELECT slot, SUM(amount) FROM counter_slot WHERE counter = %s GROUP BY slot", (counter,)
    )
    return {int(slot): int(amount) for slot, amount in found}


def wait_for_lock_wait(session: Session, least: int = 1) -> None:
    """Wait until some transaction waits for a lock, or that many do."""

    def waits() -> bool:
        ((_, number),) = session.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(number) >= least

    eventually(waits)
