"""What the tables say, read by plain SQL without a line of the product's own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pymysql

from tests.support.traffic import Cell

SLOTS = """
    SELECT counter, DATE(bucket), counter_key, CAST(SUM(amount) AS CHAR)
    FROM counter_slot GROUP BY counter, DATE(bucket), counter_key
"""
LEDGER = """
    SELECT counter, DATE(bucket), CAST(SUM(amount) AS CHAR)
    FROM counter_ledger GROUP BY counter, DATE(bucket)
"""


def connect(mysql_url: str) -> pymysql.Connection[Any]:
    """A plain autocommitting connection of the test's own."""
    parts = urlsplit(mysql_url)
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        database=parts.path.lstrip("/") or None,
        autocommit=True,
        charset="utf8mb4",
        read_timeout=30,
        ssl_disabled=True,  # a context of TLS costs 24 ms for each connection
    )


class Oracle:
    """Reads totals, ledger, guards and dead rows of one database; a context manager."""

    def __init__(self, mysql_url: str) -> None:
        self.connection = connect(mysql_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self.query(sql)

    def query(self, sql: str, args: tuple[object, ...] = (), /) -> list[tuple[Any, ...]]:
        """As a session's."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def execute(self, sql: str, args: tuple[object, ...] = (), /) -> int:
        """As a session's."""
        return len(self.query(sql, args))

    def totals(self) -> dict[Cell, int]:
        """The sum over slots per counter, day and key."""
        return {
            (_text(counter), day, bytes(key)): int(total)
            for counter, day, key, total in self.rows(SLOTS)
        }

    def ledger(self) -> dict[str, int]:
        """The ledger's sum per counter."""
        found: Counter[str] = Counter()
        for counter, _, total in self.rows(LEDGER):
            found[_text(counter)] += int(total)
        return dict(found)

    def guards(self) -> int:
        """How many entries are on record as applied."""
        return int(self.rows("SELECT COUNT(*) FROM applied_entry")[0][0])

    def dead(self) -> set[tuple[str, int]]:
        """The dead letters: (entry id in hex, position)."""
        return {
            (bytes(entry_id).hex(), int(position))
            for entry_id, position in self.rows("SELECT entry_id, position FROM dead_row")
        }

    def differences(self, expected: Mapping[Cell, int]) -> list[str]:
        """Where the tables differ from the dictionary (or from each other), a line each."""
        totals = self.totals()
        lines = [
            f"{counter} {day} {key!r}: sent {expected.get((counter, day, key), 'nothing')}, "
            f"counted {totals.get((counter, day, key), 'nothing')}"
            for counter, day, key in sorted(expected.keys() | totals.keys())
            if expected.get((counter, day, key)) != totals.get((counter, day, key))
        ]
        sums: Counter[tuple[str, date]] = Counter()
        for (counter, day, _), total in totals.items():
            sums[counter, day] += total
        ledger = Counter(
            {(_text(name), day): int(amount) for name, day, amount in self.rows(LEDGER)}
        )
        lines += [
            f"{counter} {day}: ledger {ledger[counter, day]}, slots {sums[counter, day]}"
            for counter, day in sorted(sums.keys() | ledger.keys())
            if sums[counter, day] != ledger[counter, day]
        ]
        return lines

    def check(self, expected: Mapping[Cell, int], note: str = "") -> None:
        """Assert that every total is exactly what was sent, and that the ledger agrees."""
        lines = self.differences(expected)
        assert not lines, "\n".join([f"{len(lines)} differences {note}", *lines[:40]])


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
