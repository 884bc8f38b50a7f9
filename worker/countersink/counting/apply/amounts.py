"""``Amounts``: sums of the rows of entries, one for each cell (counter, bucket, key). ``Incoming``:
an entry that is to be counted.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countersink.counting.apply.dead import DeadRow
from countersink.counting.counters.breakdowns import Dimensioned
from countersink.counting.counters.catalog import Catalog
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Seen

Row = tuple[int, str, RowKey, int, int]
"""(position in its entry, counter, key or dimensions, Unix minute of the event, amount)."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An entry of a stream that is to be counted.

    Attributes:
        id: the entry's id, 16 bytes; the same at every delivery.
        at: time of the first attempt to send it, in Unix ms.
        rows: its rows, except those that could not be decoded.
        dead: a dead letter for each row that could not be decoded, or a single one for the whole
            entry. They are stored in the transaction that inserts the entry's guard.
        stream: the stream's key, shown with dead letters.
        payload: the entry's field ``rows`` as it was received. If the entry is too old to be
            counted, this becomes its dead letter, unless ``dead`` has one for the whole entry. If
            it is None, or longer than ``dead.MAX_PAYLOAD``, each row becomes a dead letter instead.
        seen: by position of a row, the hashes of the visitors or other members (``seen()``) in it.
        checked: True if ``countersink.stream.decode`` has validated rows and members. If False, the
            transaction that counts them validates them.
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
"""(counter, bucket's label, key, amount). The amount may exceed 64 bits."""


class Amounts:
    """One amount for each cell (counter, bucket, key), to be written by ``cells.py``. A breakdown
    is a counter of its own here. Buckets are given by their labels (start and width in one
    integer).
    """

    def __init__(self) -> None:
        self._amounts: dict[str, dict[int, dict[str, int]]] = {}

    @property
    def cells(self) -> int:
        """The number of cells."""
        return sum(
            len(amounts) for buckets in self._amounts.values() for amounts in buckets.values()
        )

    def bucket(self, counter: str, bucket: int) -> dict[str, int]:
        """Return the amounts of one bucket by key. This is the dict of the object, not a copy, and
        the caller adds to it. A bucket without amounts gets an empty dict. Each key in the dict is
        a cell, even if its amount is 0.
        """
        return self._amounts.setdefault(counter, {}).setdefault(bucket, {})

    def add(self, counter: str, bucket: int, key: str, amount: int) -> None:
        """Add an amount to one cell."""
        amounts = self.bucket(counter, bucket)
        amounts[key] = amounts.get(key, 0) + amount

    @property
    def counters(self) -> list[str]:
        """The names of the counters given to :meth:`bucket` or :meth:`add`. A counter given to
        :meth:`bucket` alone may have no cell.
        """
        return list(self._amounts)

    def move(self, counter: str, bucket: int, keys: Iterable[str], to: str) -> None:
        """Move the amounts of some keys in a bucket to the key ``to``. Each of ``keys`` must have
        an amount there.
        """
        amounts = self._amounts[counter][bucket]
        moved = sum([amounts.pop(key) for key in keys])
        amounts[to] = amounts.get(to, 0) + moved

    def chunks(self, size: int) -> Iterator[list[Cell]]:
        """Yield the cells sorted by counter, bucket's label and key, in lists of up to ``size``
        cells. This is the order of the primary key, unless buckets of two widths begin together.
        Keys are sorted as ``str``, which is also the order of their bytes in UTF-8.
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
        """Return the sum of each counter's amounts."""
        return {
            counter: sum(sum(amounts.values()) for amounts in buckets.values())
            for counter, buckets in self._amounts.items()
        }

    def by_bucket(self, counter: str) -> Mapping[int, Mapping[str, int]]:
        """Return a counter's amounts by bucket's label, then by key. The dicts are not copies."""
        return self._amounts.get(counter, {})

    def without(self, names: Container[str]) -> "Amounts":
        """Return the amounts of counters that are not in ``names``. The dicts are not copies."""
        kept = Amounts()
        kept._amounts = {
            name: buckets for name, buckets in self._amounts.items() if name not in names
        }
        return kept

    def negated(self) -> "Amounts":
        """Return a copy in which each amount is negated."""
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
    """Add up the rows of entries, and return one amount for each cell. A row is added to a cell of
    its counter (with the key ``""`` if the row has dimensions), and to a cell of each breakdown
    that counts it. ``catalog`` gives the buckets and the breakdowns.

    Raises:
        UnknownZone: this machine does not know the time zone of a counter.
    """
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
"""For each breakdown, (function that makes its key from values of dimensions, the bucket's amounts
by key)."""


class BucketAmounts(Amounts):
    """Amounts of one counter and its breakdowns, made from amounts by key or dimensions.

    Args:
        counter: the counter's name.
        found: the counter's amounts by the bucket's label, then by key or dimensions.
        catalog: the catalog in force.

    Raises:
        UnknownDimension: ``found`` has a dimension that the counter has not declared.
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
        """Yield (name, key) for each cell in which events of one bucket with this key, or with
        these dimensions, are counted: a cell of the counter, and one of each breakdown that counts
        them. ``name`` is that of the counter or breakdown; ``label`` is the bucket's label.
        """
        yield self._counter.counter, key if isinstance(key, str) else ""
        if key and isinstance(key, str):
            return
        for breakdown in self._counter.breakdowns:
            if self._catalog.holds(breakdown, self._counter.counter, label):
                yield breakdown.name, breakdown.key(key)
