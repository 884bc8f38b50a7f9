"""The SQL that finds buckets and keys to compact or roll up (which of them: ``jobs/compaction.py``
and ``jobs/retention.py``).

Plain reads, which take no locks and scan one index.

Every query goes by the primary key (counter, bucket, counter_key, slot), and pages by "after this
key", so that what lies before costs nothing.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from countersink.store.connection import Session
from countersink.store.counters.policies import Policies, load
from countersink.store.sql import COMPACTED, NOW_MS, label_of, label_text, label_time, marks

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
    """

    label: int
    rolled_up_to: date
    version: int


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


def counters(session: Session) -> list[str]:
    """The counters that have slot rows, whether or not they are in the ledger."""
    # A loose scan: from each counter the index is entered anew for the next one.
    return [name for (name,) in session.query(f"SELECT DISTINCT counter FROM {_ROWS}")]


@dataclass(frozen=True, slots=True)
class Page:
    """Buckets that were looked at together.

    Attributes:
        counters: how many of the counters asked for are done with.
        buckets: (counter, label, most) of those in which there may be something to do: so many rows
            in other slots than 0 has a key of it at most; None: they were not counted.
        first: of the first counter the first label that was looked at, if it is not done with.
        beyond: of the same the label to go on from.
    """

    counters: int
    buckets: Sequence[tuple[str, int, int | None]]
    first: int = 0
    beyond: int | None = None


def page(
    session: Session,
    counters: Sequence[str],
    policies: Policies,
    *,
    start: int | None,
    end: int | None,
    rows: int,
) -> Page:
    """Look at the first counters, as many as are small together, or at some buckets of a large one.
    Something may have to be done where rows are in other slots than 0, and in buckets of a policy
    that not each of the counters has had.

    Args:
        session: outside a transaction.
        counters: in the order of the table; without ``start`` neighbours.
        policies: those there are.
        start, end: only buckets from the one label to before the other.
        rows: so many are looked at, or a bucket that has more.
    """
    done, first, beyond = len(counters), 0, None
    where, values = _of(counters, start, end)
    order = "ORDER BY counter, bucket, counter_key, slot LIMIT 1"
    look = f"SELECT counter, bucket FROM {_ROWS} WHERE {where} {order}"
    with session.transaction(snapshot=True):
        for name, bucket in session.query(f"{look} OFFSET {rows:d}", values):
            done = bisect_left(counters, name)
            if not done:
                first, beyond = label_of(session.query(look, values)[0][1]), label_of(bucket)
                if first == beyond:
                    return Page(0, [(name, first, None)], first, first + 1)
            where, values = _of(counters[: max(1, done)], start, end if beyond is None else beyond)
        numbers = policies.shared_numbers(counters[: max(1, done)])
        other = f"SECOND(bucket) NOT IN ({', '.join(map(str, numbers))})" if numbers else "TRUE"
        found = session.query(
            "SELECT counter, bucket, MAX(n) FROM ("
            f"SELECT counter, bucket, COUNT(IF(slot > 0, 1, NULL)) AS n FROM {_ROWS}"
            f" WHERE ({where}) AND (slot > 0 OR {other}) GROUP BY counter, bucket, counter_key"
            ") AS of_keys GROUP BY counter, bucket ORDER BY counter, bucket",
            values,
        )
    buckets = [(name, label_of(bucket), int(most)) for name, bucket, most in found]
    return Page(done, buckets, first, beyond)


def _of(counters: Sequence[str], start: int | None, end: int | None) -> tuple[str, list[object]]:
    """The condition for rows of some counters, from one label to before another."""
    if start is None:
        where, values = "counter BETWEEN %s AND %s", list[object]((counters[0], counters[-1]))
    else:  # a range of the index for each: what they have from before is not read
        where, values = f"counter IN ({marks(counters)}) AND bucket >= %s", [*counters]
        values.append(label_time(start))
    if end is not None:
        where += " AND bucket < %s"
        values.append(label_time(end))
    return where, values


def labels_before(session: Session, ends: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """By counter the labels of its buckets before one, in order.

    Args:
        session: outside a transaction.
        ends: a counter and the label before which its buckets lie; a range of the index each.
    """
    where = " OR ".join(["counter = %s AND bucket < %s"] * len(ends))
    values = [value for name, end in ends for value in (name, label_time(end))]
    found: dict[str, list[int]] = {}
    # A loose scan: not a row of a bucket but its first is looked at.
    for name, bucket in session.query(
        f"SELECT DISTINCT counter, bucket FROM {_ROWS} WHERE {where} ORDER BY counter, bucket",
        values,
    ):
        found.setdefault(name, []).append(label_of(bucket))
    return found


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
    # The page may end in the midst of a key: if that is why it seems too small, it begins the next.
    ((last,),) = session.query(
        "SELECT MAX(IF(n > %s, counter_key, NULL)) FROM ("
        f"SELECT counter_key, SUM({moving}) AS n FROM ("
        f"SELECT counter_key, slot FROM {_ROWS} WHERE {where} >= %s"
        " ORDER BY counter_key, slot LIMIT %s) AS page GROUP BY counter_key) AS in_page",
        (above, *at, first, rows),
    )
    return BucketRange(counter, bucket, first, first if last is None else bytes(last), to)


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


def keys_of(session: Session, part: BucketRange) -> list[bytes]:
    """The keys in a part that have rows to move, in order."""
    where, args = part.where()
    found = session.query(
        f"SELECT DISTINCT counter_key FROM {_ROWS}"
        f" WHERE {where} AND slot >= {part.lowest_slot:d} ORDER BY counter_key",
        args,
    )
    return [bytes(key) for (key,) in found]


def now_and_policies(session: Session, known: Policies | None = None) -> tuple[int, Policies]:
    """Unix seconds on the server's clock, and the policies there are: ``known`` if it is these."""
    with session.transaction(snapshot=True):
        ((now_ms, version),) = session.query(
            f"SELECT {NOW_MS}, policy_version FROM control WHERE id = 1"
        )
        if known is None or known.version != version:
            known = load(session)
        return int(now_ms) // 1000, known
