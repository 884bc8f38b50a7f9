"""Counting the rows of a big table: `Store.row_count` against COUNT(*), and what `track` takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from benchmarks.app_table import BY, CREATE, DAY, FIRST, TABLE, insert
from benchmarks.database import Connected, connect
from benchmarks.measuring import Wrong
from benchmarks.processes import Child
from benchmarks.rows import on
from benchmarks.site import Site
from countersink.database.migrate import migrate
from countersink.store import Store

ROWS: Final = 2_000_000
QUICK_ROWS: Final = 20_000
"""Of a run of less than a second per measurement."""
FILL_SECONDS: Final = 60.0
"""A table is not doubled again where that would take longer than this in all."""
FIRST_ROWS: Final = 10_000
LEAST: Final = 5
"""Repetitions of a question, however long it takes."""
WEEK: Final = (FIRST + timedelta(7), FIRST + timedelta(13))

QUESTIONS: Final = {
    "all": "all rows",
    "status": "WHERE status = 'paid', which has an index",
    "week": "WHERE status = 'paid' and a week",
}
"""What is asked for, and one line on it."""


class RowCounts:
    """`row_counts_…`: fills a table, tracks it beside a writer, and asks both ways."""

    def __init__(self, site: Site) -> None:
        self.name = on(site.kind, "row_counts")
        self._site = site

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """The row of the `row_counts` of results.json; every question is repeated for ``seconds``.

        Raises Wrong if an answer is not what COUNT(*) says.
        """
        with self._site.database() as url, Store(url) as store:
            migrate(url)
            begun = time.monotonic()
            rows = fill(url, QUICK_ROWS if seconds < 1 else ROWS)
            filled = time.monotonic() - begun
            tracked = self._track(url, store, seconds)
            connection = connect(url, autocommit=True)
            try:
                asked = [
                    {"question": question, **_ask(connection, store, question, seconds)}
                    for question in QUESTIONS
                ]
            finally:
                connection.close()
        return [
            {
                "name": self.name,
                "table_rows": rows,
                "fill_seconds": round(filled, 1),
                **tracked,
                "questions": asked,
            }
        ]

    def _track(self, url: str, store: Store, seconds: float) -> dict[str, float]:
        """Track beside a writer that inserts one row after the other."""
        with Child(
            "benchmarks.children.row_writer", url=url, threads=1, rows=1, each=True
        ) as writer:
            writer.hear()  # connected
            writer.say(begin=True)
            time.sleep(seconds)
            begun = time.monotonic()
            store.tracked.track(TABLE, by=BY, day=DAY)
            ended = time.monotonic()
            writer.say(stop=True)
            took: list[tuple[float, float]] = writer.hear()["took"]
        alone = [each for at, each in took if at <= begun]
        beside = [each for at, each in took if at > begun and at - each < ended]
        if not alone or not beside:
            raise Wrong(f"{self.name}: the writer has written nothing")
        return {
            "track_seconds": round(ended - begun, 3),
            "worst_insert_ms": round(max(beside) * 1000, 2),
            "median_insert_ms": round(statistics.median(beside) * 1000, 3),
            "worst_insert_alone_ms": round(max(alone) * 1000, 2),
            "median_insert_alone_ms": round(statistics.median(alone) * 1000, 3),
        }


def fill(url: str, rows: int) -> int:
    """Make the table, and double it until it has so many rows or time is up; how many it has."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            begun = time.monotonic()
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(CREATE)
            there = 0
            for number in range(0, min(rows, FIRST_ROWS), 1000):
                there += cursor.execute(*insert(number, 1000))
            while there < rows and 2 * (time.monotonic() - begun) < FILL_SECONDS:
                there += cursor.execute(
                    f"INSERT INTO {TABLE} (tenant, status, placed)"
                    f" SELECT tenant, status, placed FROM {TABLE} LIMIT {min(there, rows - there)}"
                )
        return there
    finally:
        connection.close()


def _ask(connection: Connected, store: Store, question: str, seconds: float) -> dict[str, Any]:
    """Both ways, one after the other."""
    first, last = WEEK
    paid = "WHERE status = 'paid'"
    condition, ours = {
        "all": ("", partial(store.row_count, TABLE)),
        "status": (paid, partial(store.row_count, TABLE, status="paid")),
        "week": (
            f"{paid} AND placed >= '{first}' AND placed < '{last + timedelta(1)}'",
            partial(store.row_count, TABLE, start=first, end=last, status="paid"),
        ),
    }[question]
    theirs = partial(_count, connection, f"SELECT COUNT(*) FROM {TABLE} {condition}")
    rows, counted = theirs(), ours()
    if rows != counted:
        raise Wrong(f"{question}: COUNT(*) is {rows}, row_count {counted}")
    count_ms, row_count_ms = _repeat(theirs, seconds), _repeat(ours, seconds)
    return {
        "rows": rows,
        "count_ms": count_ms,
        "row_count_ms": row_count_ms,
        "ratio": round(count_ms["median"] / row_count_ms["median"], 1),
    }


def _count(connection: Connected, query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        (count,) = cursor.fetchone() or (0,)
        return int(count)


def _repeat(ask: Callable[[], int], seconds: float) -> dict[str, float]:
    """How long an answer took in ms: asked for ``seconds``, after once that does not count."""
    expected = ask()
    taken: list[float] = []
    while len(taken) < LEAST or sum(taken) < seconds * 1000:
        begun = time.perf_counter()
        answer = ask()
        taken.append((time.perf_counter() - begun) * 1000)
        if answer != expected:
            raise Wrong(f"first {expected}, then {answer}")
    return {
        "median": round(statistics.median(taken), 3),
        "low": round(min(taken), 3),
        "high": round(max(taken), 3),
        "repetitions": len(taken),
    }
