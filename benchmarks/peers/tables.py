"""The tables of the hand-built ways: one row per key and day, plain or in slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.database import add_amount, connect, one_value, upsert
from benchmarks.measuring import Wrong
from benchmarks.workload import COUNTER, zipf_counts

PLAIN: Final = """
CREATE TABLE hits (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day DATE NOT NULL,
    name VARBINARY(255) NOT NULL,
    cnt BIGINT NOT NULL,
    PRIMARY KEY (counter, day, name)
) ENGINE=InnoDB
"""
SLOTTED: Final = """
CREATE TABLE hits (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day DATE NOT NULL,
    name VARBINARY(255) NOT NULL,
    slot SMALLINT UNSIGNED NOT NULL,
    cnt BIGINT NOT NULL,
    PRIMARY KEY (counter, day, name, slot)
) ENGINE=InnoDB
"""
DAY: Final = "2026-11-21"


def create(url: str, table: str, *, with_rows: bool = False) -> None:
    """Make the table; with a row of 0 for every key, as UPDATE needs them."""
    connection = connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(table)
        if with_rows:
            rows = [(COUNTER, DAY, name, 0) for name in sorted(zipf_counts())]
            upsert(
                connection,
                "INSERT INTO hits (counter, day, name, cnt) VALUES (%s, %s, %s, %s)",
                rows,
            )
        connection.commit()
    finally:
        connection.close()


class Hits:
    """A connection to the plain table, and what adds to its counts."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._statement = (
            "INSERT INTO hits (counter, day, name, cnt) VALUES (%s, %s, %s, %s) "
            + add_amount(self._connection, "hits", "cnt")
        )

    def add(self, counts: Mapping[str, int]) -> None:
        """One transaction, in the order of the primary key."""
        rows = [(COUNTER, DAY, name, amount) for name, amount in sorted(counts.items())]
        upsert(self._connection, self._statement, rows)
        self._connection.commit()


def total(url: str) -> int:
    """The events in the table."""
    return one_value(url, "SELECT CAST(SUM(cnt) AS SIGNED) FROM hits")


def check(url: str, expected: int) -> None:
    """Raises Wrong unless the table's counts add up to ``expected``."""
    there = total(url)
    if there != expected:
        raise Wrong(f"{there} events in the table, {expected} were counted")
