"""Books, sold and counted: "you bought copy n this month", and no two buyers the same n.

    countersink migrate
    COUNTERSINK_MYSQL_URL=mysql://user:password@host/database python docs/examples/book_sales.py

A counter per title, added to and read back in one statement, one copy at a time or by the dozen;
each month begins again at 1, past months stay to be asked for. Then the way it is often done by
hand, UPDATE and then SELECT, beside it: several processes sell at once, and what their buyers are
told is compared. It uses names of its own, and takes them away again.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from countersink.store import Store, StoreError

TITLES = ("The Dispossessed", "Émile Zola: Germinal", "百年孤独")
ZONE = "Europe/Berlin"
PROCESSES = 4
SALES = 400
"""By each process."""
RUN = f"book_sales-{uuid.uuid4().hex[:8]}"
"""Names begin with it, so that two runs are not in each other's way."""

Sell = Callable[[], int]
"""Sell a copy; which one it was."""
Way = Callable[[str], AbstractContextManager[Sell]]
"""How to sell, from a table or a sequence of this name."""


def main() -> int:
    """Show all of it; the exit status."""
    if not os.environ.get("COUNTERSINK_MYSQL_URL"):
        print("set COUNTERSINK_MYSQL_URL, and run countersink migrate first", file=sys.stderr)
        return 2
    with Store.from_env() as store:
        try:
            one_after_the_other(store)
            by_month(store)
            several_at_once(f"{RUN}: in a hurry")
        except StoreError as error:
            print(f"book_sales: {error}", file=sys.stderr)
            return 1
        finally:
            for sequence in store.sequences.list(RUN):
                store.sequences.delete(sequence.name)
    return 0


def one_after_the_other(store: Store) -> None:
    """A sequence per title: a title will do as its name, and the first sale makes it."""
    print("One after the other")
    sequences = store.sequences
    for title in TITLES:
        name = f"{RUN}: {title}"
        sequences.configure(name, period="month", time_zone=ZONE)
        copy = sequences.next(name)
        print(f"  {title}: you bought copy {copy}")
        sold = sequences.next(name, step=12)
        print(f"  {title}: a dozen, copies {sold - 11} to {sold}")


def by_month(store: Store) -> None:
    """What is left of past months, and the sum."""
    print("By month")
    name = f"{RUN}: {TITLES[0]}"
    *_, this_month = store.sequences.periods(name)
    assert this_month.start is not None
    last_month = (this_month.start - timedelta(days=1)).replace(day=1)
    pretend_it_sold(name, last_month, 240)
    for period in store.sequences.periods(name):
        print(f"  {period.start:%Y-%m}: {period.value:,} copies")
    print(f"  in its lifetime: {store.sequences.total(name):,} copies")
    print(f"  asked for {last_month:%Y-%m}: {store.sequences.peek(name, period=last_month):,}")


def pretend_it_sold(name: str, month: date, copies: int) -> None:
    """Leave behind what that month would have left. Only a demonstration cannot wait for a month:
    in earnest the new month begins by itself, at midnight in the sequence's time zone."""
    with connection() as connected, connected.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sequence (name, period, value, updated_at)"
            " VALUES (%s, %s, %s, UTC_TIMESTAMP(3))",
            (name.encode(), month, copies),
        )


def several_at_once(sequence: str) -> None:
    """The same sales by UPDATE and then SELECT, and by a sequence."""
    print(f"{PROCESSES} processes sell {SALES} copies each")
    table = RUN.replace("-", "_")
    with sellers() as sell_everything, connection() as connected, connected.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (title VARCHAR(100) PRIMARY KEY, copies INT)")
        try:
            cursor.execute(f"INSERT INTO {table} VALUES (%s, 0)", (TITLES[0],))
            report("UPDATE, then SELECT", sell_everything(sell_by_hand, table))
        finally:
            cursor.execute(f"DROP TABLE {table}")
        report("store.sequences.next", sell_everything(sell_by_sequence, sequence))


def report(way: str, told: list[int]) -> None:
    """How many buyers were told what another one was told too."""
    times = Counter(told)
    duplicates = len(told) - len(times)
    print(f"  {way}: {len(told)} sold, {len(times)} different numbers, {duplicates} duplicates")


@contextmanager
def sell_by_hand(table: str) -> Iterator[Sell]:
    """Two statements: in between others sell, and their copies are read as one's own."""

    def sell() -> int:
        cursor.execute(f"UPDATE {table} SET copies = copies + 1 WHERE title = %s", (TITLES[0],))
        cursor.execute(f"SELECT copies FROM {table} WHERE title = %s", (TITLES[0],))
        (copies,) = cursor.fetchone() or (0,)
        return int(copies)

    with connection() as connected, connected.cursor() as cursor:
        yield sell


@contextmanager
def sell_by_sequence(name: str) -> Iterator[Sell]:
    """One statement, which adds and answers."""
    with Store.from_env() as store:
        yield partial(store.sequences.next, name)


@contextmanager
def sellers() -> Iterator[Callable[[Way, str], list[int]]]:
    """Several processes, which sell as they are told; what all buyers of all of them were told."""

    def sell_everything(way: Way, name: str) -> list[int]:
        selling = [processes.submit(seller, way, name) for _ in range(PROCESSES)]
        return [number for each in selling for number in each.result()]

    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Barrier(PROCESSES, timeout=60)
    with ProcessPoolExecutor(PROCESSES, mp_context=spawning, initializer=ready.wait) as processes:
        yield sell_everything


def seller(way: Way, name: str) -> list[int]:
    """One of the processes; what its buyers were told."""
    with way(name) as sell:
        return [sell() for _ in range(SALES)]


@contextmanager
def connection() -> Iterator[pymysql.connections.Connection[Any]]:
    """A plain connection, as an application has one."""
    url = urlsplit(os.environ["COUNTERSINK_MYSQL_URL"])
    with pymysql.connect(
        host=url.hostname or "localhost",
        port=url.port or 3306,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        database=url.path.lstrip("/"),
        autocommit=True,
    ) as connected:
        yield connected


if __name__ == "__main__":
    sys.exit(main())
