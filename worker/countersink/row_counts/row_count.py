"""``Store.row_count()``: chooses one of the table's counters, whose key must have all columns of
the conditions, and sums the keys that match. See ``keys.py`` for the conditions on single columns.

If the texts of all of a key's values are known, the key itself is known. If only the texts of its
first columns are known, the matching keys are one range of the index. Otherwise the keys are read
from the index in their order, some entries at a time. After each key the scan skips ahead: past all
keys that begin with the same value, if it does not match, or past all keys of the matching range
just found. So a key with many days takes one step, and so does a value with many keys.

A key whose values were too long was cut, and has only its first values. If these do not decide
whether its rows match, an error is raised.
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
from countersink.row_counts import keys as encoding
from countersink.row_counts.definitions import TrackedTable, find, in_words, read_all
from countersink.row_counts.keys import (
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
"""Number of index entries that a step of the scan reads. This takes about as long as the round trip
of the query."""
MAX_ENTRIES: Final = 10_000
"""Maximum of index entries that a step reads where most entries have different keys."""
_KEYS_PER_SUM: Final = 5_000
_RANGES_PER_SUM: Final = 100
CUT_FROM: Final = 235
"""Least number of bytes of a cut key that come before its digest."""
Values = tuple[str | None, ...]


def row_count(
    session: Session,
    database: str,
    table: str,
    where: Mapping[str, object],
    start: date | None = None,
    end: date | None = None,
) -> int:
    """Return the number of rows of a tracked table, from its counter. It is equal to COUNT(*) in
    the same snapshot, if every change of rows has fired the triggers.

    Args:
        session: a session in a snapshot.
        database: the database that is meant if ``table`` names none.
        table: the table as it was given to ``track``, or its counter.
        where: column → value of the rows to count, for columns that the table is tracked by. The
            value None stands for NULL. The column's collation decides which texts are equal. For
            the types of values see :func:`countersink.row_counts.keys.condition`.
        start, end: the first and last day to count, by the table's day column; None for no limit.
            Rows without a day, or with a day before 1970, count as 1969-12-31; days after
            9999-12-26 count as 9999-12-26.

    Raises:
        UnknownCounter: no such table or counter is tracked.
        ValueError: no counter of the table has all these columns, or a day column for ``start`` or
            ``end``; a column is given twice, or with a value that is invalid for its type;
            ``table`` is the name of one table and the counter of another; ``end`` is before
            ``start``; ``start`` is not from 1969-12-31 to 9999-12-26; ``end`` is neither from
            1969-12-31 to 9999-12-25 nor 9999-12-31; or keys were cut, and their missing end
            decides which rows match.
        TypeError: a value cannot be compared with its column, or a day is no ``date``.
        Refused: the counter is not right now, because the table is being tracked, repaired or
            untracked, or one of these was interrupted; or a column of ``where`` (with a
            value other than None) is missing in the table, or this user may not see it.
        StoreError: a query failed.
    """
    check_days(start, end)
    _check_separable(start, end)
    asked = {name.lower(): value for name, value in where.items()}
    if len(asked) != len(where):
        raise ValueError("a column is given twice")
    found = find(read_all(session), table, database)
    if not found:
        raise UnknownCounter(f"no table or counter {table!r} is tracked: countersink track {table}")
    tracked = _choose(found, table, asked, start or end)
    conditions = _conditions(session, tracked, asked)
    return _Selection(session, tracked.counter, conditions, start, end).sum()


def _check_separable(start: date | None, end: date | None) -> None:
    wrong = None
    if start is not None and not NO_DAY <= start <= LATE_DAY:
        wrong = f"start on {start}"
    elif end is not None and not (NO_DAY <= end < LATE_DAY or end == date.max):
        wrong = f"end on {end}"
    if wrong is not None:
        raise ValueError(
            f"no range can {wrong}: days before 1970, and rows without a day, are counted as"
            f" {NO_DAY}, and all days from {LATE_DAY} on as that day"
        )


def _choose(
    found: Sequence[TrackedTable], table: str, asked: Mapping[str, object], day: date | None
) -> TrackedTable:
    """Return the tracked table whose counter is right (``counted`` is not None), has all columns of
    ``asked``, and has the fewest other columns, so that the counter has the fewest rows.

    Args:
        found: the tracked tables that the name means.
        table: the name, for messages.
        asked: column in lower case → value. Only the columns matter here.
        day: the first or last day of the range to count; None if the range has no limits. Only
            whether it is None matters here.

    Raises:
        ValueError: no counter has these columns, or none has a day column although ``day`` is
            given.
        Refused: none of these counters is right now: ``counted`` is None, because the table's rows
            were not counted to the end.
    """
    able = [
        each
        for each in found
        if asked.keys() <= {column.lower() for column in each.by}
        and (day is None or each.day is not None)
    ]
    if not able:
        names = ["day"] * (day is not None) + sorted(asked)
        ways = "; ".join(f"{each.counter} counts{in_words(each) or ' all rows'}" for each in found)
        raise ValueError(f"{table} is not counted by {' and '.join(names)}: {ways}")
    counted = [each for each in able if each.counted is not None]
    if not counted:
        raise Refused(
            f"the counter {able[0].counter} of {able[0].name} is not right now: the table is being"
            " tracked, repaired or untracked, or one of these was interrupted. Wait for its end;"
            " after an interruption run countersink verify with --repair, or untrack"
        )
    return min(counted, key=lambda each: (len(each.by), each.day is not None, each.counter))


def _conditions(
    session: Session, tracked: TrackedTable, asked: Mapping[str, object]
) -> list[Condition]:
    """Return the condition on each column of the tracked table's key, in the order of the columns;
    None for a column that ``asked`` (column in lower case → value) lacks. Raise Refused if a column
    with a value other than None is missing in the table, or this user may not see it.
    """
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
                f"column {name} of {tracked.name} is missing, or this user may not see it: grant"
                " SELECT on the table, or run countersink verify for the reason"
            )
    return conditions


class KeyRange(NamedTuple):
    """A range of keys, from ``first`` (included) to ``end`` (not included)."""

    first: bytes
    end: bytes


_WITHIN: Final = "counter_key >= %s AND counter_key < %s"
"""SQL condition for the keys of a :class:`KeyRange`."""
_ALL_KEYS: Final = KeyRange(b"", b"\xff" * (MAX_KEY_BYTES + 1))


class _Selection:
    """The keys of a counter whose values meet the conditions, one condition for each column, on the
    days from ``start`` to ``end``. Any value meets the condition None; a day None is no limit.
    :meth:`sum` returns the number of rows that have these keys.
    """

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
        # Keys of one day are adjacent in the primary key, keys of several days in the other index.
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
        """Yield the keys that meet the conditions, in order: single keys, and ranges of keys that
        all match. If the texts of all values asked for are known, no such key need exist.
        """
        leading = self._leading()
        if len(leading) == len(self._asked):
            yield self._keys_with(leading)
            return
        rest = self._beginning_with(leading)
        limit = ENTRIES
        while keys := self._keys(rest, limit):
            known = self._decoded(keys)
            first = rest.first
            for key in keys:
                if key < first:
                    continue  # in the part that was skipped
                first = key + b"\0"
                values = known.get(key)  # None: no trigger has written it, so it has no rows
                if (cut := cut_values(key)) is not None:
                    if self._matches_cut(*cut):
                        yield key
                elif values is not None and (wrong := self._first_wrong(values)) is not None:
                    first = self._next_after(key, values, wrong)
                elif values is not None:
                    found = self._keys_with(values[: len(self._asked)])
                    yield found
                    if isinstance(found, KeyRange):
                        first = found.end
            rest = KeyRange(first, rest.end)
            limit = min(2 * limit, MAX_ENTRIES) if len(keys) > limit // 2 else ENTRIES

    def _leading(self) -> Values:
        """Return the values of the first columns, as far as each condition allows one text only.
        The first column with another condition or none, and all columns after it, are left out.
        """
        known = list[str | None]()
        for one in self._asked:
            if not isinstance(one, Exactly):
                break
            known.append(one.text)
        return tuple(known)

    def _keys_with(self, values: Values) -> bytes | KeyRange:
        """Return the keys whose first columns have these values: a single key if there is a value
        for each column, else a range. A single key that is too long is cut. Raise ValueError if the
        values for a range take :data:`CUT_FROM` bytes or more, and the counter has a cut key that
        begins with the same :data:`CUT_FROM` bytes: it may or may not belong to the range.
        """
        if len(values) == self._columns:
            return cut_bytes(encoding.encode(values))
        return self._beginning_with(values)

    def _beginning_with(self, values: Values) -> KeyRange:
        if not values:
            return _ALL_KEYS
        begin = encoding.encode(values)
        if len(begin) >= CUT_FROM and self._any_cut(begin[:CUT_FROM]):
            raise _undecided()
        # No value has an unescaped |; } is the next byte.
        return KeyRange(begin + b"|", begin + b"}")

    def _first_wrong(self, values: Values) -> int | None:
        """Return the index of the first value that does not meet its condition; None if all do."""
        pairs = enumerate(zip(self._asked, values, strict=False))
        return next((i for i, (one, value) in pairs if one and not one.matches(value)), None)

    def _next_after(self, key: bytes, values: Values, wrong: int) -> bytes:
        """Return the bytes at which the scan goes on after ``key``. No key between ``key`` and them
        meets the conditions. A key that is equal to them need not exist. ``values`` are those of
        ``key``; the first of them that does not meet its condition has the index ``wrong``.
        """
        last = wrong + 1 == self._columns
        one = self._asked[wrong]
        if isinstance(one, Exactly):
            match = encoding.encode((*values[:wrong], one.text)) + (b"" if last else b"|")
            if match > key and len(match) < CUT_FROM:
                return match
        return key + b"\0" if last else encoding.encode(values[: wrong + 1]) + b"}"

    def _matches_cut(self, values: Values, beginning: str) -> bool:
        """Return whether a key that was cut meets the conditions.

        Args:
            values: the key's complete values, before the value that was cut.
            beginning: the beginning of the value that was cut.

        Raises:
            ValueError: the complete values and the beginning do not decide it.
        """
        for one, value in zip(self._asked, values, strict=False):
            if isinstance(one, Alike):
                one.compare([value])
            if one is not None and not one.matches(value):
                return False
        rest = self._asked[len(values) :]
        if rest and not _may_begin(rest[0], beginning):
            return False
        if any(one is not None for one in rest):
            raise _undecided()
        return True

    def _decoded(self, keys: Sequence[bytes]) -> dict[bytes, Values]:
        """Return key → values, for the keys that triggers can have written; others are left out. If
        only the server can decide a condition, ask it now about all these values, so that
        :meth:`_first_wrong` needs no query.
        """
        found: dict[bytes, Values] = {}
        for key in keys:
            with suppress(ValueError):
                found[key] = encoding.decode(key, self._columns)
        for place, one in enumerate(self._asked):
            if isinstance(one, Alike):
                one.compare([values[place] for values in found.values()])
        return found

    def _keys(self, within: KeyRange, limit: int) -> list[bytes]:
        """Return the different keys among the first ``limit`` index entries of a range, in
        order. If one day only is to be counted, entries of other days are left out.
        """
        days, day = (self._days, self._moments) if self._single_day else ("", ())
        rows = self._session.query(
            "SELECT DISTINCT counter_key FROM ("
            f"SELECT counter_key FROM counter_slot FORCE INDEX ({self._index})"
            f" WHERE counter = %s{days} AND {_WITHIN} ORDER BY counter_key LIMIT {limit:d}"
            ") AS entries",
            (self._counter, *day, *within),
        )
        return sorted(bytes(key) for (key,) in rows)

    def _any_cut(self, begin: bytes) -> bool:
        """Return whether any key that begins with ``begin`` was cut."""
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


def _may_begin(one: Condition, beginning: str) -> bool:
    """Return False if no value that is longer than ``beginning``, and begins with it, can meet a
    condition; True if one can, or if this is unknown.

    Raises:
        StoreError: a query failed.
    """
    if isinstance(one, Exactly):
        text = "\\N" if one.text is None else one.text
        return text.startswith(beginning.rstrip("\ufffd"))
    return not isinstance(one, Alike) or one.may_begin(beginning.rstrip("\ufffd"))


def _undecided() -> ValueError:
    return ValueError(
        "some rows have values that are too long for a key, which is cut, so it is unknown which of"
        " these rows match: give the values of all columns, with binary collations"
    )
