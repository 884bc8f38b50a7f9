"""``Store.row_count()``: chooses the counter that knows the columns asked for, adds up its keys,
and words the errors for unknown columns, days and cut keys; values of columns are checked in
``condition.py``.

Where every column's value is known byte by byte, so is the key; where the first columns' values
are, the keys are one range of the index. Else the keys are looked through from the first to the
last, some entries of the index at a time: after a key the next one is looked for behind all those
that are like it, since they begin with a value that is not asked for, or all belong to the answer.
So a key that has many days, or a value that has many keys, is one step.

Of a key that was cut, since its values were too long, only the first ones are known. Where those do
not decide, it cannot be told whether its rows are asked for: that is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Final, NamedTuple

from countersink.counting.errors import UnknownCounter
from countersink.counting.totals.selection import check_days
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import day_label, label_time, marks, parts
from countersink.row_counts import encoding
from countersink.row_counts.definitions import TrackedTable, find, in_words, read_all
from countersink.row_counts.encoding import (
    LATE_DAY,
    NO_DAY,
    Alike,
    Condition,
    Exactly,
    condition,
    cut_values,
)
from countersink.row_counts.table import Column, read_columns
from countersink.runtime.limits import MAX_KEY_BYTES, cut_bytes

ENTRIES: Final = 500
"""Entries of the index that are read in a step: that takes about as long as asking for it."""
MOST_ENTRIES: Final = 10_000
"""The same where few of them are of the same key."""
_KEYS_PER_SUM: Final = 5_000
_RANGES_PER_SUM: Final = 100
CUT_FROM: Final = 235
"""Bytes from which on the beginning of a key may have been cut."""
Values = tuple[str | None, ...]


def row_count(
    session: Session,
    database: str,
    table: str,
    where: Mapping[str, object],
    start: date | None = None,
    end: date | None = None,
) -> int:
    """How many rows a tracked table has, by its counter; as ``COUNT(*)`` in the same snapshot.

    Args:
        session: in a snapshot.
        database: where a table is that is named without a database.
        table: as it was given when it was tracked, or its counter.
        where: values of columns that it is tracked by, None for NULL; compared as the column's own
            collation does. Types as for :func:`countersink.row_counts.encoding.condition`.
        start, end: days of its day column, both inclusive. Rows without a day, or with one before
            1970, are on 1969-12-31.

    Raises:
        UnknownCounter: no such table or counter is tracked.
        ValueError: it is not counted by such a column or by day; the name means two tables; a range
            that ends before it begins, or that tells days apart that are counted as one.
        TypeError: a value that the column cannot be compared with; a day that is no ``date``.
        Refused: its rows are not counted yet, or its columns cannot be seen by this user.
        StoreError: as any query.
    """
    check_days(start, end)
    _check_told_apart(start, end)
    asked = {name.lower(): value for name, value in where.items()}
    if len(asked) != len(where):
        raise ValueError("a column is given twice")
    found = find(read_all(session), table, database)
    if not found:
        raise UnknownCounter(f"no table or counter {table!r} is tracked: countersink track {table}")
    tracked = _choose(found, table, asked, start or end)
    conditions = _conditions(session, tracked, asked)
    return _Selection(session, tracked.counter, conditions, start, end).sum()


def _check_told_apart(start: date | None, end: date | None) -> None:
    wrong = None
    if start is not None and not NO_DAY <= start <= LATE_DAY:
        wrong = f"start on {start}"
    elif end is not None and not (NO_DAY <= end < LATE_DAY or end == date.max):
        wrong = f"end on {end}"
    if wrong is not None:
        raise ValueError(
            f"no range can {wrong}: days before 1970 are counted as {NO_DAY}, together with rows"
            f" that have none, and those from {LATE_DAY} on as that day"
        )


def _choose(
    found: Sequence[TrackedTable], table: str, asked: Mapping[str, object], day: date | None
) -> TrackedTable:
    """The one of the fewest rows that knows what is asked for."""
    able = [
        each
        for each in found
        if asked.keys() <= {column.lower() for column in each.by}
        and (day is None or each.day is not None)
    ]
    if not able:
        what = ["day"] * (day is not None) + sorted(asked)
        ways = "; ".join(f"{each.counter} counts{in_words(each) or ' all rows'}" for each in found)
        raise ValueError(f"{table} is not counted by {' and '.join(what)}: {ways}")
    counted = [each for each in able if each.counted is not None]
    if not counted:
        raise Refused(
            f"the rows of {able[0].name} are not counted just now as {able[0].counter}: it is being"
            " tracked, repaired or untracked, or that was interrupted. Wait until it is done; if"
            " nobody is at it, countersink verify with --repair counts them, untrack tidies up"
        )
    return min(counted, key=lambda each: (len(each.by), each.day is not None, each.counter))


def _conditions(
    session: Session, tracked: TrackedTable, asked: Mapping[str, object]
) -> list[Condition]:
    """What is asked of each column of the keys."""
    known: dict[str, Column] = {}
    if any(value is not None for value in asked.values()):
        known = read_columns(session, tracked.schema, tracked.table)
    conditions: list[Condition] = []
    for name in tracked.by:
        value = asked.get(name.lower())
        if value is None:
            conditions.append(Exactly(None) if name.lower() in asked else None)
        elif name in known:
            conditions.append(condition(session, known[name], value))
        else:
            raise Refused(
                f"column {name} of {tracked.name} is gone, or this user may not see it: grant it"
                " SELECT on that table; countersink verify says what is the matter"
            )
    return conditions


class KeyRange(NamedTuple):
    """Keys from the first on, and before the end."""

    first: bytes
    end: bytes


_WITHIN: Final = "counter_key >= %s AND counter_key < %s"
"""The condition of a range of keys."""
_ALL_KEYS: Final = KeyRange(b"", b"\xff" * (MAX_KEY_BYTES + 1))


class _Selection:
    def __init__(
        self,
        session: Session,
        counter: str,
        conditions: Sequence[Condition],
        start: date | None,
        end: date | None,
    ) -> None:
        self._session = session
        self._counter = counter
        self._columns = len(conditions)
        asked = [place for place, one in enumerate(conditions) if one is not None]
        self._asked = conditions[: asked[-1] + 1] if asked else []
        self._single_day = start is not None and start == end
        ends = [("=", start)] if self._single_day else [(">=", start), ("<=", end)]
        given = {sign: label_time(day_label(day)) for sign, day in ends if day is not None}
        self._days = "".join(f" AND bucket {sign} %s" for sign in given)
        self._moments = tuple(given.values())
        # The keys of one day are together in the primary key, those of several in the other index.
        self._index = "PRIMARY" if self._single_day else "by_key"

    def sum(self) -> int:
        if not self._asked:
            return self._sum("", (), "PRIMARY")
        total, found = 0, list(self._found())
        for keys in parts([one for one in found if isinstance(one, bytes)], _KEYS_PER_SUM):
            where = f" AND counter_key IN ({marks(keys)})"
            total += self._sum(where, tuple(keys), self._index)
        for ranges in parts([one for one in found if isinstance(one, KeyRange)], _RANGES_PER_SUM):
            where = " OR ".join([f"({_WITHIN})"] * len(ranges))
            args = tuple(end for one in ranges for end in one)
            total += self._sum(f" AND ({where})", args, self._index)
        return total

    def _found(self) -> Iterator[bytes | KeyRange]:
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
                first = key + b"\0"
                values = known.get(key)  # None: no trigger has written it, so no row is behind it
                if (cut := cut_values(key)) is not None:
                    if self._meets_cut(*cut):
                        yield key
                elif values is not None and (wrong := self._first_wrong(values)) is not None:
                    first = self._behind(key, values, wrong)
                elif values is not None:
                    found = self._whole(values[: len(self._asked)])
                    yield found
                    if isinstance(found, KeyRange):
                        first = found.end
            here = KeyRange(first, here.end)
            most = min(2 * most, MOST_ENTRIES) if len(keys) > most // 2 else ENTRIES

    def _leading(self) -> Values:
        """The values of the first columns, as far as they are known."""
        known = list[str | None]()
        for one in self._asked:
            if not isinstance(one, Exactly):
                break
            known.append(one.text)
        return tuple(known)

    def _whole(self, values: Values) -> bytes | KeyRange:
        """All keys with these values of the columns that are asked for."""
        if len(values) == self._columns:
            return cut_bytes(encoding.encode(values))
        return self._beginning_with(values)

    def _beginning_with(self, values: Values) -> KeyRange:
        if not values:
            return _ALL_KEYS
        begin = encoding.encode(values)
        if len(begin) >= CUT_FROM and self._any_cut(begin[:CUT_FROM]):
            raise _untold()
        # No value has a bare | in it; } is the byte after it.
        return KeyRange(begin + b"|", begin + b"}")

    def _first_wrong(self, values: Values) -> int | None:
        """The place of the first value that does not meet its condition."""
        asked = enumerate(zip(self._asked, values, strict=False))
        return next((place for place, (one, own) in asked if one and not one.meets(own)), None)

    def _behind(self, key: bytes, values: Values, wrong: int) -> bytes:
        """Where to look on, after a key whose value at this place is not what is asked for."""
        last = wrong + 1 == self._columns
        one = self._asked[wrong]
        if isinstance(one, Exactly):
            there = encoding.encode((*values[:wrong], one.text)) + (b"" if last else b"|")
            if there > key and len(there) < CUT_FROM:
                return there
        return key + b"\0" if last else encoding.encode(values[: wrong + 1]) + b"}"

    def _meets_cut(self, values: Values, begun: str) -> bool:
        """Whether a key that was cut is asked for: of its values these are known, and how the next
        one begins.

        Raises:
            ValueError: it cannot be told.
        """
        for one, value in zip(self._asked, values, strict=False):
            if isinstance(one, Alike):
                one.ask([value])
            if one is not None and not one.meets(value):
                return False
        rest = self._asked[len(values) :]
        if rest and not _may_begin(rest[0], begun):
            return False
        if any(one is not None for one in rest):
            raise _untold()
        return True

    def _decoded(self, keys: Sequence[bytes]) -> dict[bytes, Values]:
        """The values of those keys that have some."""
        found: dict[bytes, Values] = {}
        for key in keys:
            with suppress(ValueError):
                found[key] = encoding.decode(key, self._columns)
        for place, one in enumerate(self._asked):
            if isinstance(one, Alike):
                one.ask([values[place] for values in found.values()])
        return found

    def _keys(self, within: KeyRange, most: int) -> list[bytes]:
        """The keys of the first entries of a range, in order."""
        days, day = (self._days, self._moments) if self._single_day else ("", ())
        rows = self._session.query(
            "SELECT DISTINCT counter_key FROM ("
            f"SELECT counter_key FROM counter_slot FORCE INDEX ({self._index})"
            f" WHERE counter = %s{days} AND {_WITHIN} ORDER BY counter_key LIMIT {most:d}"
            ") AS entries",
            (self._counter, *day, *within),
        )
        return sorted(bytes(key) for (key,) in rows)

    def _any_cut(self, begin: bytes) -> bool:
        """Whether a key that begins so was cut."""
        keys = self._session.query(
            "SELECT DISTINCT counter_key FROM counter_slot FORCE INDEX (by_key)"
            f" WHERE counter = %s AND {_WITHIN} AND LENGTH(counter_key) > {CUT_FROM:d}",
            (self._counter, begin, begin + b"\xff"),
        )
        return any(cut_values(bytes(key)) is not None for (key,) in keys)

    def _sum(self, where: str, args: tuple[object, ...], index: str) -> int:
        ((amount,),) = self._session.query(
            f"SELECT SUM(amount) FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s{self._days}{where}",
            (self._counter, *self._moments, *args),
        )
        return int(amount or 0)


def _may_begin(one: Condition, begun: str) -> bool:
    """Whether a value that begins so, and is longer, can be what is asked for."""
    if isinstance(one, Exactly):
        text = "\\N" if one.text is None else one.text
        return text.startswith(begun.rstrip("\ufffd"))
    if isinstance(one, Alike):
        # Collations ignore cases, accents and blanks: not that the other is twice as long.
        return 2 * len(one.text) >= len(begun)
    return True


def _untold() -> ValueError:
    return ValueError(
        "there are rows whose values are too long for a key, which is cut: it cannot be told which"
        " of them are meant; give the values of all columns, of a column with a binary collation"
    )
