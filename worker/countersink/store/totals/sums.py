"""The SQL of totals: sums by key (largest first) and by bucket, choice of indexes, first and last
day.

So a caller can ask several questions in one snapshot; it needs one, or nobody who moves rows
meanwhile. Ranges are local days and include both ends; None means from, or to, where the data
begins or ends. Without ``time_zone`` days are those of the counter's own. An answer is exact, or an
error (never for buckets that are days, shown as such): :mod:`countersink.store.totals.views`. Keys
are str here and bytes in the table (undecodable bytes become lone surrogates, as in file names).

Every function that takes a :class:`countersink.store.totals.selection.Selection` raises, beside
what it names:

    UnknownCounter: nothing was ever counted under this name, nor did anybody make it.
    ValueError: there is no such time zone.
    InexactZone: the buckets do not add up to days of ``time_zone``, or, where they are hours, of
        the counter's own, which was then not whole hours from UTC.
    Refused: the machine does not know the counter's time zone, and the days of it are asked for.
    RolledUp: the range takes a part of a month into which days are rolled up.

Each query names the index it goes by and reads no more of a table than the range it is asked for:
the primary key (counter, bucket, …) for whole days, ``by_key`` (counter, counter_key, bucket) for
single keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from countersink.runtime.limits import key_bytes, key_text
from countersink.store.connection import Session
from countersink.store.counters.buckets import NUMBER, Width
from countersink.store.sql import LABEL, width_number
from countersink.store.totals.selection import (
    ANY,
    KeyMatch,
    Keys,
    Selection,
    chosen_keys,
    picked_keys,
)
from countersink.store.totals.shapes import edges, selected, shape
from countersink.store.totals.views import Ranges, View, condition

_KEYS_PER_QUERY: Final = 500
"""Ranges per query: far more than this and MySQL gives up on ranges and reads the index whole."""

BUCKETS: Final = "bucket"
Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that a question is about.

    Attributes:
        counter: whose.
        ranges: which of its buckets.
        width: of all of these; None where there may be several.
    """

    counter: str
    ranges: Ranges
    width: Width | None = None

    @classmethod
    def of(cls, session: Session, view: View, start: date | None, end: date | None) -> "Scope":
        """All of a range of days.

        Raises:
            InexactZone: it begins or ends within a bucket.
            RolledUp: it cuts through a month.
        """
        view.require_range(session, start, end)
        return cls.within(view, view.ranges(start, end))

    @classmethod
    def within(cls, view: View, ranges: Ranges) -> "Scope":
        """Some buckets of a view's counter."""
        widths = view.widths if ranges is None else {one.width for one in ranges}
        return cls(view.counter, ranges, next(iter(widths)) if len(widths) == 1 else None)


def total(session: Session, selection: Selection) -> int:
    """The sum over all keys, or over those selected."""
    found = sums(session, _scope(session, selection), selection.keys)
    return sum(0 if amount is None else int(amount) for (amount,) in found)


def by_key(
    session: Session, selection: Selection, *, limit: int | None = None
) -> list[tuple[str, int]]:
    """(key, total) of the keys selected, largest first, then by key; all of them, or the first
    ``limit``. Of keys that are named one by one only those with counts.

    Raises:
        ValueError: also where ``limit`` is not above 0.
    """
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    scope = _scope(session, selection)
    keys = selection.keys
    if keys is not None and not isinstance(keys, KeyMatch):
        if not keys:
            return []
        keys = KeyMatch(keys=keys)
    return _ranked(session, scope, limit, keys or ANY)


def many(session: Session, selection: Selection) -> dict[str, int]:
    """The totals of the keys selected, which are named one by one, in their order; 0 for those
    without counts.
    """
    wanted = list(selection.named or ())
    found: dict[bytes, int] = {}
    for key, amount in sums(session, _scope(session, selection), wanted, "counter_key"):
        found[bytes(key)] = found.get(bytes(key), 0) + int(amount)
    return {key: found.get(key_bytes(key), 0) for key in wanted}


def span(session: Session, selection: Selection) -> tuple[date, date] | None:
    """The first and the last day that has rows, of the counter or of keys named one by one; None if
    none has, or the counter is unknown. The selection's range has no say in it.

    What is in months counts from the first day of the first to the last day of the last.

    Raises:
        InexactZone: the first or the last bucket lies in more than one day of ``time_zone``.
        RolledUp: there are months, and they are not those of ``time_zone``.
    """
    view = shape(session, selection.counter).view(selection.time_zone)
    days: list[date] = []
    for label in edges(session, view, selection.named):
        first, last = view.day(label), view.last_day(label)
        if first != last and not view.plain(view.width(label)):
            view.require_days(session, [last])
        days += first, last
    return (min(days), max(days)) if days else None


def sums(session: Session, scope: Scope, keys: Keys, group: str = "") -> Rows:
    """SUM(amount), by the expression ``group`` if given, which may repeat."""
    if session.group is not None and scope.counter in session.group:
        together = session.group.sums(scope, keys, group)
        if together is not None:
            yield from together
            return
    if scope.ranges is not None and not scope.ranges:
        return
    where, args = condition(scope.ranges)
    for one in picked_keys(chosen_keys(keys), _KEYS_PER_QUERY):
        column, by = grouping(scope, group, ordered=one.ordered)
        grouped = f" GROUP BY {by}" if by else ""
        yield from session.query(
            f"SELECT {column}SUM(amount) FROM counter_slot FORCE INDEX ({one.indexes})"
            f" WHERE counter = %s{where}{one.where}{grouped}",
            (scope.counter, *args, *one.args),
        )


def by_label(session: Session, scope: Scope, keys: Keys) -> dict[int, int]:
    """The sums of the buckets by label."""
    found: dict[int, int] = {}
    for label, *most, amount in sums(session, scope, keys, BUCKETS):
        if most and most[0] != width_number(int(label)):
            return _by_label_and_width(session, scope, keys)
        found[int(label)] = found.get(int(label), 0) + int(amount)
    return found


def _by_label_and_width(session: Session, scope: Scope, keys: Keys) -> dict[int, int]:
    """The same where buckets of two widths begin at the same time in the table."""
    found: dict[int, int] = {}
    for label, amount in sums(session, scope, keys, LABEL):
        found[int(label)] = found.get(int(label), 0) + int(amount)
    return found


def _ranked(
    session: Session, scope: Scope, limit: int | None, match: KeyMatch = ANY
) -> list[tuple[str, int]]:
    """(key, sum) of the keys that match, largest first, then by key; at most ``limit`` if given."""
    if session.group is not None and scope.counter in session.group:
        together = session.group.ranked(scope, limit, match)
        if together is not None:
            return [(key_text(key), int(amount)) for key, amount in together]
    select, values = _by_key(scope, match)
    sql = f"{select} ORDER BY total DESC, counter_key" + (" LIMIT %s" if limit else "")
    rows = session.query(sql, (*values, limit) if limit else values)
    return [(key_text(key), int(amount)) for key, amount in rows]


def keyed(session: Session, scope: Scope, keys: Keys) -> Iterator[tuple[str, int]]:
    """(key, sum) in the order of the keys' bytes, one by one as the server sends them; of all keys,
    of those that match, or of ``keys``, which are not so many.
    """
    if keys is not None and not isinstance(keys, KeyMatch):
        if not keys:
            return
        keys = KeyMatch(keys=keys)
    select, values = _by_key(scope, ANY if keys is None else keys)
    for key, amount in session.stream(f"{select} ORDER BY counter_key", values):
        yield key_text(key), int(amount)


def _by_key(scope: Scope, match: KeyMatch) -> tuple[str, tuple[object, ...]]:
    """The query for the sums by key, up to its order, and its values."""
    where, args = condition(scope.ranges)
    matching, matched = match.condition()
    rows = f"counter_slot FORCE INDEX ({match.indexes}) WHERE counter = %s{where}{matching}"
    select = f"SELECT counter_key, SUM(amount) AS total FROM {rows} GROUP BY counter_key"
    return select, (scope.counter, *args, *matched)


def bucket_labels(session: Session, scope: Scope) -> list[int]:
    """The labels of the buckets that have rows, in order."""
    if scope.ranges is not None and not scope.ranges:
        return []
    where, args = condition(scope.ranges)
    label, by = LABEL, "bucket, width"
    if scope.width is not None:
        # Then the next bucket is looked up, without the rows in between.
        label, by = _label(f"{NUMBER[scope.width]:d}"), "bucket"
    rows = session.query(
        f"SELECT {label} FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE counter = %s{where} GROUP BY {by} ORDER BY {by}",
        (scope.counter, *args),
    )
    return [int(found) for (found,) in rows]


def grouping(scope: Scope, group: str, *, ordered: bool = True) -> tuple[str, str]:
    """For an expression to group by, or none: the columns of a SELECT, and what to GROUP BY.

    Args:
        scope: of the rows.
        group: the expression; or :data:`BUCKETS`: labels, and, where there may be several widths,
            behind each the number of the widest.
        ordered: the rows may come in the order of an index. Where the server is to choose between
            two, it would else take the one that spares it sorting some hundred sums, and read all
            rows for that (MariaDB 11: 50 times as long, for 1,000 of 1,000,000 keys).
    """
    if not group:
        return "", ""
    if not ordered:
        free = (LABEL if group == BUCKETS else group).replace(
            "bucket", "bucket + INTERVAL 0 SECOND"
        )
        return f"{free}, ", free
    if group == LABEL:
        return f"{LABEL}, ", "bucket, width"
    if group != BUCKETS:
        return f"{group}, ", group
    if scope.width is not None:
        return f"{_label(f'{NUMBER[scope.width]:d}')}, ", "bucket"
    # The rows of a bucket lie together, those of a bucket and a width behind each key: to group by
    # both takes twice as long, and hardly any bucket has two.
    return f"{_label('MIN(width)')}, MAX(width), ", "bucket"


def _label(width: str) -> str:
    return LABEL.replace("width", width)


def _scope(session: Session, selection: Selection) -> Scope:
    view = selected(session, selection).view(selection.time_zone)
    return Scope.of(session, view, selection.start, selection.end)
