"""Adding up a counter's rows, in its buckets and in its months.

Each query names the index it goes by and reads no more of a table than the range it is asked for:
the primary key (counter, bucket, …) for whole days, ``by_key`` (counter, counter_key, bucket) for
single keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from countersink.store.buckets import label_of
from countersink.store.connection import Session
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import key_bytes, key_text
from countersink.store.ranges import Ranges, check_days, condition
from countersink.store.rollups import Months
from countersink.store.shapes import Shape
from countersink.store.views import View

_KEYS_PER_QUERY: Final = 500
"""Ranges per query: far more than this and MySQL gives up on ranges and reads the index whole."""

_LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket)"
"""A bucket's label as a number, which the driver reads faster than a DATETIME."""
MONTHS: Final = " AND bucket >= %s AND bucket <= %s"

Rows = Iterator[tuple[Any, ...]]
Keys = Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that a question is about.

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
            ValueError: it ends before it begins.
            InexactZone: it begins or ends within a bucket.
            RolledUp: it cuts through a month.
        """
        check_days(start, end)
        view.require_range(start, end)
        months = None if shape.rolled is None else shape.rolled.months(view, start, end)
        return cls(shape.counter, view.ranges(start, end), months)


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


def ranked(
    session: Session, scope: Scope, limit: int | None, match: KeyMatch = ANY
) -> list[tuple[str, int]]:
    """(key, sum) of the keys that match, largest first, then by key; at most ``limit`` if given."""
    if session.group is not None and scope.counter in session.group:
        together = session.group.ranked(scope, limit, match)
        if together is not None:
            return [(key_text(key), int(amount)) for key, amount in together]
    select, values = _by_key(scope, *match.condition())
    sql = f"{select} ORDER BY total DESC, counter_key" + (" LIMIT %s" if limit else "")
    rows = session.query(sql, (*values, limit) if limit else values)
    return [(key_text(key), int(amount)) for key, amount in rows]


def keyed(session: Session, scope: Scope, keys: Keys) -> Iterator[tuple[str, int]]:
    """(key, sum) in the order of the keys' bytes, one by one as the server sends them; of all keys,
    or of ``keys``, which are not so many.
    """
    chosen = None if keys is None else sorted({key_bytes(key) for key in keys})
    if chosen == []:
        return
    where = "" if chosen is None else f" AND counter_key IN ({marks(chosen)})"
    select, values = _by_key(scope, where, tuple(chosen or ()))
    for key, amount in session.stream(f"{select} ORDER BY counter_key", values):
        yield key_text(key), int(amount)


def _by_key(
    scope: Scope, matching: str, matched: Sequence[object]
) -> tuple[str, tuple[object, ...]]:
    """The query for the sums by key, up to its order, and its values."""
    where, args = condition(scope.ranges)
    source = f"counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s{where}{matching}"
    values: tuple[object, ...] = (scope.counter, *args, *matched)
    if scope.months is not None:
        months = f"counter_month FORCE INDEX (PRIMARY) WHERE counter = %s{MONTHS}{matching}"
        source = (
            f"(SELECT counter_key, SUM(amount) AS amount FROM {source} GROUP BY counter_key"
            f" UNION ALL SELECT counter_key, amount FROM {months}) AS parts"
        )
        values += (scope.counter, *scope.months, *matched)
    select = f"SELECT counter_key, SUM(amount) AS total FROM {source} GROUP BY counter_key"
    return select, values


def edges(session: Session, shape: Shape, view: View, keys: Keys) -> list[int]:
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


def month_edges(session: Session, shape: Shape, keys: Keys) -> list[date]:
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


def parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """``values``, so many at a time."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def grouping(group: str) -> tuple[str, str]:
    """For an expression to group by, or none: the column of a SELECT, and what to GROUP BY."""
    return (f"{group}, ", "bucket" if group == _LABEL else group) if group else ("", "")


def marks(values: Sequence[object]) -> str:
    """Placeholders for ``values``."""
    return ", ".join(["%s"] * len(values))


def _table(
    session: Session,
    table: str,
    counter: str,
    where: str,
    args: Sequence[object],
    keys: Keys,
    group: str,
) -> Rows:
    column, by = grouping(group)
    select = f"SELECT {column}SUM(amount) FROM {table}"
    grouped = f" GROUP BY {by}" if by else ""
    if keys is None:
        sql = f"{select} FORCE INDEX (PRIMARY) WHERE counter = %s{where}{grouped}"
        yield from session.query(sql, (counter, *args))
        return
    for part in parts(sorted({key_bytes(key) for key in keys}), _KEYS_PER_QUERY):
        sql = (
            f"{select} FORCE INDEX (by_key)"
            f" WHERE counter = %s{where} AND counter_key IN ({marks(part)}){grouped}"
        )
        yield from session.query(sql, (counter, *args, *part))
