"""SQL of totals: sums by key (the largest first) and by bucket, the choice of indexes, and the
first and the last day with counts.

The caller's session is in a snapshot, so that answers to several questions fit together. A range is
given by local days, both included, or by times; None means that this side has no limit. Without
``time_zone``, days are those of the counter's own zone. A total is exact; where it cannot be, an
error is raised, as :mod:`countersink.counting.totals.views` describes. Keys are text here and bytes
in the table; bytes that are not UTF-8 become lone surrogates, as in file names.

Every function that takes a :class:`countersink.counting.totals.selection.Selection` also raises:

    UnknownCounter: the counter was neither created nor ever counted, and has no pending amounts.
        (:func:`span` does not raise it.)
    ValueError: there is no such time zone.
    InexactZone: the range begins or ends within a bucket. Times may do so; so may days of another
        zone than the counter's own, if the buckets are days; and days of any zone that was not
        whole hours from UTC at that time, if the buckets are hours.
    Refused: the question needs days of the counter's own zone, and this machine does not know it.
    RolledUp: the range begins or ends within a month whose days were rolled up into one bucket.

Each query names its index, and reads only the range that was asked for. It uses the primary key
(counter, bucket, …) for days, and ``by_key`` (counter, counter_key, bucket) for single keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from countersink.counting.counters.all_counters import labels_with_rows
from countersink.counting.totals.selection import (
    ANY,
    ChosenKeys,
    KeyMatch,
    Keys,
    Selection,
    chosen_keys,
    picked_keys,
)
from countersink.counting.totals.snapshot import MAX_ROWS, Snapshot, SumRows
from countersink.counting.totals.views import Ranges, View, condition
from countersink.database.sql import LABEL, marks
from countersink.runtime.limits import key_bytes, key_text, stored_form

_KEYS_PER_QUERY: Final = 500
"""Maximum number of named keys in a query. For many more, MySQL reads the whole index instead of
ranges of it."""
_RANGES_PER_QUERY: Final = 2_000
"""Maximum ranges of an index (counters times keys) in a query for several counters."""

BUCKETS: Final = "bucket"


@dataclass(frozen=True, slots=True)
class Scope:
    """The buckets whose rows a question has to read.

    Attributes:
        counter: the counter's name.
        ranges: the ranges of its buckets; None for all its buckets.
    """

    counter: str
    ranges: Ranges

    @classmethod
    def of(cls, view: View, start: date | None, end: date | None) -> "Scope":
        """Return the scope for a range of days or times.

        Raises:
            InexactZone: the range begins or ends within a bucket.
            RolledUp: the range begins or ends within a month that is a single bucket.
        """
        view.require_range(start, end)
        return cls(view.counter, view.ranges(start, end))


def total(snapshot: Snapshot, selection: Selection) -> int:
    """Return the sum of the selected keys in the selected range, pending amounts included."""
    scope, keys = _scope(snapshot, selection), selection.keys
    stored = sum(0 if amount is None else int(amount) for (amount,) in sums(snapshot, scope, keys))
    return stored + sum(amount for _, _, amount in _added(snapshot, scope, keys))


def by_key(
    snapshot: Snapshot, selection: Selection, *, limit: int | None = None
) -> list[tuple[str, int]]:
    """Return (key, total) of the keys that match and have rows in the range, the largest total
    first; equal totals are in the order of keys. Pending amounts are included. With ``limit``,
    only the first ``limit`` are returned. The selection's ``keys`` must be a match, or None for all
    keys.
    """
    scope, keys = _scope(snapshot, selection), selection.keys
    assert keys is None or isinstance(keys, KeyMatch)
    added: dict[str, int] = {}
    for _, key, amount in _added(snapshot, scope, keys):
        added[key] = added.get(key, 0) + amount
    # Keys without pending amounts can be in the result only if they are among the first `limit` of
    # them; keys with pending amounts can move up or down from any place.
    asked = None if limit is None else limit + len(added)
    totals = dict(_ranked(snapshot, scope, asked, keys or ANY))
    if asked is not None and len(totals) == asked:
        beyond = [key for key in added if key not in totals]
        totals |= _many(snapshot, scope, beyond)
    if not added:
        return list(totals.items())
    for key, amount in added.items():
        totals[key] = totals.get(key, 0) + amount
    return sorted(totals.items(), key=lambda pair: (-pair[1], key_bytes(pair[0])))[:limit]


def many(snapshot: Snapshot, selection: Selection) -> dict[str, int]:
    """Return the totals of the named keys of a selection by key, in their order; 0 for keys without
    counts. Pending amounts are included.
    """
    scope, wanted = _scope(snapshot, selection), list(selection.named or ())
    totals = _many(snapshot, scope, wanted)
    added: dict[str, int] = {}
    for _, key, amount in _added(snapshot, scope, wanted):
        added[key] = added.get(key, 0) + amount
    for key in totals if added else ():
        totals[key] += added.get(stored_form(key), 0)
    return totals


def _many(snapshot: Snapshot, scope: Scope, wanted: list[str]) -> dict[str, int]:
    found: dict[bytes, int] = {}
    for key, amount in sums(snapshot, scope, wanted, "counter_key"):
        found[bytes(key)] = found.get(bytes(key), 0) + int(amount)
    return {key: found.get(key_bytes(key), 0) for key in wanted}


def span(snapshot: Snapshot, selection: Selection) -> tuple[date, date] | None:
    """Return the first and the last day that have rows, of a counter or of the named keys of a
    selection. Return None if there are no rows. The selection's range and pending amounts are
    ignored. If a month is a single bucket, all its days count as days with rows.

    Raises:
        InexactZone: the first or the last bucket is in more than one day of the time zone.
        RolledUp: the first or the last bucket is a month, and ``time_zone`` is not the counter's
            own.
    """
    view = snapshot.view(selection.counter, selection.time_zone)
    days: list[date] = []
    for label in snapshot.edges(view, selection.named):
        first, last = view.day(label), view.last_day(label)
        if first != last and not view.plain(view.width(label)):
            view.require_days([last])
        days += first, last
    return (min(days), max(days)) if days else None


def sums(snapshot: Snapshot, scope: Scope, keys: Keys, group: str = "") -> SumRows:
    """Return rows with SUM(amount) as their last column, without pending amounts.

    With ``group``, an SQL expression, each row has the sum for one value of this expression, and
    begins with the value. Several rows may have the same value (without ``group``, there may be
    several rows), because many named keys need several queries; the caller adds the rows up. There
    may be no rows. For the columns with :data:`BUCKETS` see :func:`grouping`.
    """
    chosen = chosen_keys(keys)
    return snapshot.shared(
        (scope.ranges, chosen, group),
        scope.counter,
        lambda names: _sums_of(snapshot, names, scope, chosen, group),
    )


def _sums_of(
    snapshot: Snapshot, names: list[str], scope: Scope, chosen: ChosenKeys, group: str
) -> dict[str, SumRows]:
    """Return the rows of :func:`sums` for several counters, by name. If one query cannot return all
    rows, only some of the counters are included, or none. One name is always included. Sums over
    all keys are read from the ledger, except for counters of tracked tables.
    """
    table = "counter_slot"
    if chosen == ANY:
        table = _table(snapshot, names[0])
        names = [name for name in names if _table(snapshot, name) == table]
    picked = picked_keys(chosen, _KEYS_PER_QUERY)
    most = max((part.ranges for part in picked), default=0)
    complete = names if not most else names[: max(1, _RANGES_PER_QUERY // most)]
    found: dict[str, SumRows] = {name: [] for name in complete}
    if scope.ranges is not None and not scope.ranges:
        return found
    where, args = condition(scope.ranges)
    for part in picked:
        if not complete:
            return {}
        limit = f" ORDER BY counter LIMIT {MAX_ROWS}" if len(complete) > 1 else ""
        select, by = grouping(group, ordered=part.ordered)
        rows = snapshot.session.query(
            f"SELECT counter, {select}SUM(amount) FROM {table} FORCE INDEX ({part.indexes})"
            f" WHERE counter IN ({marks(complete)}){where}{part.where} AND width > 0"
            f" GROUP BY counter{by and f', {by}'}{limit}",
            (*complete, *args, *part.args),
        )
        complete = _complete(complete, rows)
        for name, *row in rows:
            found[name].append(tuple(row))
    return {name: found[name] for name in complete}


def _complete(names: list[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the names of the counters of which ``rows`` has all rows. The LIMIT of the query may
    have cut off rows of the last counters.
    """
    if len(rows) < MAX_ROWS or len(names) == 1:
        return names
    last = rows[-1][0]
    return [name for name in names if name < last]


def by_label(snapshot: Snapshot, scope: Scope, keys: Keys) -> dict[int, int]:
    """Return the sums of the selected keys by bucket's label, pending amounts included. Buckets
    without rows of these keys are left out."""
    found: dict[int, int] = {}
    for label, amount in sums(snapshot, scope, keys, BUCKETS):
        found[int(label)] = found.get(int(label), 0) + int(amount)
    if chosen_keys(keys) == ANY:
        # The ledger may still have rows of a bucket whose rows were deleted.
        zeros = {label for label, amount in found.items() if not amount}
        if zeros:
            held = labels_with_rows(snapshot.session, scope.counter, zeros)
            found = {label: amount for label, amount in found.items() if amount or label in held}
    for label, _, amount in _added(snapshot, scope, keys):
        found[label] = found.get(label, 0) + amount
    return found


def _added(snapshot: Snapshot, scope: Scope, keys: Keys) -> Iterator[tuple[int, str, int]]:
    return snapshot.added(scope.counter, scope.ranges, keys)


def _ranked(
    snapshot: Snapshot, scope: Scope, limit: int | None, match: KeyMatch
) -> list[tuple[str, int]]:
    """Return (key, sum) of the keys that match, without pending amounts, the largest sum first;
    equal sums are in the order of keys. With ``limit``, only the first ``limit`` are returned.
    """
    rows = snapshot.shared(
        (scope.ranges, limit, match),
        scope.counter,
        lambda names: _ranked_of(snapshot, names, scope, limit, match),
    )
    return [(key_text(key), int(amount)) for key, amount in rows]


def _ranked_of(
    snapshot: Snapshot, names: list[str], scope: Scope, limit: int | None, match: KeyMatch
) -> dict[str, SumRows]:
    if len(names) == 1:
        select, given = _by_key(scope, match)
        sql = f"{select} ORDER BY total DESC, counter_key" + (" LIMIT %s" if limit else "")
        return {names[0]: snapshot.session.query(sql, (*given, limit) if limit else given)}
    where, args = condition(scope.ranges)
    matching, matched = match.condition()
    source = (
        f"counter_slot FORCE INDEX ({match.indexes})"
        f" WHERE counter IN ({marks(names)}){where}{matching}"
    )
    values: tuple[object, ...] = (*names, *args, *matched)
    first = "" if limit is None else " WHERE place <= %s"
    rows = snapshot.session.query(
        "SELECT counter, counter_key, total FROM (SELECT counter, counter_key,"
        " SUM(amount) AS total, ROW_NUMBER() OVER"
        " (PARTITION BY counter ORDER BY SUM(amount) DESC, counter_key) AS place"
        f" FROM {source} GROUP BY counter, counter_key) AS ranks{first}"
        f" ORDER BY counter, place LIMIT {MAX_ROWS}",
        values if limit is None else (*values, limit),
    )
    found: dict[str, SumRows] = {name: [] for name in _complete(names, rows)}
    for name, *row in rows:
        if name in found:
            found[name].append(tuple(row))
    return found


def keyed(snapshot: Snapshot, scope: Scope, keys: Keys) -> Iterator[tuple[str, int]]:
    """Yield (key, sum) in the order of the keys' bytes, without pending amounts. Rows are streamed
    from the server. If keys are named, all of them must fit into one statement.
    """
    if keys is not None and not isinstance(keys, KeyMatch):
        if not keys:
            return
        keys = KeyMatch(keys=keys)
    select, values = _by_key(scope, ANY if keys is None else keys)
    for key, amount in snapshot.session.stream(f"{select} ORDER BY counter_key", values):
        yield key_text(key), int(amount)


def _by_key(scope: Scope, match: KeyMatch) -> tuple[str, tuple[object, ...]]:
    """Return the query for sums by key, without ORDER BY, and its values."""
    where, args = condition(scope.ranges)
    matching, matched = match.condition()
    rows = f"counter_slot FORCE INDEX ({match.indexes}) WHERE counter = %s{where}{matching}"
    select = f"SELECT counter_key, SUM(amount) AS total FROM {rows} GROUP BY counter_key"
    return select, (scope.counter, *args, *matched)


def _table(snapshot: Snapshot, counter: str) -> str:
    """Return the table with the sums of a counter's buckets: the ledger, except for a tracked
    table's counter, whose triggers post nothing there.
    """
    return "counter_slot" if snapshot.shape(counter).tracked else "counter_ledger"


def grouping(group: str, *, ordered: bool = True) -> tuple[str, str]:
    """Return the columns of a SELECT before its sum, and the expressions of its GROUP BY.

    Args:
        group: SQL expression by which to group; an empty one for a single sum. With
            :data:`BUCKETS`, rows have the bucket's label.
        ordered: False to keep the server from returning rows in the order of an index. This is
            needed if the server can choose between two indexes. It would choose the index that
            avoids sorting a few hundred sums, and read all rows (50 times as long on MariaDB 11,
            for 1,000 of 1,000,000 keys).
    """
    if not group:
        return "", ""
    column, by = (LABEL, "bucket, width") if group == BUCKETS else (group, group)
    if not ordered:
        column = by = column.replace("bucket", "bucket + INTERVAL 0 SECOND")
    return f"{column}, ", by


def _scope(snapshot: Snapshot, selection: Selection) -> Scope:
    return Scope.of(snapshot.selected(selection), selection.start, selection.end)
