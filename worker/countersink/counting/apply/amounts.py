"""Adds up the rows of entries to one amount per cell (counter, bucket, key), in primary-key
order."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countersink.counting.apply.dead import DeadRow
from countersink.counting.counters.breakdowns import Dimensioned
from countersink.counting.counters.catalog import Catalog
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Seen

Row = tuple[int, str, RowKey, int, int]
"""(position in its entry from 0, counter, key or dimensions, event time in whole Unix minutes,
amount)."""


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
        seen: the members that some of its rows bring, by the row's position.
        checked: its rows, and these members, were read by ``countersink.stream.decode``, and are
            not looked at once more.
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
"""(counter, bucket, key, amount): the bucket's label; the sum, however large it is."""


class Amounts:
    """One amount per (counter, bucket, key).

    Attributes:
        cells: how many there are.
    """

    def __init__(self) -> None:
        self._amounts: dict[str, dict[int, dict[str, int]]] = {}

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return sum(
            len(amounts) for buckets in self._amounts.values() for amounts in buckets.values()
        )

    def bucket(self, counter: str, bucket: int) -> dict[str, int]:
        """The amounts of one bucket by key, to be added to; 0 makes a cell, too."""
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
        """Add the amounts of some cells of a bucket to that of another key, whose they are then."""
        amounts = self._amounts[counter][bucket]
        moved = sum([amounts.pop(key) for key in keys])
        amounts[to] = amounts.get(to, 0) + moved

    def chunks(self, size: int) -> Iterator[list[Cell]]:
        """The cells in primary-key order, ``size`` at a time.

        The order of code points is the order of their UTF-8 bytes, so keys need no encoding to be
        sorted.
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
        """What is added to each counter in all."""
        return {
            counter: sum(sum(amounts.values()) for amounts in buckets.values())
            for counter, buckets in self._amounts.items()
        }

    def of(self, counter: str) -> Mapping[int, Mapping[str, int]]:
        """A counter's amounts: bucket's label → key → amount."""
        return self._amounts.get(counter, {})

    def without(self, names: Container[str]) -> "Amounts":
        """The same without those of some counters."""
        kept = Amounts()
        kept._amounts = {
            name: buckets for name, buckets in self._amounts.items() if name not in names
        }
        return kept

    def negated(self) -> "Amounts":
        """What takes all of this back."""
        taken = Amounts()
        taken._amounts = {
            counter: {
                bucket: {key: -amount for key, amount in amounts.items()}
                for bucket, amounts in buckets.items()
            }
            for counter, buckets in self._amounts.items()
        }
        return taken


def merged(entries: Iterable[Incoming], catalog: Catalog) -> Amounts:
    """The amounts of the rows of entries, those of their breakdowns included."""
    found = Amounts()
    last_counter, last_minute = "", -1
    amounts: dict[Any, int] = {}
    fan: _Fan | None = None
    for entry in entries:
        for _, counter, key, minute, amount in entry.rows:
            # Rows of one flush mostly share counter and minute: two comparisons instead of two
            # lookups.
            if minute != last_minute or counter != last_counter:
                amounts = found.bucket(counter, catalog.bucket(counter, minute))
                declared = catalog.dimensioned.get(counter)
                fan = None
                if declared is not None:
                    fan = [
                        (one.composed, found.bucket(one.name, catalog.bucket(one.name, minute)))
                        for one in declared.breakdowns
                        if minute >= one.since
                    ]
                last_counter, last_minute = counter, minute
            if fan is not None and (not key or not isinstance(key, str)):
                values = dict(key) if key else {}
                for composed, own in fan:
                    composite = composed(values)
                    own[composite] = own.get(composite, 0) + amount
                key = ""
            if key in amounts:
                amounts[key] += amount
            else:
                amounts[key] = amount
    return found


_Fan = list[tuple[Callable[[Mapping[str, str]], str], dict[str, int]]]
"""How the key of some values is composed, and the amounts that it is one of; of each breakdown."""


class BucketAmounts(Amounts):
    """The amounts of some buckets of one counter, those of its breakdowns included.

    Args:
        counter: its name.
        found: bucket's label → key or dimensions → amount.
        catalog: that in force.

    Raises:
        UnknownDimension: the counter has not declared a dimension.
    """

    def __init__(
        self, counter: str, found: Mapping[int, Mapping[Any, int]], catalog: Catalog
    ) -> None:
        super().__init__()
        self._own = catalog.dimensioned.get(counter, Dimensioned(counter, ()))
        self._catalog = catalog
        for label, keys in found.items():
            if not self._own.dimensions and set(map(type, keys)) <= {str}:
                self.bucket(counter, label).update(keys)
                continue
            for key, amount in keys.items():
                self._own.require(key)
                for name, own in self.cells_of(label, key):
                    self.add(name, label, own, amount)

    def cells_of(self, label: int, key: RowKey) -> Iterator[tuple[str, str]]:
        """The (counter, key) of each cell that a key or dimensions of a bucket are counted in."""
        yield self._own.counter, key if isinstance(key, str) else ""
        if key and isinstance(key, str):
            return
        for breakdown in self._own.breakdowns:
            if self._catalog.holds(breakdown, self._own.counter, label):
                yield breakdown.name, breakdown.key(key)
