"""An application's transactions that all count one thing: by our counter, by a row of their own."""

from __future__ import annotations

from typing import Final

from benchmarks.database import connect, one_value
from benchmarks.measuring import Measurement, Wrong
from benchmarks.processes import Child
from benchmarks.rows import TRANSACTIONS, on
from benchmarks.site import Site
from countersink.store import Store

CONNECTIONS: Final = 8
HELD_S: Final = 0.005
"""Seconds that a transaction goes on after it has counted."""
COUNTER: Final = "orders"
KEY: Final = "paid"

TABLES: Final = (
    "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20)) ENGINE = InnoDB",
    "CREATE TABLE totals (name VARCHAR(64) PRIMARY KEY, cnt BIGINT NOT NULL) ENGINE = InnoDB",
    f"INSERT INTO totals VALUES ('{COUNTER}', 0)",
)
UPDATE: Final = f"UPDATE totals SET cnt = cnt + 1 WHERE name = '{COUNTER}'"
"""The peer's counter."""


class Transactions:
    """`app_transactions_…`, `peer_app_transactions_…`: 8 connections, one hot counter."""

    def __init__(self, site: Site, name: str, *, ours: bool) -> None:
        self.name = name
        self._site = site
        self._ours = ours

    def measure(self, seconds: float) -> Measurement:
        """Transactions committed. Raises Wrong if the counter is not the number of rows."""
        with self._site.database() as url:
            with Store(url) as store:
                store.migrate()
                _create(url)
                with Child(
                    "benchmarks.children.app_transaction",
                    url=url,
                    ours=self._ours,
                    connections=CONNECTIONS,
                    held_s=HELD_S,
                    seconds=seconds,
                ) as child:
                    said = child.hear()
                counted = (
                    store.totals.total(COUNTER, key=KEY)
                    if self._ours
                    else one_value(url, "SELECT cnt FROM totals")
                )
            rows = one_value(url, "SELECT COUNT(*) FROM orders")
        if not counted == rows == said["transactions"]:
            raise Wrong(
                f"{self.name}: {counted} counted, {rows} rows, {said['transactions']} committed"
            )
        return Measurement(rows, said["seconds"])


def rows(site: Site) -> list[Transactions]:
    """Both of them, on that server."""
    return [
        Transactions(site, on(site.kind, row), ours=ours)
        for row, ours in zip(TRANSACTIONS, (True, False), strict=True)
    ]


def _create(url: str) -> None:
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)
    finally:
        connection.close()
