"""Which keys of a tracked table's counter hold the rows that somebody asks for, and their sum.

Where every column's value is known byte by byte, so is the key; where the first columns' values
are, the keys are one range of the index. Else the keys are looked through from the first to the
last, some entries of the index at a time: after a key the next one is looked for behind all those
that are like it, since they begin with a value that is not asked for, or all belong to the answer.
So a key that has many days, or a value that has many keys, is one step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from countersink.store.connection import Session
from countersink.store.sums import marks, parts
from countersink.store.tracked.conditions import NEVER, Check, Condition, Exactly
from countersink.store.tracked.encoding import decode, encode

ENTRIES: Final = 500
"""Entries of the index that are read in a step: that takes about as long as asking for it."""
MOST_ENTRIES: Final = 10_000
"""The same where few of them are of the same key."""
_KEYS_PER_SUM: Final = 5_000
_RANGES_PER_SUM: Final = 100

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
        """A condition, and its values."""
        if self.end is None:
            return "counter_key >= %s", (self.first,)
        return "counter_key >= %s AND counter_key < %s", (self.first, self.end)


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
        self._days = days
        # The keys of one day are together in the primary key, those of several in the other index.
        self._index = "PRIMARY" if days.single else "by_key"

    def sum(self) -> int:
        if not self._asked:
            return self._sum("", (), "PRIMARY")
        total, keys, ranges = 0, list[bytes](), list[Range]()
        for found in self._found():
            if isinstance(found, Range):
                ranges.append(found)
            else:
                keys.append(found)
        for some in parts(keys, _KEYS_PER_SUM):
            where = f" AND counter_key IN ({marks(some)})"
            total += self._sum(where, tuple(some), self._index)
        for several in parts(ranges, _RANGES_PER_SUM):
            terms = [one.condition() for one in several]
            where = " OR ".join(f"({term})" for term, _ in terms)
            args = tuple(arg for _, own in terms for arg in own)
            total += self._sum(f" AND ({where})", args, self._index)
        return total

    def _found(self) -> Iterator[bytes | Range]:
        """Keys, and ranges of keys, that meet the conditions, in order."""
        leading = self._leading()
        if len(leading) == len(self._asked):
            yield self._whole(leading)
            return
        here = self._beginning_with(leading)
        most = ENTRIES
        while keys := self._keys(here, most):
            known = self._decoded(keys)
            first = here.first
            for key in keys:
                if key < first:
                    continue  # like the one before
                values = known.get(key)
                if values is None:
                    first = key + b"\0"  # no trigger has written it: no row is behind it
                    continue
                wrong = self._first_wrong(values)
                if wrong is None:
                    found = self._whole(values[: len(self._asked)])
                    yield found
                    first = key + b"\0" if isinstance(found, bytes) else found.end or b""
                else:
                    first = self._behind(key, values, wrong)
            here = Range(first, here.end)
            most = min(2 * most, MOST_ENTRIES) if len(keys) > most // 2 else ENTRIES

    def _leading(self) -> Values:
        """The values of the first columns, as far as they are known."""
        known = list[str | None]()
        for one in self._asked:
            if not isinstance(one, Exactly):
                break
            known.append(one.text)
        return tuple(known)

    def _whole(self, values: Values) -> bytes | Range:
        """All keys with these values of the columns that are asked for."""
        return encode(values) if len(values) == self._columns else self._beginning_with(values)

    def _beginning_with(self, values: Values) -> Range:
        if not values:
            return Range(b"", None)
        begin = encode(values)
        # No value has a bare | in it; } is the byte after it.
        return Range(begin + b"|", begin + b"}")

    def _first_wrong(self, values: Values) -> int | None:
        """The place of the first value that does not meet its condition."""
        for place, check in enumerate(self._checks):
            if not check.meets(values[place]):
                return place
        return None

    def _behind(self, key: bytes, values: Values, wrong: int) -> bytes:
        """Where to look on, after a key whose value at this place is not what is asked for."""
        last = wrong + 1 == self._columns
        one = self._asked[wrong]
        if isinstance(one, Exactly):
            there = encode((*values[:wrong], one.text)) + (b"" if last else b"|")
            if there > key:
                return there
        return key + b"\0" if last else encode(values[: wrong + 1]) + b"}"

    def _decoded(self, keys: Sequence[bytes]) -> dict[bytes, Values]:
        """The values of those keys that have some."""
        found: dict[bytes, Values] = {}
        for key in keys:
            try:
                found[key] = decode(key, self._columns)
            except ValueError:
                continue
        for place, check in enumerate(self._checks):
            check.ask([values[place] for values in found.values()])
        return found

    def _keys(self, within: Range, most: int) -> list[bytes]:
        """The keys of the first entries of a range, in order."""
        where, args = within.condition()
        days, day = self._days.condition() if self._days.single else ("", ())
        rows = self._session.query(
            "SELECT DISTINCT counter_key FROM ("
            f"SELECT counter_key FROM counter_slot FORCE INDEX ({self._index})"
            f" WHERE counter = %s{days} AND {where} ORDER BY counter_key LIMIT {most:d}"
            ") AS entries",
            (self._counter, *day, *args),
        )
        return sorted(bytes(key) for (key,) in rows)

    def _sum(self, where: str, args: tuple[object, ...], index: str) -> int:
        days, own = self._days.condition()
        ((amount,),) = self._session.query(
            f"SELECT SUM(amount) FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s{days}{where}",
            (self._counter, *own, *args),
        )
        return int(amount or 0)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 (naive, as DATETIME is)
