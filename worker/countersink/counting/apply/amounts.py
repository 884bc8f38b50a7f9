"""Amounts per cell (counter, bucket, key): sums of the rows of entries, in primary-key order."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countersink.counting.apply.dead import DeadRow
from countersink.counting.counters.breakdowns import Dimensioned
from countersink.counting.counters.catalog import Catalog
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Seen

Row = tuple[int, str, RowKey, int, int]
"""(position in its entry, counter, key or dimensions, event time in Unix minutes, amount)."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A stream entry to be counted.

    Attributes:
        id: 16 bytes; equal at every delivery of the entry.
        at: Unix ms of the first attempt to send it.
        rows: rows to be counted.
        dead: dead letters of rows that could not be decoded; stored with the guard.
        stream: the stream's key, shown with dead letters.
        payload: the entry's ``rows`` field as received, for the dead letter of an entry that is too
            old; without it each row gets a dead letter of its own.
        seen: hashed members of rows, by the row's position.
        checked: ``countersink.stream.decode`` has validated rows and members already.
    """

    id: bytes
    at: int
    rows: Sequence[Row]
    dead: Sequence[DeadRow] = ()
    stream: str = ""
    payload: bytes | None = None
    seen: Mapping[int, Seen] = field(default_factory=dict)
    checked: bool = False


Cell = tuple[str, int, str, int]
"""(counter, bucket's label, key, amount); the amount may exceed 64 bits."""


class Amounts:
    """One amount per cell (counter, bucket, key)."""

    def __init__(self) -> None:
        self._amounts: dict[str, dict[int, dict[str, int]]] = {}

    @property
    def cells(self) -> int:
        """Number of cells."""
        return sum(
            len(amounts) for buckets in self._amounts.values() for amounts in buckets.values()
        )

    def bucket(self, counter: str, bucket: int) -> dict[str, int]:
        """The amounts of one bucket by key, as a dict to add to; an amount of 0 is a cell, too."""
        return self._amounts.setdefault(counter, {}).setdefault(bucket, {})

    def add(self, counter: str, bucket: int, key: str, amount: int) -> None:
        """Add to one cell."""
        amounts = self.bucket(counter, bucket)
        amounts[key] = amounts.get(key, 0) + amount

    @property
    def counters(self) -> list[str]:
        """The counters that have cells."""
        return list(self._amounts)

    def move(self, counter: str, bucket: int, keys: Iterable[str], to: str) -> None:
        """Move the amounts of ``keys`` of a bucket to the key ``to``."""
        amounts = self._amounts[counter][bucket]
        moved = sum([amounts.pop(key) for key in keys])
        amounts[to] = amounts.get(to, 0) + moved

    def chunks(self, size: int) -> Iterator[list[Cell]]:
        """The cells in primary-key order, ``size`` at a time.

        Keys are sorted without being encoded: code points sort like their UTF-8 bytes.
        """
        chunk: list[Cell] = []
        for counter in sorted(self._amounts):
            buckets = self._amounts[counter]
            for bucket in sorted(buckets):
                amounts = buckets[bucket]
                keys = sorted(amounts)
                start = 0
                while start < len(keys):
                    part = keys[start : start + size - len(chunk)]
                    start += len(part)
                    chunk += [(counter, bucket, key, amounts[key]) for key in part]
                    if len(chunk) == size:
                        yield chunk
                        chunk = []
        if chunk:
            yield chunk

    def sums(self) -> dict[str, int]:
        """The sum of the amounts of each counter."""
        return {
            counter: sum(sum(amounts.values()) for amounts in buckets.values())
            for counter, buckets in self._amounts.items()
        }

    def by_bucket(self, counter: str) -> Mapping[int, Mapping[str, int]]:
        """The amounts of a counter: bucket's label → key → amount."""
        return self._amounts.get(counter, {})

    def without(self, names: Container[str]) -> "Amounts":
        """A copy without the counters ``names``."""
        kept = Amounts()
        kept._amounts = {
            name: buckets for name, buckets in self._amounts.items() if name not in names
        }
        return kept

    def negated(self) -> "Amounts":
        """A copy with each amount negated."""
        negated = Amounts()
        negated._amounts = {
            counter: {
                bucket: {key: -amount for key, amount in amounts.items()}
                for bucket, amounts in buckets.items()
            }
            for counter, buckets in self._amounts.items()
        }
        return negated


def merged(entries: Iterable[Incoming], catalog: Catalog) -> Amounts:
    """The sums of the rows of entries per cell, cells of breakdowns included."""
    found = Amounts()
    last_counter, last_minute = "", -1
    amounts: dict[Any, int] = {}
    fan: _Fan | None = None
    for entry in entries:
        for _, counter, key, minute, amount in entry.rows:
            # Rows of one flush mostly share counter and minute: comparing saves two lookups.
            if minute != last_minute or counter != last_counter:
                amounts = found.bucket(counter, catalog.bucket(counter, minute))
                declared = catalog.dimensioned.get(counter)
                fan = None
                if declared is not None:
                    fan = [
                        (each.composed, found.bucket(each.name, catalog.bucket(each.name, minute)))
                        for each in declared.breakdowns
                        if minute >= each.since
                    ]
                last_counter, last_minute = counter, minute
            if fan is not None and (not key or not isinstance(key, str)):
                values = dict(key) if key else {}
                for composed, sums in fan:
                    composite = composed(values)
                    sums[composite] = sums.get(composite, 0) + amount
                key = ""
            if key in amounts:
                amounts[key] += amount
            else:
                amounts[key] = amount
    return found


_Fan = list[tuple[Callable[[Mapping[str, str]], str], dict[str, int]]]
"""Of each breakdown: function that composes the key of values, and amounts of the bucket by key."""


class BucketAmounts(Amounts):
    """Amounts of one counter and its breakdowns.

    Args:
        counter: the counter's name.
        found: bucket's label → key or dimensions → amount.
        catalog: the catalog in force.

    Raises:
        UnknownDimension: the counter has not declared a dimension.
    """

    def __init__(
        self, counter: str, found: Mapping[int, Mapping[Any, int]], catalog: Catalog
    ) -> None:
        super().__init__()
        self._counter = catalog.dimensioned.get(counter, Dimensioned(counter, ()))
        self._catalog = catalog
        for label, keys in found.items():
            if not self._counter.dimensions and set(map(type, keys)) <= {str}:
                self.bucket(counter, label).update(keys)
                continue
            for key, amount in keys.items():
                self._counter.require(key)
                for name, cell_key in self.cells_of(label, key):
                    self.add(name, label, cell_key, amount)

    def cells_of(self, label: int, key: RowKey) -> Iterator[tuple[str, str]]:
        """(counter, key) of each cell that counts a key or dimensions in a bucket."""
        yield self._counter.counter, key if isinstance(key, str) else ""
        if key and isinstance(key, str):
            return
        for breakdown in self._counter.breakdowns:
            if self._catalog.holds(breakdown, self._counter.counter, label):
                yield breakdown.name, breakdown.key(key)
