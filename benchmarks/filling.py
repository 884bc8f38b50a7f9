"""Slot rows as workers leave them behind, in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from benchmarks.database import connect
from benchmarks.workload import COUNTER
from countersink.counting.counters.buckets import MINUTES, NUMBER, Resolution

ROWS_PER_STATEMENT: Final = 1_000
ROWS_PER_COMMIT: Final = 50_000
INSERT: Final = (
    "INSERT INTO counter_slot (counter, bucket, width, counter_key, slot, amount) VALUES"
)


@dataclass(frozen=True, slots=True)
class Filling:
    """A row for each of some keys on each of some days, or shorter buckets, in each of some slots.

    Attributes:
        prefix: of the keys; the rest is their number.
        keys: how many.
        first: the first of the days, in UTC; of shorter buckets the time at which it begins.
        days: how many days or buckets, one after the other.
        slots: how many.
        first_slot: the first of them.
        digits: of the keys' numbers, with zeros in front.
        width: of a bucket.
    """

    prefix: str
    keys: int
    first: date
    days: int
    slots: int
    first_slot: int = 1
    digits: int = 6
    width: Resolution = "day"

    @property
    def rows(self) -> int:
        """Slot rows."""
        return self.keys * self.days * self.slots

    def key(self, number: int) -> str:
        """The key of a number from 0."""
        return f"{self.prefix}{number:0{self.digits}d}"

    def amount(self, number: int, day: int, slot: int) -> int:
        """Of a row: different from its neighbours'."""
        return 1 + (number * 7919 + day * 104_729 + slot * 31) % 9_973

    def total(self, number: int, day: int) -> int:
        """Of a key on a day, both numbered from 0."""
        return sum(
            self.amount(number, day, slot)
            for slot in range(self.first_slot, self.first_slot + self.slots)
        )

    def statements(self) -> Iterator[tuple[int, str]]:
        """(rows, INSERT), slot by slot: each worker comes with its own rows to those of others."""
        step = timedelta(minutes=MINUTES[self.width])
        keys = [f"x'{self.key(number).encode().hex()}'" for number in range(self.keys)]
        for slot in range(self.first_slot, self.first_slot + self.slots):
            for day in range(self.days):
                head = f"('{COUNTER}', '{self.first + day * step}', {NUMBER[self.width]}, "
                for start in range(0, self.keys, ROWS_PER_STATEMENT):
                    numbers = range(start, min(self.keys, start + ROWS_PER_STATEMENT))
                    values = ", ".join(
                        f"{head}{keys[number]}, {slot}, {self.amount(number, day, slot)})"
                        for number in numbers
                    )
                    yield len(numbers), f"{INSERT} {values}"


def fill(url: str, fillings: Sequence[Filling]) -> None:
    """Put the rows into the migrated database, instead of what is there, and into its ledger."""
    connection = connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE TABLE counter_slot")
            cursor.execute("TRUNCATE TABLE counter_ledger")
            waiting = 0
            for filling in fillings:
                for rows, statement in filling.statements():
                    cursor.execute(statement)
                    waiting += rows
                    if waiting >= ROWS_PER_COMMIT:
                        connection.commit()
                        waiting = 0
            # The checksums are those of nothing: no benchmark verifies.
            cursor.execute(
                "INSERT INTO counter_ledger"
                " SELECT counter, bucket, width, slot, SUM(amount), 0, NULL FROM counter_slot"
                " GROUP BY counter, bucket, width, slot"
            )
        connection.commit()
    finally:
        connection.close()
