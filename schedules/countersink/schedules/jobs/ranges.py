"""Queries that find the buckets and keys to compact or to roll up. They are plain reads, which take
no locks. See ``compaction.py`` and ``retention.py`` for what is selected.

Every query of ``counter_slot`` uses its primary key (counter, bucket, counter_key, width, slot).
The next query begins after what the query before has read, so that earlier rows cost nothing.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.counting.counters.buckets import NUMBER, WIDTHS
from countersink.counting.counters.catalog import Catalog, Scheme, WidthTimes, load
from countersink.database.session import Session
from countersink.database.sql import (
    COMPACTED,
    LABEL,
    NOW_MS,
    datetime_of,
    label_text,
    label_time,
    labels_where,
    marks,
    unix_seconds,
    width_number,
)

_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"
_LAST_KEY: Final = b"\xff" * 255


@dataclass(frozen=True, slots=True)
class Wider:
    """A wider bucket into which rows are rolled up. When the rows move, the counter must still be
    in the state that ``rolled_to`` and ``version`` describe.

    Attributes:
        label: the label of the wider bucket.
        rolled_to: the time up to which the counter's buckets are rolled up into this width, in Unix
            seconds, as the pass read it.
        version: the version of the catalog that the pass uses.
    """

    label: int
    rolled_to: int
    version: int


@dataclass(frozen=True, slots=True)
class BucketRange:
    """A range of keys in one bucket, or in several buckets of one width, and the bucket to which
    the rows move.

    Attributes:
        counter: the counter of the buckets.
        bucket: the label of the first, or only, bucket.
        first: the first key.
        last: the last key, inclusive.
        to: the wider bucket to which the rows of all slots move. If it is None, the rows of the
            other slots move to slot 0 of the same bucket.
        others: the labels of the other buckets; empty if there is only one bucket.
    """

    counter: str
    bucket: int
    first: bytes
    last: bytes
    to: Wider | None = None
    others: tuple[int, ...] = ()

    @staticmethod
    def all_keys(counter: str, labels: Sequence[int], to: Wider) -> "BucketRange":
        """Return the range of all keys in the buckets ``labels``. Their rows move to the bucket
        ``to``."""
        return BucketRange(counter, labels[0], b"", _LAST_KEY, to, tuple(labels[1:]))

    @property
    def lowest_slot(self) -> int:
        """The lowest slot whose rows are moved: 0 if they move to a wider bucket; 1 if they move to
        slot 0 of the same bucket."""
        return COMPACTED + 1 if self.to is None else COMPACTED

    def where(self) -> tuple[str, list[object]]:
        """Return the SQL condition for rows of all slots in this range, and the values for its
        placeholders."""
        buckets, args = labels_where((self.bucket, *self.others))
        where = f"counter = %s AND {buckets} AND counter_key"
        if self.first == self.last:
            # By equality: the end of a range would read, and lock, the next key's first row.
            return f"{where} = %s", [self.counter, *args, self.first]
        return f"{where} BETWEEN %s AND %s", [self.counter, *args, self.first, self.last]


@dataclass(frozen=True, slots=True)
class BucketKey:
    """A key of a bucket, or a whole bucket if ``key`` is None, that a pass left as it was.

    Attributes:
        counter: the counter of the bucket.
        bucket: the bucket's label.
        key: the key, or None.
    """

    counter: str
    bucket: int
    key: bytes | None = None

    def __str__(self) -> str:
        bucket = f"{self.counter} {label_text(self.bucket)}"
        if self.key is None:
            return bucket
        return f"{bucket} {self.key.decode('utf-8', 'backslashreplace')!r}"


def counters(session: Session) -> list[str]:
    """Return the counters that have rows in ``counter_slot``, even if the ledger does not have
    them.
    """
    # A loose scan: from each counter the index is entered anew for the next one.
    return [name for (name,) in session.query(f"SELECT DISTINCT counter FROM {_ROWS}")]


@dataclass(frozen=True, slots=True)
class Page:
    """The buckets that one call of :func:`page` has read.

    Attributes:
        counters: how many of the given counters were read completely, from the first on.
        buckets: (counter, label, most) for each bucket that may need work. ``most`` is the greatest
            number of rows that a key of the bucket has in slots other than 0. It is None if the
            bucket has too many rows to count them.
        beyond: the argument ``start`` of the next call, if even the first counter was not read
            completely (``counters`` is 0 then): later than all buckets that were read, and not
            later than the first one that was not. None otherwise.
    """

    counters: int
    buckets: Sequence[tuple[str, int, int | None]]
    beyond: int | None = None


def page(
    session: Session,
    counters: Sequence[str],
    catalog: Catalog,
    *,
    start: int | None,
    end: int | None,
    rows: int,
) -> Page:
    """Read the buckets of as many of the given counters, from the first on, as have at most
    ``rows`` rows together. If the first counter alone has more rows, read only some of its buckets,
    from the first on.

    Only buckets that may need work are returned: those with rows in slots other than 0, or with
    rows of an unknown width.

    Args:
        session: a session outside a transaction.
        counters: one or more counters, in the order of the table. If ``start`` is None, all
            counters of the table between the first and the last must be given.
        catalog: a catalog that has the counters.
        start, end: read only buckets from ``start`` to before ``end``, in Unix seconds of the
            column ``bucket``; None for no limit.
        rows: maximum number of rows that one call reads. A bucket with more rows is returned
            without being read: once, with None for ``most``, for each width that the counter's
            buckets may have.
    """
    done, beyond = len(counters), None
    where, values = _where(counters, start, end)
    order = "ORDER BY counter, bucket, counter_key, width, slot LIMIT 1"
    find = f"SELECT counter, bucket FROM {_ROWS} WHERE {where} {order}"
    with session.transaction(snapshot=True):
        for name, bucket in session.query(f"{find} OFFSET {rows:d}", values):
            done = bisect_left(counters, name)
            if not done:
                first = unix_seconds(session.query(find, values)[0][1])
                beyond = unix_seconds(bucket)
                if first == beyond:
                    # Without reading its rows, which are many.
                    widths = catalog.scheme(name).widths
                    whole = [(name, first + NUMBER[width], None) for width in widths]
                    return Page(0, whole, first + 1)
            where, values = _where(counters[: done or 1], start, end if beyond is None else beyond)
        found = session.query(
            f"SELECT counter, {LABEL} AS label, MAX(n) FROM ("
            f"SELECT counter, bucket, width, COUNT(IF(slot > 0, 1, NULL)) AS n FROM {_ROWS}"
            f" WHERE ({where}) AND {_TO_DO} GROUP BY counter, bucket, counter_key, width"
            ") AS of_keys GROUP BY counter, bucket, width ORDER BY counter, bucket, width",
            values,
        )
    buckets = [(name, label, int(most)) for name, label, most in found]
    return Page(done, buckets, beyond)


_TO_DO: Final = f"(slot > {COMPACTED:d} OR width NOT BETWEEN 1 AND {len(WIDTHS):d})"


def _where(counters: Sequence[str], start: int | None, end: int | None) -> tuple[str, list[object]]:
    """Return the SQL condition for rows of these counters in buckets from ``start`` to before
    ``end``, and the values for its placeholders. If ``start`` is None, rows of all counters between
    the first and the last are included."""
    if start is None:
        where, values = "counter BETWEEN %s AND %s", list[object]((counters[0], counters[-1]))
    else:  # a range of the index for each: earlier rows are not read
        where, values = f"counter IN ({marks(counters)}) AND bucket >= %s", [*counters]
        values.append(datetime_of(start))
    if end is not None:
        where += " AND bucket < %s"
        values.append(datetime_of(end))
    return where, values


def finer_buckets(session: Session, schemes: Sequence[Scheme]) -> dict[str, list[int]]:
    """Return the labels of the buckets that may have to be rolled up, by counter. A scheme has for
    each width the time up to which narrower buckets are rolled up into that width. A bucket is
    returned if it begins before this time of some wider width. A counter without such buckets is
    left out.

    Args:
        session: a session outside a transaction.
        schemes: the schemes of one or more counters. Each has a width into which buckets are rolled
            up.
    """
    alike: dict[WidthTimes, list[str]] = {}
    for scheme in schemes:
        alike.setdefault(scheme.rolled, []).append(scheme.counter)
    where, values = [], list[object]()
    for rolled, names in alike.items():
        ends = [(datetime_of(end), NUMBER[width]) for width, end in reversed(rolled)]
        # A range of the index for each counter, then a condition without an index.
        widest = " ".join(["WHEN bucket < %s THEN %s"] * len(ends))
        where.append(f"counter IN ({marks(names)}) AND bucket < %s AND width < CASE {widest} END")
        values += [*names, max(ends)[0], *(value for one in ends for value in one)]
    found: dict[str, list[int]] = {}
    for name, label in session.query(
        f"SELECT DISTINCT counter, {LABEL} AS label FROM {_ROWS} WHERE ({') OR ('.join(where)})"
        " ORDER BY counter, label",
        values,
    ):
        found.setdefault(name, []).append(label)
    return found


def next_part(
    session: Session,
    counter: str,
    bucket: int,
    *,
    after: bytes | None = None,
    above: int = 0,
    rows: int,
    to: Wider | None = None,
) -> BucketRange | None:
    """Return a range of the next keys of a bucket whose rows should move; None if there are none.

    Args:
        session: a session outside a transaction.
        counter: the counter of the bucket.
        bucket: the bucket's label.
        after: the last key of the previous part; None for the first part.
        above: the range begins and ends with a key that has more than this number of rows to move;
            smaller keys between them are in it, too.
        rows: about how many rows, of all slots and widths, the range has. A range of a single key
            can have more.
        to: the wider bucket to which the rows go; None if they go to slot 0.
    """
    moving = f"width = {width_number(bucket):d} AND slot >= {1 if to is None else 0:d}"
    where = "counter = %s AND bucket = %s AND counter_key"
    at: list[object] = [counter, label_time(bucket)]
    comparison = ">=" if after is None else ">"
    found = session.query(
        f"SELECT counter_key FROM {_ROWS} WHERE {where} {comparison} %s AND {moving}"
        " GROUP BY counter_key HAVING COUNT(*) > %s ORDER BY counter_key LIMIT 1",
        (*at, after or b"", above),
    )
    if not found:
        return None
    first = bytes(found[0][0])
    # The page may end within a key: if that key seems too small for it, it begins the next page.
    ((last,),) = session.query(
        "SELECT MAX(IF(n > %s, counter_key, NULL)) FROM ("
        f"SELECT counter_key, SUM({moving}) AS n FROM ("
        f"SELECT counter_key, width, slot FROM {_ROWS} WHERE {where} >= %s"
        " ORDER BY counter_key, width, slot LIMIT %s) AS page GROUP BY counter_key) AS in_page",
        (above, *at, first, rows),
    )
    return BucketRange(counter, bucket, first, first if last is None else bytes(last), to)


def small_buckets(
    session: Session, counter: str, labels: Sequence[int], *, rows: int
) -> Sequence[int]:
    """Return the longest beginning of ``labels`` whose buckets have at most ``rows`` rows together.
    It is empty if the first bucket alone has more. Rows of buckets that lie in between and are not
    in ``labels`` are counted, too.

    Args:
        session: a session outside a transaction.
        counter: the counter of the buckets.
        labels: one or more labels, in order.
        rows: maximum number of rows of the returned buckets; the query reads one row more.
    """
    # As one range: for a list of buckets MySQL reads the index from its beginning.
    found = session.query(
        f"SELECT bucket FROM {_ROWS} WHERE counter = %s AND bucket BETWEEN %s AND %s"
        f" ORDER BY bucket, counter_key, width, slot LIMIT 1 OFFSET {rows:d}",
        (counter, label_time(labels[0]), label_time(labels[-1])),
    )
    return labels[: bisect_left(labels, unix_seconds(found[0][0]))] if found else labels


def keys_of(session: Session, part: BucketRange) -> list[bytes]:
    """Return the keys in a range that have rows to move, in order, so that it can be halved."""
    where, args = part.where()
    found = session.query(
        f"SELECT DISTINCT counter_key FROM {_ROWS}"
        f" WHERE {where} AND slot >= {part.lowest_slot:d} ORDER BY counter_key",
        args,
    )
    return [bytes(key) for (key,) in found]


def now_and_catalog(session: Session, known: Catalog | None = None) -> tuple[int, Catalog]:
    """Return the server's clock in Unix seconds, and the catalog. If ``known`` is given and has the
    current version, it is returned as the catalog. Otherwise the catalog is read."""
    with session.transaction(snapshot=True):
        ((now_ms, version),) = session.query(
            f"SELECT {NOW_MS}, catalog_version FROM control WHERE id = 1"
        )
        if known is None or known.version != version:
            known = load(session)
        return int(now_ms) // 1000, known
