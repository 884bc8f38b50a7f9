"""The hand-made ways to get a number of one's own, and the table they need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from benchmarks.database import Connected, connect

Peer = Literal["for_update", "last_insert_id"]
Way = Literal["sequence"] | Peer

NAME: Final = "tickets"
TABLE: Final = """
CREATE TABLE numbers (
    name VARBINARY(255) NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (name)
) ENGINE=InnoDB
"""
SELECT: Final = "SELECT value FROM numbers WHERE name = %s FOR UPDATE"
UPDATE: Final = "UPDATE numbers SET value = %s WHERE name = %s"
ADD: Final = "UPDATE numbers SET value = LAST_INSERT_ID(value + 1) WHERE name = %s"
ANSWER: Final = "SELECT LAST_INSERT_ID()"


def create(url: str) -> None:
    """Make the table, with its one row: both ways need it to be there."""
    connection = connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(TABLE)
            cursor.execute("INSERT INTO numbers (name, value) VALUES (%s, 0)", (NAME,))
        connection.commit()
    finally:
        connection.close()


def open_peer(peer: Peer, url: str) -> Callable[[], int]:
    """The next number, over a connection that lasts as long as the process."""
    if peer == "for_update":
        return partial(_for_update, connect(url))
    return partial(_last_insert_id, connect(url, autocommit=True))


def _for_update(connection: Connected) -> int:
    """Three round trips in one transaction; the row is locked from the first to the last."""
    with connection.cursor() as cursor:
        cursor.execute(SELECT, (NAME,))
        (value,) = cursor.fetchone() or (0,)
        cursor.execute(UPDATE, (value + 1, NAME))
    connection.commit()
    return int(value) + 1


def _last_insert_id(connection: Connected) -> int:
    """Two round trips."""
    with connection.cursor() as cursor:
        cursor.execute(ADD, (NAME,))
        cursor.execute(ANSWER)
        (value,) = cursor.fetchone() or (0,)
    return int(value)
