"""From the rows of many entries to one amount per cell: an upsert is paid per cell, not per row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from countersink.store.dead import DeadRow

Row = tuple[int, str, str, int, int]
"""(position in its entry from 0, counter, key, event time in whole Unix minutes, amount)."""

Cell = tuple[str, int, str, int]
"""(counter, day, key, amount): days since 1970-01-01 UTC; the sum, however large it is."""

MINUTES_PER_DAY: Final = 1440
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A stream entry to be counted.

    Attributes:
        id: 16 bytes; the same at every delivery of the entry.
        at: Unix ms of the first attempt to send it.
        rows: what it adds.
        dead: what of it could not be read; stored with the guard.
        stream: the stream's key, for whoever looks at a dead row.
        payload: the entry's ``rows`` field as it came, for the dead letter of an entry that is too
            old; without it each row gets a dead letter of its own.
    """

    id: bytes
    at: int
    rows: Sequence[Row]
    dead: Sequence[DeadRow] = ()
    stream: str = ""
    payload: bytes | None = None


class Merged:
    """One amount per (counter, UTC day, key).

    Attributes:
        rows: how many rows went in.
        cells: how many cells came out.
    """

    def __init__(self, entries: Iterable[Incoming]) -> None:
        self._amounts: dict[str, dict[int, dict[str, int]]] = {}
        self.rows = 0
        last_counter, last_minute = "", -1
        amounts: dict[str, int] = {}
        for entry in entries:
            self.rows += len(entry.rows)
            for _, counter, key, minute, amount in entry.rows:
                # Rows of one flush mostly share counter and minute: two comparisons instead of two
                # lookups.
                if minute != last_minute or counter != last_counter:
                    days = self._amounts.setdefault(counter, {})
                    amounts = days.setdefault(minute // MINUTES_PER_DAY, {})
                    last_counter, last_minute = counter, minute
                if key in amounts:
                    amounts[key] += amount
                else:
                    amounts[key] = amount
        self.cells = sum(
            len(amounts) for days in self._amounts.values() for amounts in days.values()
        )

    def chunks(self, size: int) -> Iterator[list[Cell]]:
        """The cells in primary-key order, ``size`` at a time.

        The order of code points is the order of their UTF-8 bytes, so keys need no encoding to be
        sorted.
        """
        chunk: list[Cell] = []
        for counter in sorted(self._amounts):
            days = self._amounts[counter]
            for day in sorted(days):
                amounts = days[day]
                keys = sorted(amounts)
                start = 0
                while start < len(keys):
                    part = keys[start : start + size - len(chunk)]
                    start += len(part)
                    chunk += [(counter, day, key, amounts[key]) for key in part]
                    if len(chunk) == size:
                        yield chunk
                        chunk = []
        if chunk:
            yield chunk

    def sums(self) -> dict[str, int]:
        """What is added to each counter in all."""
        return {
            counter: sum(sum(amounts.values()) for amounts in days.values())
            for counter, days in self._amounts.items()
        }


def cell_of(row: Row) -> tuple[str, int, str]:
    """The (counter, day, key) that ``row`` goes to."""
    _, counter, key, minute, _ = row
    return counter, minute // MINUTES_PER_DAY, key


def bucket_text(day: int) -> str:
    """The DATETIME literal's text of the midnight that begins ``day`` (days since 1970-01-01 UTC).

    Raises:
        OverflowError: no such day before the year 10000.
    """
    return (_EPOCH + timedelta(days=day)).isoformat(" ")
