"""What a tracked table's counter must say, worked out from its rows without a line of the product's
own code.

A key is the text of each grouping column in UTF-8, a backslash before every backslash and bar in
it, NULL as a backslash and N, joined by bars. A day is the date as written, of a TIMESTAMP that of
UTC; 1969-12-31 stands for none, for dates that are zero in whole or in part and for all that is
before 1970, 9999-12-26 for all that is after 9999-12-25, and 1970-01-01 for all rows of a counter
without days. A date that no calendar has is as many days after the first of its month as it says.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tests.support.oracle import connect

Cell = tuple[str, bytes]
"""(day, key)"""

NO_DAY, EARLY, LATE = "1970-01-01", "1969-12-31", "9999-12-26"


@dataclass(frozen=True, slots=True)
class Tracked:
    """A table of `schema` whose rows `counter` counts."""

    counter: str
    schema: str
    table: str
    by: tuple[str, ...] = ()
    day: str | None = None


def key_of(values: Sequence[bytes | None]) -> bytes:
    """The key of a row with these values, as UTF-8."""
    return b"|".join(
        rb"\N" if value is None else value.replace(b"\\", rb"\\").replace(b"|", rb"\|")
        for value in values
    )


def day_of(text: str | None) -> str:
    """The day of a date as the server writes it."""
    if text is None or text < NO_DAY:
        return EARLY
    if text > LATE:
        return LATE
    year, month, number = (int(part) for part in text[:10].split("-"))
    if not month or not number:
        return EARLY
    return min(str(date(year, month, 1) + timedelta(number - 1)), LATE)


class Snapshot:
    """Reads both sides as of one moment."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def counted(self, counter: str) -> bool:
        """Whether the rows of the table have been counted by now."""
        found = self._rows("SELECT counted FROM tracked_table WHERE counter = %s", counter)
        return bool(found and found[0][0] is not None)

    def in_counter(self, counter: str) -> Counter[Cell]:
        """What the slots say, without cells of 0."""
        cells: Counter[Cell] = Counter()
        for bucket, key, amount in self._rows(
            "SELECT CAST(bucket AS CHAR), counter_key, CAST(SUM(amount) AS CHAR)"
            " FROM counter_slot WHERE counter = %s GROUP BY bucket, counter_key",
            counter,
        ):
            day, time = bucket.split()
            assert time == "00:00:00", bucket
            if int(amount):
                cells[day, bytes(key)] = int(amount)
        return cells

    def in_table(self, tracked: Tracked, *, raw: bool = False) -> Counter[Cell]:
        """What the rows say; with `raw` each is read and counted here, not on the server."""
        columns = [f"CAST(CONVERT(`{column}` USING utf8mb4) AS BINARY)" for column in tracked.by]
        if tracked.day:
            columns.append(f"CAST(`{tracked.day}` AS CHAR)")
        table = f"`{tracked.schema}`.`{tracked.table}`"
        if raw:
            found = self._rows(f"SELECT {', '.join([*columns, '1'])} FROM {table}")
        else:
            by = f" GROUP BY {', '.join(columns)}" if columns else ""
            found = self._rows(f"SELECT {', '.join([*columns, 'COUNT(*)'])} FROM {table}{by}")
        cells: Counter[Cell] = Counter()
        for row in found:
            values = row[: len(tracked.by)]
            day = day_of(row[-2]) if tracked.day else NO_DAY
            if row[-1]:
                cells[day, key_of(values)] += int(row[-1])
        return cells

    def differences(self, tracked: Tracked, *, raw: bool = False) -> list[str]:
        """Where the two sides differ, a line each."""
        rows, sums = self.in_table(tracked, raw=raw), self.in_counter(tracked.counter)
        return [
            f"{tracked.counter} {day} {key!r}: {rows[day, key]} rows, counted {sums[day, key]}"
            for day, key in sorted(rows.keys() | sums.keys())
            if rows[day, key] != sums[day, key]
        ]

    def _rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql, args or None)
        return list(self._cursor.fetchall())


@contextmanager
def snapshot(mysql_url: str) -> Iterator[Snapshot]:
    """The database at `mysql_url`, and all others of its server, as of now."""
    with connect(mysql_url) as reader, reader.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        yield Snapshot(cursor)
