"""A large ``counter_slot`` whose totals are all known, and the dashboard's requests with the
numbers that each answer must have."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from heapq import nsmallest
from itertools import product
from typing import Any, Final
from zlib import crc32

from benchmarks.database import connect
from countersink.counting.ledger import BucketSums, post
from countersink.database.sessions import open_tables
from countersink.database.sql import day_label

KEYS_PER_COMMIT: Final = 200_000
WRITERS: Final = 2
"""Connections that fill the table at once."""
DAY: Final = timedelta(1)
LISTED: Final = 100
"""Counters of the first page of the list."""
TOP: Final = 25
"""Keys that a counter's page shows at first."""
_LOG_AT_COMMIT: Final = "SET GLOBAL innodb_flush_log_at_trx_commit ="
_PRIME: Final = 9_973

KeyTotals = list[tuple[str, int]]


@dataclass(frozen=True)
class SlotTable:
    """Table with a row for each counter, day and key; on the newest days, in each of some slots.

    Attributes:
        counters: number of counters, all with the same days and keys.
        keys: number of keys of each counter.
        last: the last day, in UTC.
        days: number of days.
        fresh_days: number of the newest days, which are not compacted.
        slots: number of slots, from 1 on, of these days; the days before have slot 0.
    """

    counters: int
    keys: int
    last: date
    days: int = 1
    fresh_days: int = 0
    slots: int = 4

    @property
    def rows(self) -> int:
        """Number of slot rows."""
        slots = self.days - self.fresh_days + self.fresh_days * self.slots
        return self.counters * self.keys * slots

    @property
    def first(self) -> date:
        """The first day."""
        return self.last - (self.days - 1) * DAY

    def counter(self, number: int) -> str:
        """Return the name of a counter, by its number from 0."""
        return f"counter_{number:05d}"

    def key(self, number: int) -> str:
        """Return a key, by its number from 0."""
        return f"/articles/{number:08d}"

    def total(self, counter: int, first: date | None = None, last: date | None = None) -> int:
        """Return the total of a counter over a range of days, both included."""
        added = self._added(counter, first, last)
        return len(added) * self._weights[0] + self.keys * sum(added)

    def total_of_key(
        self, counter: int, number: int, first: date | None = None, last: date | None = None
    ) -> int:
        """Return the total of one key over a range of days, both included."""
        added = self._added(counter, first, last)
        return len(added) * self._weight(number) + sum(added)

    def top(self, counter: int, first: date, last: date, n: int, search: str = "") -> KeyTotals:
        """Return the first ``n`` keys that contain ``search``, with their totals over a range."""
        if not self._added(counter, first, last):
            return []
        found = (one for one in range(self.keys) if not search or search in self.key(one))
        best = nsmallest(n, found, lambda one: -self._weight(one))
        return [(self.key(one), self.total_of_key(counter, one, first, last)) for one in best]

    def fill(self, url: str) -> float:
        """Put the rows into the migrated, empty database and its ledger; return the seconds."""
        begun = time.monotonic()
        with _statements(url) as execute:
            flush = execute("SELECT @@innodb_flush_log_at_trx_commit")
            execute("CREATE TABLE growth_number (n INT UNSIGNED PRIMARY KEY)")
            execute("INSERT INTO growth_number VALUES (0)")
            there = 1
            while there < self.keys:
                more = min(there, self.keys - there)
                execute(
                    f"INSERT INTO growth_number SELECT n + {there} FROM growth_number"
                    f" WHERE n < {more}"
                )
                there += more
            execute(f"{_LOG_AT_COMMIT} 0")
            parts = list(product(range(self.counters), range(0, self.keys, KEYS_PER_COMMIT)))
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(lambda n: self._fill_parts(url, parts[n::WRITERS]), range(WRITERS)))
            execute(f"{_LOG_AT_COMMIT} {flush}")
            execute("DROP TABLE growth_number")
            # A table that has grown slowly has statistics; one that was filled may have none.
            execute("ANALYZE TABLE counter_slot")
        with open_tables(url) as session, session.transaction():
            post(session, 1, self._sums())
        return time.monotonic() - begun

    def _fill_parts(self, url: str, parts: list[tuple[int, int]]) -> None:
        """Insert a range of keys of each counter, one transaction each, in primary key order."""
        with _statements(url, autocommit=False) as execute:
            for counter, start in parts:
                for day, slot in self._buckets(self.first, self.last):
                    execute(
                        "INSERT INTO counter_slot"
                        " (counter, bucket, width, counter_key, slot, amount)"
                        f" SELECT '{self.counter(counter)}', '{day}', 4,"
                        f" CONCAT('/articles/', LPAD(n, 8, '0')), {slot},"
                        f" 1 + n * 7919 % {_PRIME} + {self._extra(counter, day, slot)}"
                        f" FROM growth_number WHERE n >= {start} AND n < {start + KEYS_PER_COMMIT}"
                        " ORDER BY n"
                    )
                execute("COMMIT")

    def _sums(self) -> BucketSums:
        plain, weighted, unweighted = self._weights
        sums = BucketSums()
        for counter in range(self.counters):
            for day, slot in self._buckets(self.first, self.last):
                extra = self._extra(counter, day, slot)
                amount = plain + self.keys * extra
                sums.add(
                    self.counter(counter), day_label(day), amount, weighted + extra * unweighted
                )
        return sums

    def _weight(self, number: int) -> int:
        return 1 + number * 7919 % _PRIME

    def _extra(self, counter: int, day: date, slot: int) -> int:
        return counter % 10 + day.toordinal() % 7 + slot

    def _added(
        self, counter: int, first: date | None = None, last: date | None = None
    ) -> list[int]:
        """Return what each row of a key has beyond the key's weight."""
        start, end = max(first or self.first, self.first), min(last or self.last, self.last)
        return [self._extra(counter, day, slot) for day, slot in self._buckets(start, end)]

    def _buckets(self, first: date, last: date) -> Iterator[tuple[date, int]]:
        fresh = self.last - self.fresh_days * DAY
        for number in range((last - first).days + 1):
            day = first + number * DAY
            for slot in range(1, self.slots + 1) if day > fresh else (0,):
                yield day, slot

    @cached_property
    def _weights(self) -> tuple[int, int, int]:
        """Sums over the keys: of weights, of weights times squares of CRC-32, of these squares."""
        plain = weighted = unweighted = 0
        for number in range(self.keys):
            weight, of_key = self._weight(number), crc32(self.key(number).encode()) ** 2
            plain += weight
            weighted += weight * of_key
            unweighted += of_key
        return plain, weighted, unweighted


@contextlib.contextmanager
def _statements(url: str, *, autocommit: bool = True) -> Iterator[Callable[[str], Any]]:
    """A function that runs a statement and returns the first value of its answer, if any."""
    connection = connect(url, autocommit=autocommit)
    try:
        with connection.cursor() as cursor:

            def execute(statement: str) -> Any:
                cursor.execute(statement)
                return (cursor.fetchone() or (None,))[0] if cursor.description else None

            yield execute
    finally:
        connection.close()


Document = Any
"""An answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the dashboard.

    Attributes:
        name: what the view shows of the answer.
        path: with its parameters.
        right: whether an answer has exactly the numbers of the table.
    """

    name: str
    path: str
    right: Callable[[Document], bool]


@dataclass(frozen=True, slots=True)
class View:
    """A view of the dashboard, with its requests in the order in which the browser sends them."""

    name: str
    requests: tuple[Request, ...]


def list_view(table: SlotTable, days: int, sort: str = "") -> View:
    """Return the list of counters with lines of so many days; ``sort``: an order but by name."""
    order = f"&sort={sort}&reverse=false&change={days}" if sort else ""
    path = f"/v1/counters?search=&after=&limit={LISTED}"
    shown = min(LISTED, table.counters)

    def of_days(found: Document, also: Callable[[int, Document, date], bool]) -> bool:
        rows = {int(row["counter"][-5:]): row for row in found["rows"]}
        return len(rows) == shown == len(found["rows"]) and all(
            row["days"] == [{"day": day, "total": on(number, day)} for day in days_of(row)]
            and also(number, row, date.fromisoformat(days_of(row)[-1]))
            for number, row in rows.items()
        )

    def days_of(row: Document) -> list[str]:
        return [each["day"] for each in row["days"]]

    def on(number: int, text: str) -> int:
        return table.total(number, date.fromisoformat(text), date.fromisoformat(text))

    def has_change(number: int, row: Document, today: date) -> bool:
        ends = [today - back * DAY for back in (2 * days, days + 1, days, 1)]
        spans = [table.total(number, *ends[2:]), table.total(number, *ends[:2])]
        return list(row["change"]) == spans and row["total"] == table.total(number)

    return View(
        f"list_{days}" + (f"_by_{sort}" if sort else ""),
        (
            Request(
                "lines",
                f"{path}&days={days}&totals=false{order}",
                lambda found: of_days(found, lambda *_: True),
            ),
            Request(
                "totals and change",
                f"{path}&change={days}&days=1" + (order and f"&sort={sort}&reverse=false"),
                lambda found: of_days(found, has_change),
            ),
        ),
    )


def live_view(table: SlotTable) -> View:
    """Return what the stream of live numbers reads each second: today of the listed counters."""
    lines = list_view(table, 1).requests[0]
    return View("live", (Request("today", lines.path, lines.right),))


def counter_view(
    table: SlotTable, number: int, days: int, *, against: date | None = None, search: str = ""
) -> View:
    """Return the page of one counter.

    Args:
        table: the table.
        number: of the counter.
        days: up to the last one.
        against: first day of the period that it is compared with; None: the one before.
        search: what is looked for among the keys, after the page is shown.
    """
    counter, last = table.counter(number), table.last
    first = last - (days - 1) * DAY
    other = against or first - days * DAY
    ends = other + (days - 1) * DAY
    # A change is that of days that are over.
    over, left = (last - DAY, ends - DAY) if days > 1 else (last, ends)
    path = f"/v1/counters/{counter}"

    def series(name: str, start: date, end: date) -> Request:
        expected = [
            (str(day), table.total(number, day, day))
            for day in (start + n * DAY for n in range((end - start).days + 1))
        ]
        return Request(
            name,
            f"{path}/daily?from={start}&to={end}",
            lambda found: [(row["day"], row["total"]) for row in found["rows"]] == expected,
        )

    def keys(name: str, text: str) -> Request:
        ranges = ((first, over), (other, left))
        expected = [
            {
                "key": key,
                "total": total,
                "also": [table.total_of_key(number, int(key[-8:]), *each) for each in ranges],
            }
            for key, total in table.top(number, first, last, TOP, text)
        ]
        also = "".join(f"&also={start}..{end}" for start, end in ranges)
        return Request(
            name,
            f"{path}/top?n={TOP}&from={first}&to={last}{also}&search={text}",
            lambda found: found["rows"] == expected,
        )

    requests = (
        Request("settings", path, lambda found: found["counter"] == counter),
        Request(
            "in all",
            f"{path}/totals?by=total",
            lambda found: found["rows"][0]["total"] == table.total(number),
        ),
        series("two days", last - DAY, last),
        series("days", first, last),
        series("days compared", other, ends),
        Request("notes", f"{path}/notes?from={first}&to={last}", lambda found: not found["rows"]),
        keys("top keys", ""),
        *([keys("keys found", search)] if search else ()),
    )
    return View(f"counter_{days}" + ("_compared" if against else ""), requests)
