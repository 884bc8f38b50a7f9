"""Connections for the peers and for checking results: plain PyMySQL, as people use it."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection

UPSERT_ROWS: Final = 1_000
"""Rows per multi-row statement: more are no faster."""

Connected: TypeAlias = "Connection[Any]"
Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]


def connect(
    url: str, *, autocommit: bool = False, isolation: Isolation = "READ COMMITTED"
) -> Connected:
    """A connection to ``mysql://user:password@host:port/database``."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.lstrip("/") or None,
        charset="utf8mb4",
        autocommit=autocommit,
        init_command=f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}",
    )


def server_version(connection: Connected) -> str:
    """As the server says it (its greeting would have "5.5.5-" before MariaDB's)."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        (version,) = cursor.fetchone() or ("",)
    return str(version)


def add_amount(connection: Connected, table: str, column: str) -> str:
    """The end of an upsert into ``table`` that adds to ``column``, in the server's dialect."""
    if "MariaDB" in server_version(connection):
        return f"ON DUPLICATE KEY UPDATE {column} = {column} + VALUES({column})"
    return f"AS new ON DUPLICATE KEY UPDATE {column} = {table}.{column} + new.{column}"


def upsert(connection: Connected, statement: str, rows: list[tuple[Any, ...]]) -> None:
    """Send ``rows`` as multi-row statements of 1,000."""
    with connection.cursor() as cursor:
        for start in range(0, len(rows), UPSERT_ROWS):
            cursor.executemany(statement, rows[start : start + UPSERT_ROWS])


def one_value(url: str, query: str) -> int:
    """The integer that ``query`` returns in its only column of its only row."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            (value,) = cursor.fetchone() or (0,)
            return int(value or 0)
    finally:
        connection.close()
