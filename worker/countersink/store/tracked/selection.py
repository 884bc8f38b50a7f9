"""Which keys of a tracked table's counter hold the rows that somebody asks for, and their sum.

Where every column's value is known byte by byte, so is the key; where the first columns' values
are, the keys are one range of the index. Else the values that a column has are looked up first,
each by one step in the index from one value to the next, and those that meet the condition are
followed to the next column. Where there are too many of them, the rest of the keys is read in
pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from countersink.store.connection import Session
from countersink.store.sums import marks, parts
from countersink.store.tracked.conditions import NEVER, Check, Condition, Exactly
from countersink.store.tracked.encoding import decode, encode

STEPS: Final = 200
"""Steps in the index: each takes as long as reading some hundred keys of a page."""
PAGE: Final = 5_000
"""Keys read at a time, and keys per sum."""

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Days:
    """A range of days, both inclusive; None for where they begin or end."""

    start: date | None = None
    end: date | None = None

    @property
    def single(self) -> bool:
        """Whether it is one day."""
        return self.start is not None and self.start == self.end

    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The rest of a WHERE clause, from AND on, and its values."""
        if self.start is not None and self.single:
            return " AND bucket = %s", (_midnight(self.start),)
        where, args = "", list[object]()
        if self.start is not None:
            where, args = " AND bucket >= %s", [_midnight(self.start)]
        if self.end is not None:
            where += " AND bucket <= %s"
            args.append(_midnight(self.end))
        return where, tuple(args)


@dataclass(frozen=True, slots=True)
class Range:
    """Keys from the first on, and before the end; None: to the last."""

    first: bytes
    end: bytes | None

    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The rest of a WHERE clause, from AND on, and its values."""
        where, args = " AND counter_key >= %s", tuple[object, ...]((self.first,))
        if self.end is not None:
            return f"{where} AND counter_key < %s", (*args, self.end)
        return where, args


def count(session: Session, counter: str, conditions: Sequence[Condition], days: Days) -> int:
    """How many rows there are that meet the conditions, in the session's snapshot.

    Args:
        session: in a snapshot.
        counter: of the tracked table.
        conditions: one for each column of its keys, in their order.
        days: of its day column.

    Raises:
        StoreError: as any query.
    """
    if NEVER in conditions:
        return 0
    return _Selection(session, counter, conditions, days).sum()


class _Selection:
    def __init__(
        self, session: Session, counter: str, conditions: Sequence[Condition], days: Days
    ) -> None:
        self._session = session
        self._counter = counter
        self._columns = len(conditions)
        asked = [place for place, one in enumerate(conditions) if one is not None]
        self._asked = conditions[: asked[-1] + 1] if asked else []
        self._checks = [Check(session, one) for one in self._asked]
        self._where, self._args = days.condition()
        # The keys of one day are together in the primary key, those of several in the other index.
        self._index = "PRIMARY" if days.single else "by_key"
        self._steps = STEPS

    def sum(self) -> int:
        if not self._asked:
            return self._sum("", (), "PRIMARY")
        total, keys = 0, list[bytes]()
        for found in self._found(()):
            if isinstance(found, Range):
                total += self._sum(*found.condition(), self._index)
            else:
                keys.append(found)
        for part in parts(sorted(keys), PAGE):
            where = f" AND counter_key IN ({marks(part)})"
            total += self._sum(where, tuple(part), self._index)
        return total

    def _found(self, values: Values) -> Iterator[bytes | Range]:
        """Keys, and ranges of keys, that begin with these values and meet the conditions."""
        place = len(values)
        if place == self._columns:
            yield encode(values)
        elif place == len(self._asked):
            yield self._beginning_with(values)
        elif isinstance(one := self._asked[place], Exactly):
            yield from self._found((*values, one.text))
        else:
            there, rest = self._values(values)
            for value in self._checks[place].meeting(there):
                yield from self._found((*values, value))
            if rest is not None:
                yield from self._pages(rest)

    def _beginning_with(self, values: Values) -> Range:
        if not values:
            return Range(b"", None)
        begin = encode(values)
        # No value has a bare | in it; } is the byte after it.
        return Range(begin + b"|", begin + b"}")

    def _values(self, before: Values) -> tuple[list[str | None], Range | None]:
        """The values of the column after these, and the keys that were left to be read in pages."""
        found = list[str | None]()
        rest = self._beginning_with(before)
        while self._steps:
            self._steps -= 1
            first = self._keys(rest, 1)
            if not first:
                return found, None
            values = self._decode(first[0])
            if values is None or len(before) + 1 == self._columns:
                rest = Range(first[0] + b"\0", rest.end)
            else:
                rest = Range(encode(values[: len(before) + 1]) + b"}", rest.end)
            if values is not None:
                found.append(values[len(before)])
        return found, rest

    def _pages(self, rest: Range) -> Iterator[bytes]:
        """Those of the keys that meet the conditions, of which all are read."""
        while page := self._keys(rest, PAGE):
            left = {key: values for key in page if (values := self._decode(key)) is not None}
            for place, check in enumerate(self._checks):
                meeting = set(check.meeting(list({values[place] for values in left.values()})))
                left = {key: values for key, values in left.items() if values[place] in meeting}
            yield from left
            rest = Range(page[-1] + b"\0", rest.end)

    def _decode(self, key: bytes) -> Values | None:
        try:
            return decode(key, self._columns)
        except ValueError:
            return None  # no trigger has written it: no row is behind it, as verification says

    def _keys(self, within: Range, limit: int) -> list[bytes]:
        where, args = within.condition()
        # To be sure that a single one is distinct the server would read all its days.
        distinct = "DISTINCT " if limit > 1 else ""
        rows = self._session.query(
            f"SELECT {distinct}counter_key FROM counter_slot FORCE INDEX ({self._index})"
            f" WHERE counter = %s{self._where}{where} ORDER BY counter_key LIMIT {limit:d}",
            (self._counter, *self._args, *args),
        )
        return [bytes(key) for (key,) in rows]

    def _sum(self, where: str, args: tuple[object, ...], index: str) -> int:
        ((amount,),) = self._session.query(
            f"SELECT SUM(amount) FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s{self._where}{where}",
            (self._counter, *self._args, *args),
        )
        return int(amount or 0)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 (naive, as DATETIME is)
