"""The SQL that finds buckets and keys to compact or roll up (when and in which order:
``jobs/compaction.py``; which days are due: ``jobs/retention.py``), and the sentences about those
left as they are.

Plain reads, which take no locks and scan one index.

Every query goes by the primary key (counter, bucket, counter_key, slot), and pages by "after this
key", so that what lies before costs nothing.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from countersink.store.connection import Session
from countersink.store.counters.policies import Policies, load
from countersink.store.errors import UnknownCounter
from countersink.store.sql import COMPACTED, NOW_MS, label_of, label_text, label_time, marks

Bucket = tuple[str, int]
"""(counter, label)."""

_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"
_LAST_KEY: Final = b"\xff" * 255
_LONGEST: Final = 80
"""Characters of a key in a sentence."""


@dataclass(frozen=True, slots=True)
class Month:
    """A month that rows go to, and what makes it the right one.

    Attributes:
        label: of the first of the month.
        rolled_up_to: the first day of the counter that stays, as the pass knows it.
        version: of the policies that the pass goes by.
        capped_day: the day of the bucket, if the counter has a cap on the keys of its days.
    """

    label: int
    rolled_up_to: date
    version: int
    capped_day: date | None = None


@dataclass(frozen=True, slots=True)
class Wider:
    """A wider bucket that rows go to, and what makes it the right one.

    Attributes:
        label: of the bucket.
        number: of its policy, which rolls that of the rows.
        rolled_to: what that policy has of this name, as the pass knows it.
        version: of the policies that the pass goes by.
    """

    label: int
    number: int
    rolled_to: int
    version: int


@dataclass(frozen=True, slots=True)
class BucketRange:
    """Keys of one bucket, or of several, and where their rows go.

    Attributes:
        counter: the counter.
        bucket: the bucket's label.
        first: the first key.
        last: the last key, included.
        to: where to move, out of every slot; None: from the other slots to slot 0.
        others: the labels of the other buckets.
    """

    counter: str
    bucket: int
    first: bytes
    last: bytes
    to: Month | Wider | None = None
    others: tuple[int, ...] = ()

    @staticmethod
    def whole(counter: str, labels: Sequence[int], to: Month | Wider) -> "BucketRange":
        """All keys of some buckets."""
        return BucketRange(counter, labels[0], b"", _LAST_KEY, to, tuple(labels[1:]))

    @property
    def lowest_slot(self) -> int:
        """The lowest slot whose rows move."""
        return COMPACTED + 1 if self.to is None else COMPACTED

    def where(self) -> tuple[str, list[object]]:
        """The condition for its keys, and the values for it."""
        times = [label_time(label) for label in (self.bucket, *self.others)]
        inside = f"IN ({marks(times)})" if self.others else "= %s"
        where = f"counter = %s AND bucket {inside} AND counter_key"
        args: list[object] = [self.counter, *times, self.first]
        if self.first == self.last:
            # By equality: the end of a range would look at, and lock, the next key's first row.
            return f"{where} = %s", args
        return f"{where} BETWEEN %s AND %s", [*args, self.last]


@dataclass(frozen=True, slots=True)
class BucketKey:
    """A key of a bucket, or with None a whole bucket.

    Attributes:
        counter: the counter.
        bucket: the bucket's label.
        key: the key.
    """

    counter: str
    bucket: int
    key: bytes | None = None

    def __str__(self) -> str:
        bucket = f"{self.counter} {label_text(self.bucket)}"
        if self.key is None:
            return bucket
        key = self.key.decode("utf-8", "backslashreplace")
        shown = key if key.isprintable() else repr(key)[1:-1]
        return f"{bucket} '{shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '…'}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDone:
    """What a pass left as it is.

    Attributes:
        busy: keys that an open transaction held; the next pass comes back to them.
        overflowing: keys whose sum, or whose month or wider bucket, would not fit 64 bits.
        unreadable: keys whose different members are not what was written, or take a library that is
            not installed.
        astride: buckets that lie in two months, or in two days where they were to become wider.
        unknown: buckets that no policy of their counter made.
        finished: False if it was stopped.
    """

    busy: tuple[BucketKey, ...] = ()
    overflowing: tuple[BucketKey, ...] = ()
    unreadable: tuple[BucketKey, ...] = ()
    astride: tuple[BucketKey, ...] = ()
    unknown: tuple[BucketKey, ...] = ()
    finished: bool = True

    @property
    def left(self) -> dict[str, tuple[BucketKey, ...]]:
        """What was left, by why it was."""
        every = {
            "keys left for the next run, as others held them": self.busy,
            "keys left as they are, as their sum does not fit 64 bits": self.overflowing,
            "keys left as they are, as their different members cannot be read": self.unreadable,
            "buckets left as they are, as they lie in two months or days": self.astride,
            "buckets left as they are, as no policy of their counter made them": self.unknown,
        }
        return {why: places for why, places in every.items() if places}

    def sentence(self, said: str) -> str:
        """``said``, what was left, how many and the first of them, and whether the pass ended."""
        for why, places in self.left.items():
            said += f"; {why}: {len(places):,}, first {places[0]}"
        return said if self.finished else f"{said}; stopped early, the next run goes on"


def counters(session: Session) -> list[str]:
    """The counters that have slot rows, whether or not they are in the ledger."""
    # A loose scan: from each counter the index is entered anew for the next one.
    return [name for (name,) in session.query(f"SELECT DISTINCT counter FROM {_ROWS}")]


def require_counter(session: Session, counter: str) -> None:
    """Check that a counter was counted, be it 0, or made by hand.

    Raises:
        UnknownCounter: neither.
    """
    found = session.query(
        "(SELECT counter FROM counter_ledger WHERE counter = %s LIMIT 1)"
        " UNION (SELECT counter FROM counter_slot WHERE counter = %s LIMIT 1)"
        " UNION (SELECT name FROM counter WHERE name = %s)",
        (counter, counter, counter),
    )
    # Compared here: the columns take 'views ' for 'views'.
    if (counter,) not in found:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")


def bucket_labels(
    session: Session, counter: str, *, start: int | None = None, end: int | None = None
) -> list[int]:
    """The labels of a counter's buckets in order, from ``start`` to before ``end``."""
    within, values = _within(start, end)
    # A loose scan: not a row of a bucket but its first is looked at.
    found = session.query(
        f"SELECT DISTINCT counter, bucket FROM {_ROWS} WHERE counter = %s{within}",
        (counter, *values),
    )
    return sorted(label_of(bucket) for _, bucket in found)


def first_beyond(
    session: Session,
    counters: Sequence[str],
    rows: int,
    *,
    start: int | None = None,
    end: int | None = None,
) -> str | None:
    """The counter in which the first ``rows`` rows of some counters are exceeded; None: in none.

    Args:
        session: outside a transaction.
        counters: neighbours in the order of the table.
        rows: so many are read, and one more.
        start, end: as for :func:`bucket_labels`.
    """
    where, values = _of(counters, start, end)
    found = session.query(
        f"SELECT counter FROM {_ROWS} WHERE {where}"
        f" ORDER BY counter, bucket, counter_key, slot LIMIT 1 OFFSET {rows:d}",
        values,
    )
    return found[0][0] if found else None


def unsettled(
    session: Session,
    counters: Sequence[str],
    numbers: Collection[int],
    *,
    start: int | None = None,
    end: int | None = None,
) -> dict[str, list[int]]:
    """The buckets of some counters in which there may be something to do: those with rows in other
    slots than 0, and those of other policies. All rows of these counters are read.

    Args:
        session: outside a transaction.
        counters: neighbours in the order of the table.
        numbers: of policies that each of them has had.
        start, end: as for :func:`bucket_labels`.
    """
    where, values = _of(counters, start, end)
    other = f"SECOND(bucket) NOT IN ({', '.join(map(str, numbers))})" if numbers else "TRUE"
    found: dict[str, list[int]] = {}
    for name, bucket in session.query(
        f"SELECT DISTINCT counter, bucket FROM {_ROWS} WHERE {where} AND (slot > 0 OR {other})"
        " ORDER BY counter, bucket",
        values,
    ):
        found.setdefault(name, []).append(label_of(bucket))
    return found


def _of(counters: Sequence[str], start: int | None, end: int | None) -> tuple[str, list[object]]:
    """The condition for rows of neighbours, from one label to before another."""
    within, values = _within(start, end)
    if start is None:
        return f"counter BETWEEN %s AND %s{within}", [counters[0], counters[-1], *values]
    # A range of the index for each: what they have from before is not read.
    return f"{_inside(counters)}{within}", [*counters, *values]


def _within(start: int | None, end: int | None) -> tuple[str, list[object]]:
    """The condition for buckets from ``start`` to before ``end``."""
    where, values = "", list[object]()
    for comparison, label in ((">=", start), ("<", end)):
        if label is not None:
            where += f" AND bucket {comparison} %s"
            values.append(label_time(label))
    return where, values


def uncompacted(session: Session, places: Sequence[Bucket], *, above: int = 0) -> list[Bucket]:
    """Those of some buckets in which a key has more rows than this in other slots than 0.

    Args:
        session: outside a transaction.
        places: in order, neighbours where they are of one counter.
        above: so many rows of a key are left as they are.
    """
    labels = [label for _, label in places]
    names = list(dict.fromkeys(name for name, _ in places))
    where = f"{_inside(names)} AND bucket BETWEEN %s AND %s AND slot > 0"
    values = (*names, label_time(min(labels)), label_time(max(labels)))
    source = f"{_ROWS} WHERE {where}"
    if above:
        source = (
            f"(SELECT counter, bucket FROM {source} GROUP BY counter, bucket, counter_key"
            f" HAVING COUNT(*) > {above:d}) AS crowded"
        )
    found = session.query(f"SELECT DISTINCT counter, bucket FROM {source}", values)
    dirty = {(name, label_of(bucket)) for name, bucket in found}
    return [place for place in places if place in dirty]


def _inside(counters: Sequence[str]) -> str:
    return f"counter IN ({', '.join(['%s'] * len(counters))})"


def next_part(
    session: Session,
    counter: str,
    bucket: int,
    *,
    after: bytes | None = None,
    above: int = 0,
    rows: int,
    to: Month | Wider | None = None,
) -> BucketRange | None:
    """The next keys of a bucket that are worth moving; None if there are none.

    Args:
        session: outside a transaction.
        counter: whose bucket it is.
        bucket: its label.
        after: the last key of the part before; None to begin with.
        above: a key is worth moving if it has more rows than this that would move.
        rows: about so many rows, moving or not, lie between the first key and the last.
        to: as in :class:`BucketRange`.
    """
    moving = f"slot >= {1 if to is None else 0:d}"
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
    if above:
        last = _last_above(session, (where, at), first, moving, above, rows)
    else:
        last = _last_of(session, (where, at), first, rows)
    return BucketRange(counter, bucket, first, last, to)


def small_ones(
    session: Session, counter: str, labels: Sequence[int], *, rows: int
) -> Sequence[int]:
    """The first of some buckets, as many as have no more rows than that together with what lies
    between them.

    Args:
        session: outside a transaction.
        counter: whose buckets they are.
        labels: in order.
        rows: so many of them are read, and one more.
    """
    # As one range: of a list of buckets MySQL reads the index from its beginning on.
    found = session.query(
        f"SELECT bucket FROM {_ROWS} WHERE counter = %s AND bucket BETWEEN %s AND %s"
        f" ORDER BY bucket, counter_key, slot LIMIT 1 OFFSET {rows:d}",
        (counter, label_time(labels[0]), label_time(labels[-1])),
    )
    return labels[: bisect_left(labels, label_of(found[0][0]))] if found else labels


def _last_of(session: Session, where: tuple[str, list[object]], first: bytes, rows: int) -> bytes:
    """The key in which a page of ``rows`` rows ends."""
    condition, at = where
    # The offset is within the page and never grows: it spares the server a copy of the page.
    found = session.query(
        f"SELECT counter_key FROM {_ROWS} WHERE {condition} >= %s"
        " ORDER BY counter_key, slot LIMIT 1 OFFSET %s",
        (*at, first, rows - 1),
    ) or session.query(
        f"SELECT MAX(counter_key) FROM {_ROWS} WHERE {condition} >= %s", (*at, first)
    )
    return bytes(found[0][0] or first)


def _last_above(
    session: Session,
    where: tuple[str, list[object]],
    first: bytes,
    moving: str,
    above: int,
    rows: int,
) -> bytes:
    """The last key of such a page that has more than ``above`` rows that would move."""
    condition, at = where
    ((last,),) = session.query(
        "SELECT MAX(IF(n > %s, counter_key, NULL)) FROM ("
        f"SELECT counter_key, SUM({moving}) AS n FROM ("
        f"SELECT counter_key, slot FROM {_ROWS} WHERE {condition} >= %s"
        " ORDER BY counter_key, slot LIMIT %s) AS page GROUP BY counter_key) AS in_page",
        (above, *at, first, rows),
    )
    # The page may end in the midst of a key: if that is why it seems too small, it begins the next.
    return first if last is None else bytes(last)


def keys_of(session: Session, part: BucketRange) -> list[bytes]:
    """The keys in a part that have rows to move, in order."""
    where, args = part.where()
    found = session.query(
        f"SELECT DISTINCT counter_key FROM {_ROWS}"
        f" WHERE {where} AND slot >= {part.lowest_slot:d} ORDER BY counter_key",
        args,
    )
    return [bytes(key) for (key,) in found]


def now_and_policies(session: Session) -> tuple[int, Policies]:
    """Unix seconds on the server's clock, and the policies there are."""
    with session.transaction(snapshot=True):
        ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
        return int(now_ms) // 1000, load(session)


def now_and_version(session: Session) -> tuple[int, int]:
    """Unix seconds on the server's clock, and the version of the policies there are."""
    ((now_ms, version),) = session.query(
        f"SELECT {NOW_MS}, policy_version FROM control WHERE id = 1"
    )
    return int(now_ms) // 1000, int(version)
