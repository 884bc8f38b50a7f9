"""What compaction does for reads: a key's year and a day's top 10, before and after it."""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, Final

from benchmarks.compaction_ways import open_way
from benchmarks.database import one_value
from benchmarks.filling import Filling, fill
from benchmarks.measuring import Wrong
from benchmarks.rows import on
from benchmarks.site import Site
from benchmarks.workload import COUNTER
from countersink.database.migrate import migrate
from countersink.store import Store

YEAR: Final = Filling("/articles/", 200, date(2025, 1, 1), 365, 4)
BUSY_DAY: Final = Filling("/visitors/", 100_000, date(2026, 1, 5), 1, 8)
"""In the same table, of the same counter."""
QUICK_PART: Final = 100
"""A run of less than a second per measurement has this part of the keys."""
LEAST: Final = 5
"""Repetitions of a query, however long it takes."""
PURGED_SECONDS: Final = 300.0
PURGED: Final = 200
"""History this short (the server's `trx_rseg_history_len`) is as short as it gets."""
COUNT: Final = "SELECT COUNT(*) FROM counter_slot"
HISTORY: Final = (
    "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
)

QUERIES: Final = {"series": "one key's 365 days", "top": "the top 10 of a day of 100,000 keys"}
"""What is asked for, and one line on it."""


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How long a query took, each time, in ms."""

    milliseconds: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        """For results.json."""
        return {
            "median": round(statistics.median(self.milliseconds), 3),
            "low": round(min(self.milliseconds), 3),
            "high": round(max(self.milliseconds), 3),
            "p99": round(statistics.quantiles(self.milliseconds, n=100, method="inclusive")[98], 3),
            "repetitions": len(self.milliseconds),
        }


class Reads:
    """`reads_…`: fills a table, asks, compacts it, and asks again."""

    def __init__(self, site: Site) -> None:
        self.name = on(site.kind, "reads")
        self._site = site

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """The `reads` of results.json, one for each of the `QUERIES`, each repeated for ``seconds``
        before compaction and after. Raises Wrong if any answer changes."""
        year, day = YEAR, BUSY_DAY
        if seconds < 1:
            year = replace(year, keys=year.keys // QUICK_PART)
            day = replace(day, keys=day.keys // QUICK_PART)
        with self._site.database() as url:
            migrate(url)
            fill(url, [year, day])
            rows_before = one_value(url, COUNT)
            before = _ask(url, year, day, seconds)
            begun = time.monotonic()
            with open_way("nonstop", url, bucket="") as compact:
                compact()
            compact_seconds = time.monotonic() - begun
            wait_until_purged(url)
            rows_after = one_value(url, COUNT)
            after = _ask(url, year, day, seconds)
        if rows_after != year.keys * year.days + day.keys:
            raise Wrong(f"{self.name}: compaction left {rows_after:,} of {rows_before:,} rows")
        return [
            {
                "name": on(self._site.kind, query),
                "before_ms": before[query].figures(),
                "after_ms": after[query].figures(),
                "slot_rows_before": rows_before,
                "slot_rows_after": rows_after,
                "compact_seconds": round(compact_seconds, 2),
            }
            for query in QUERIES
        ]


Question = tuple[Callable[[], object], object]
"""How to ask, and what must be the answer."""


def _ask(url: str, year: Filling, day: Filling, seconds: float) -> dict[str, Repetitions]:
    """Every query, over and over."""
    with Store(url) as store:
        return {
            "series": repeat(_series(store, year), seconds),
            "top": repeat(_top(store, day), seconds),
        }


def _series(store: Store, year: Filling) -> Iterator[Question]:
    """The days of one key after the other, at random."""
    draw = random.Random(year.keys)
    days = [year.first + timedelta(number) for number in range(year.days)]
    while True:
        number = draw.randrange(year.keys)
        yield (
            partial(store.totals.daily, COUNTER, key=year.key(number), start=days[0], end=days[-1]),
            [(day, year.total(number, index)) for index, day in enumerate(days)],
        )


def _top(store: Store, day: Filling) -> Iterator[Question]:
    totals = [(day.key(number), day.total(number, 0)) for number in range(day.keys)]
    best = heapq.nsmallest(10, totals, key=lambda each: (-each[1], each[0]))
    ask = partial(store.totals.top, COUNTER, start=day.first, end=day.first, n=10)
    while True:
        yield ask, best


def repeat(questions: Iterator[Question], seconds: float) -> Repetitions:
    """Ask until it has taken ``seconds``; the first time, which fills caches, does not count."""
    taken: list[float] = []
    for number, (ask, expected) in enumerate(questions):
        begun = time.perf_counter()
        answer = ask()
        ended = time.perf_counter()
        if answer != expected:
            raise Wrong(f"a query is not answered with what was counted: {answer!r:.200}")
        if number > 0:
            taken.append((ended - begun) * 1000)
        if len(taken) >= LEAST and sum(taken) >= seconds * 1000:
            break
    return Repetitions(tuple(taken))


def wait_until_purged(url: str) -> None:
    """Wait until the server has taken the deleted rows off the pages, as it has at most times."""
    deadline = time.monotonic() + PURGED_SECONDS
    while one_value(url, HISTORY) > PURGED:
        if time.monotonic() > deadline:
            raise Wrong(f"the server has not purged deleted rows within {PURGED_SECONDS:g} s")
        time.sleep(0.2)
