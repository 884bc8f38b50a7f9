"""Rows planted in the tables by plain SQL, and what must be true of them whatever was moved."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from functools import partial
from typing import Any

from countersink.counting.apply.amounts import Row
from countersink.counting.apply.applier import Applier
from countersink.database.sql import label_of
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.store import Store
from tests.support.entries import entry
from tests.support.ledger import checksum, held, posted
from tests.support.oracle import connect
from tests.support.roll_up import roll_up

MAX = 2**63 - 1
MIN = -(2**63)
DAY = "2020-03-05 00:00:00 4"
"""A bucket that has long been over: its time, and the number of its width."""

Slotted = tuple[str, str, bytes, int, int]
"""(counter, bucket, key, slot, amount)."""


def label_at(bucket: str) -> int:
    """The label of a bucket."""
    time, _, width = bucket.rpartition(" ")
    return label_of(datetime.fromisoformat(time), int(width))


LABEL = label_at(DAY)


class Tables:
    """One database, looked at and written to without a line of the product's own code."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = connect(url)

    def plant(self, rows: Iterable[Slotted]) -> None:
        """Insert slot rows, and book them in the ledger as their writers would have done."""
        planted = list(rows)
        posts: dict[tuple[str, str, str, int], list[int]] = {}
        for counter, bucket, key, slot, amount in planted:
            sums = posts.setdefault((counter, bucket[:-2], bucket[-1], slot), [0, 0])
            sums[0] += amount
            sums[1] += checksum(key, amount)
        with self.connection.cursor() as cursor:
            self.connection.begin()
            cursor.executemany(
                "INSERT INTO counter_slot (counter, bucket, width, counter_key, slot, amount)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                [(name, bucket[:-2], bucket[-1], *rest) for name, bucket, *rest in planted],
            )
            cursor.executemany(
                "INSERT INTO counter_ledger (counter, bucket, width, slot, amount, checksum)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE"
                " amount = amount + VALUES(amount), checksum = checksum + VALUES(checksum)",
                [(*place, *sums) for place, sums in posts.items()],
            )
            self.connection.commit()

    def run(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def slots(self, counter: str = "v") -> list[tuple[str, bytes, int, int]]:
        """(bucket, key, slot, amount) of every row but those of months, in order."""
        return [
            (f"{bucket} {width}", bytes(key), slot, int(amount))
            for bucket, width, key, slot, amount in self.run(
                "SELECT bucket, width, counter_key, slot, amount FROM counter_slot"
                " WHERE counter = %s AND width <> 5 ORDER BY bucket, counter_key, width, slot",
                counter,
            )
        ]

    def months(self, counter: str = "v") -> list[tuple[date, bytes, int]]:
        """(first of the month, key, amount) of every row of a month, in order."""
        return [
            (bucket.date(), bytes(key), int(amount))
            for bucket, key, amount in self.run(
                "SELECT bucket, counter_key, amount FROM counter_slot WHERE counter = %s"
                " AND width = 5 AND slot = 0 ORDER BY bucket, counter_key",
                counter,
            )
        ]

    def totals(self) -> dict[tuple[str, bytes], int]:
        """The sums of the rows by counter and key, in one statement."""
        return {
            (counter, bytes(key)): int(total)
            for counter, key, total in self.run(
                "SELECT counter, counter_key, SUM(amount) FROM counter_slot"
                " GROUP BY counter, counter_key"
            )
        }

    def ledger(self) -> dict[str, int]:
        """The sum of both ledgers by counter."""
        found: dict[str, int] = {}
        for (counter, _), (amount, _) in posted(self).items():
            found[counter] = found.get(counter, 0) + amount
        return found

    def query(self, sql: str, args: tuple[object, ...] = (), /) -> list[tuple[Any, ...]]:
        """As a session's."""
        return self.run(sql, *args)

    def execute(self, sql: str, args: tuple[object, ...] = (), /) -> int:
        """As a session's."""
        return len(self.run(sql, *args))

    def check_ledger(self) -> None:
        """Assert that the rows are what was posted: amounts and checksums, bucket by bucket."""
        assert held(self) == posted(self)

    def check(self, totals: dict[tuple[str, bytes], int]) -> None:
        """Assert that these are the totals, and that the ledger says so."""
        assert self.totals() == totals
        self.check_ledger()

    @contextmanager
    def held(self, key: bytes, *, bucket: str = DAY, slot: int = 2) -> Iterator[None]:
        """A row of `v` counted up by an app's transaction that stays open, and rolls back."""
        holder = connect(self.url)
        try:
            with holder.cursor() as cursor:
                holder.begin()
                cursor.execute(
                    "INSERT INTO counter_slot (counter, bucket, width, counter_key, slot, amount)"
                    " VALUES ('v', %s, %s, %s, %s, 1)"
                    " ON DUPLICATE KEY UPDATE amount = amount + 1",
                    (bucket[:-2], bucket[-1], key, slot),
                )
                yield
            holder.rollback()
        finally:
            holder.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Kept(Tables):
    """The tables, with a store and workers that count."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = Store(url)
        self.applier = Applier(url, 5)

    def keep_minutes(self, steps: str = "minute=2d,hour=90d", **more: Any) -> None:
        """``v`` counts minutes, and keeps them for so long."""
        self.store.counters.set("v", resolution="minute", keep=steps, **more)

    def count(self, events: Mapping[tuple[str, int], int], counter: str = "v") -> None:
        """Count amounts by (key, Unix minute), as a worker does that remembers them."""
        found = enumerate(events.items())
        self.applier.apply([entry([(n, counter, *event, amount) for n, (event, amount) in found])])

    def apply(self, rows: Sequence[Row], slot: int = 5) -> int:
        """Count rows by a worker that remembers nothing; how many had no room."""
        with closing(Applier(self.url, slot)) as applier:
            return applier.apply([entry(rows)]).overflown

    def close(self) -> None:
        """Close the connections."""
        self.applier.close()
        self.store.close()
        super().close()


def rolled_up(url: str, rows: int = 2000) -> PassDone:
    """A pass of retention, so many rows at a time."""
    return roll_up(partial(open_tables, url), rows=rows)


def spread(keys: Iterable[bytes], slots: Iterable[int], bucket: str = DAY) -> list[Slotted]:
    """A row of `v` per key and slot, with amounts that differ."""
    numbers = list(slots)
    return [
        ("v", bucket, key, slot, 100 * place + slot)
        for place, key in enumerate(keys)
        for slot in numbers
    ]
