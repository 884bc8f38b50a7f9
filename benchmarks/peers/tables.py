"""The tables of the hand-built ways: one row per key and day, plain or in slots."""

from __future__ import annotations

from typing import Final

from benchmarks.database import connect, one_value, upsert
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


def check(url: str, expected: int) -> None:
    """Raises Wrong unless the table's counts add up to ``expected``."""
    total = one_value(url, "SELECT SUM(cnt) FROM hits")
    if total != expected:
        raise Wrong(f"{total} events in the table, {expected} were counted")
