"""The SQL of totals: sums by key (largest first), by bucket and by month, choice of indexes, first
and last day.

So a caller can ask several questions in one snapshot; it needs one, or nobody who moves rows
meanwhile. Ranges are local days and include both ends; None means from, or to, where the data
begins or ends. Without ``time_zone`` days are those of the zone a bucket was counted in. An answer
is exact, or an error (never for buckets that are days, shown as such):
:mod:`countersink.store.totals.views`. What retention has rolled up is in
:mod:`countersink.store.totals.shapes`. Keys are str here and bytes in the table (undecodable bytes
become lone surrogates, as in file names).

Every function that takes a :class:`countersink.store.totals.selection.Selection` raises, beside
what it names:

    UnknownCounter: nothing was ever counted under this name, nor did anybody make it.
    ValueError: there is no such time zone.
    InexactZone: the buckets do not add up to days of ``time_zone``, or, where they are hours, of
        the zone they were counted in, which was then not whole hours from UTC.
    Refused: the machine does not know the counter's time zone, and the days of it are asked for.
    RolledUp: the range takes a part of days that are rolled up to a month.

Each query names the index it goes by and reads no more of a table than the range it is asked for:
the primary key (counter, bucket, …) for whole days, ``by_key`` (counter, counter_key, bucket) for
single keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from countersink.runtime.limits import key_bytes, key_text
from countersink.store.connection import Session
from countersink.store.counters.buckets import month_ends
from countersink.store.sql import label_of
from countersink.store.totals.selection import (
    ANY,
    KeyMatch,
    Keys,
    Selection,
    chosen_keys,
    picked_keys,
)
from countersink.store.totals.shapes import Months, Shape, selected, shape
from countersink.store.totals.views import Ranges, View, condition

_KEYS_PER_QUERY: Final = 500
"""Ranges per query: far more than this and MySQL gives up on ranges and reads the index whole."""

_LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket)"
"""A bucket's label as a number, which the driver reads faster than a DATETIME."""
MONTHS: Final = " AND bucket >= %s AND bucket <= %s"

Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that a question is about: counter, ranges of buckets, months.

    Attributes:
        counter: whose.
        ranges: which of its buckets.
        months: which of its months; None for none.
    """

    counter: str
    ranges: Ranges
    months: Months | None = None

    @classmethod
    def of(cls, shape: Shape, view: View, start: date | None, end: date | None) -> "Scope":
        """All of a range of days, in buckets and in months.

        Raises:
            InexactZone: it begins or ends within a bucket.
            RolledUp: it cuts through a month.
        """
        view.require_range(start, end)
        months = None if shape.rolled is None else shape.rolled.months(view, start, end)
        return cls(shape.counter, view.ranges(start, end), months)


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

    What is in months counts from the first day of the first to the last rolled up day of the last.

    Raises:
        InexactZone: the first or the last bucket lies in more than one day of ``time_zone``.
        RolledUp: there are months, and they are not those of ``time_zone``.
    """
    own = shape(session, selection.counter)
    view = own.view(selection.time_zone)
    days: list[date] = []
    for label in edges(session, own, view, selection.named):
        if view.day(label) != view.last_day(label):
            view.require_days([view.last_day(label)])
        days += view.day(label), view.last_day(label)
    if own.rolled is not None and (months := month_edges(session, own, selection.named)):
        own.rolled.require_own(view)
        days += min(months), min(month_ends(max(months)), own.rolled.last_day)
    return (min(days), max(days)) if days else None


def sums(session: Session, scope: Scope, keys: Keys, group: str = "") -> Rows:
    """SUM(amount) of buckets and months, by the expression ``group`` if given, which may repeat."""
    if session.group is not None and scope.counter in session.group:
        together = session.group.sums(scope, keys, group)
        if together is not None:
            yield from together
            return
    where, args = condition(scope.ranges)
    if scope.ranges is None or scope.ranges:
        yield from _table(session, "counter_slot", scope.counter, where, args, keys, group)
    if scope.months is not None:
        yield from _table(
            session, "counter_month", scope.counter, MONTHS, scope.months, keys, group
        )


def by_label(session: Session, scope: Scope, keys: Keys) -> dict[int, int]:
    """The sums of the buckets by label, without the months."""
    found: dict[int, int] = {}
    for label, amount in sums(session, Scope(scope.counter, scope.ranges), keys, _LABEL):
        found[label] = found.get(label, 0) + int(amount)
    return found


def by_month(session: Session, scope: Scope, keys: Keys) -> dict[date, int]:
    """The sums of the months by their first day, without the buckets."""
    found: dict[date, int] = {}
    for bucket, amount in sums(session, Scope(scope.counter, (), scope.months), keys, "bucket"):
        found[bucket.date()] = found.get(bucket.date(), 0) + int(amount)
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
    source = f"counter_slot FORCE INDEX ({match.indexes}) WHERE counter = %s{where}{matching}"
    values: tuple[object, ...] = (scope.counter, *args, *matched)
    if scope.months is not None:
        months = f"counter_month FORCE INDEX ({match.indexes}) WHERE counter = %s{MONTHS}{matching}"
        source = (
            f"(SELECT counter_key, SUM(amount) AS amount FROM {source} GROUP BY counter_key"
            f" UNION ALL SELECT counter_key, amount FROM {months}) AS parts"
        )
        values += (scope.counter, *scope.months, *matched)
    select = f"SELECT counter_key, SUM(amount) AS total FROM {source} GROUP BY counter_key"
    return select, values


def edges(session: Session, shape: Shape, view: View, keys: Sequence[str] | None) -> list[int]:
    """Labels of buckets that have rows: the first and the last under each policy, for each key."""
    found: list[int] = []
    for one in view.possible():
        where, values = condition([one])
        for key in [None] if keys is None else dict.fromkeys(keys):
            rest = "FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
            args: tuple[object, ...] = (shape.counter, *values)
            if key is not None:
                rest = (
                    "FROM counter_slot FORCE INDEX (by_key) WHERE counter = %s AND counter_key = %s"
                )
                args = (shape.counter, key_bytes(key), *values)
            rest += where
            if not one.mixed:
                rows = session.query(f"SELECT MIN(bucket), MAX(bucket) {rest}", args)
            else:
                # MIN and MAX would read the whole range, for the sake of the policy's number.
                rows = [
                    row
                    for way in ("ASC", "DESC")
                    for row in session.query(
                        f"SELECT bucket {rest} ORDER BY bucket {way} LIMIT 1", args
                    )
                ]
            found += [label_of(bucket) for row in rows for bucket in row if bucket is not None]
    return found


def bucket_labels(session: Session, scope: Scope) -> list[int]:
    """The labels of the buckets that have rows, in order, without the months."""
    if scope.ranges is not None and not scope.ranges:
        return []
    where, args = condition(scope.ranges)
    rows = session.query(
        "SELECT bucket FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE counter = %s{where} GROUP BY bucket ORDER BY bucket",
        (scope.counter, *args),
    )
    return [label_of(bucket) for (bucket,) in rows]


def month_edges(session: Session, shape: Shape, keys: Sequence[str] | None) -> list[date]:
    """The first and the last month that has rows, by first days, for each key."""
    if shape.rolled is None:
        return []
    if keys is None:
        return [shape.rolled.first, shape.rolled.last]
    return [
        bucket.date()
        for key in dict.fromkeys(keys)
        for bucket in session.query(
            "SELECT MIN(bucket), MAX(bucket) FROM counter_month FORCE INDEX (by_key)"
            " WHERE counter = %s AND counter_key = %s",
            (shape.counter, key_bytes(key)),
        )[0]
        if bucket is not None
    ]


def grouping(group: str, *, ordered: bool = True) -> tuple[str, str]:
    """For an expression to group by, or none: the column of a SELECT, and what to GROUP BY.

    Args:
        group: the expression.
        ordered: the rows may come in the order of an index. Where the server is to choose between
            two, it would else take the one that spares it sorting some hundred sums, and read all
            rows for that (MariaDB 11: 50 times as long, for 1,000 of 1,000,000 keys).
    """
    if not group:
        return "", ""
    if ordered:
        return f"{group}, ", "bucket" if group == _LABEL else group
    free = group.replace("bucket", "bucket + INTERVAL 0 SECOND")
    return f"{free}, ", free


def _table(
    session: Session,
    table: str,
    counter: str,
    where: str,
    args: Sequence[object],
    keys: Keys,
    group: str,
) -> Rows:
    for one in picked_keys(chosen_keys(keys), _KEYS_PER_QUERY):
        column, by = grouping(group, ordered=one.ordered)
        grouped = f" GROUP BY {by}" if by else ""
        yield from session.query(
            f"SELECT {column}SUM(amount) FROM {table} FORCE INDEX ({one.indexes})"
            f" WHERE counter = %s{where}{one.where}{grouped}",
            (counter, *args, *one.args),
        )


def _scope(session: Session, selection: Selection) -> Scope:
    own = selected(session, selection)
    return Scope.of(own, own.view(selection.time_zone), selection.start, selection.end)
