"""Compares rows of counters with the ledger for ``verify``, and the words for where they differ
(day, key, moved, exchanged).

The server adds up both sides and tells the counters of which they differ: of most none is told.
Where the rows of one are not what was posted is told by how the checksums differ: one number says
how much is missing or too much, and two checksums are two equations more. They have an answer where
one thing was done to the rows: an amount changed, a row deleted, invented or renamed, two amounts
exchanged, or a row moved to another day. An answer is looked for among the days and keys that there
are, so a wrong one is about as likely as a number drawn from two thousand million is one of those
tried.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import combinations
from typing import Final

from countersink.runtime.limits import key_text
from countersink.store.connection import Session
from countersink.store.counters.buckets import LAST_DAY, ONE_DAY
from countersink.store.ledger import postings
from countersink.store.ledger.postings import MODULUS, Posting, key_weight, quotient
from countersink.store.sql import day_label, label_of, label_time, marks


@dataclass(slots=True)
class Sides:
    """Rows and ledger of a counter, added up in one snapshot.

    Attributes:
        rows: of slots and months.
        postings: rows of the ledgers.
        held: what the rows hold.
        posted: what was posted.
        days: rows by the label of their bucket, of slots.
        months: the same of months.
        rolled_up_to: days before it are said to be in months.
        rolled_to: by the number of a policy to whose buckets others are rolled up: up to which Unix
            minute they are said to be.
    """

    rows: int = 0
    postings: int = 0
    held: Posting = field(default_factory=Posting)
    posted: Posting = field(default_factory=Posting)
    days: dict[int, int] = field(default_factory=dict)
    months: dict[int, int] = field(default_factory=dict)
    rolled_up_to: date | None = None
    rolled_to: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """The counters whose names lie after one and up to another.

    Attributes:
        after: the one; None: none is before them.
        last: the other; None: none is behind them.
    """

    after: str | None
    last: str | None

    def where(self) -> tuple[str, list[object]]:
        """The condition and its values."""
        where, values = "TRUE", list[object]()
        for comparison, name in ((">", self.after), ("<=", self.last)):
            if name is not None:
                where += f" AND counter {comparison} %s"
                values.append(name)
        return where, values


@dataclass(frozen=True, slots=True)
class Balance:
    """What a window's counters came to: which are suspect, which have backfills.

    Attributes:
        counters: how many.
        rows: of their slots and months.
        suspects: those with which something may be wrong, in order.
        backfilled: those that backfills were begun for, in order.
    """

    counters: int
    rows: int
    suspects: list[str]
    backfilled: list[str]


def window(session: Session, after: str | None, rows: int) -> CounterWindow:
    """The next counters, as many as have so many rows in one of the tables.

    Args:
        session: in a transaction or not.
        after: the last name of the window before; None: begin.
        rows: of all counters but the last, which may have any number.
    """
    where, args = CounterWindow(after, None).where()
    ends = [
        name
        for table, order in _ORDER.items()
        for (name,) in session.query(
            f"SELECT counter FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1:d}",
            args,
        )
    ]
    return CounterWindow(after, min(ends, default=None))


def balance(session: Session, window: CounterWindow, numbers: Collection[int]) -> Balance:
    """Hold the sides of a window's counters against each other.

    Args:
        session: in a snapshot.
        window: of which counters.
        numbers: of policies that each of them has had.

    Raises:
        StoreError: as any query.
    """
    where, args = window.where()
    known = ", ".join(map(str, numbers)) or "-1"
    # Each of these is a stretch of a primary key, in whose order it is grouped.
    sides = f"""(SELECT counter, SUM(n) AS n, SUM(posted) AS posted, SUM(amount) AS amount,
        SUM(checksum) AS checksum, MAX(odd) AS odd, MAX(timed) AS timed, MAX(minutes) AS minutes
        FROM (
        SELECT counter, COUNT(*) AS n, 0 AS posted, SUM(amount) AS amount,
        {postings.SLOT_CHECKSUM} AS checksum, MAX(SECOND(bucket) NOT IN ({known})) AS odd,
        MAX(TIME_TO_SEC(bucket) >= {_MINUTE_S:d}) AS timed,
        MAX(TIME_TO_SEC(bucket) MOD {_QUARTER_S:d} >= {_MINUTE_S:d}) AS minutes
        FROM counter_slot FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, COUNT(*), 0, SUM(amount), {postings.MONTH_CHECKSUM},
        MAX(DAY(bucket) <> 1 OR TIME_TO_SEC(bucket) <> 0), FALSE, FALSE
        FROM counter_month FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, 0, COUNT(*), -SUM(amount), -SUM(checksum), FALSE, FALSE, FALSE
        FROM counter_ledger FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, 0, COUNT(*), -SUM(amount), -SUM(checksum), FALSE, FALSE, FALSE
        FROM app_ledger FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        ) AS parts GROUP BY counter) AS sides"""
    every = args * 4
    ((counters, rows, wrong),) = session.query(
        f"SELECT COUNT(*), COALESCE(SUM(n), 0), COALESCE(SUM({_SUSPECTED}), 0) FROM {sides}",
        every,
    )
    suspects = set[str]()
    if wrong:
        found = session.query(f"SELECT counter FROM {sides} WHERE {_SUSPECTED}", every)
        suspects |= {name for (name,) in found}
    suspects |= _with_odd_months(session, where, args)
    backfilled = _backfilled(session, where, args)
    others = _others(session, where, args) if backfilled else 0
    return Balance(int(counters) + others, int(rows), sorted(suspects), sorted(backfilled))


def _with_odd_months(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters with months that were not said to be rolled up."""
    found = session.query(
        "SELECT counter, last FROM (SELECT counter, MAX(bucket) AS last"
        f" FROM counter_month FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter) AS months"
        " WHERE NOT EXISTS (SELECT 1 FROM counter WHERE name = months.counter"
        " AND rolled_up_to > last)",
        args,
    )
    return {name for name, _ in found}


def _backfilled(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters with a source; and those with a run, unless there is nothing else of them."""
    there = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} AS t WHERE t.counter = backfill_run.counter)"
        for table in _ORDER
    )
    found = session.query(
        f"SELECT counter FROM backfill_source WHERE {where}"
        f" UNION SELECT counter FROM backfill_run WHERE {where} AND ({there})",
        (*args, *args),
    )
    return {name for (name,) in found}


def _others(session: Session, where: str, args: list[object]) -> int:
    """How many counters have a source, but neither rows nor a ledger."""
    there = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} AS t WHERE t.counter = sources.counter)" for table in _ORDER
    )
    ((found,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT DISTINCT counter FROM backfill_source"
        f" WHERE {where}) AS sources WHERE NOT ({there})",
        args,
    )
    return int(found)


def read(session: Session, names: Sequence[str]) -> dict[str, Sides]:
    """Both sides of some counters, in the snapshot that the caller began; of those that have any,
    in the order of the names.
    """
    found: defaultdict[str, Sides] = defaultdict(Sides)
    inside = f"IN ({marks(names)})"
    for month, table in enumerate(("counter_slot", "counter_month")):
        for name, bucket, rows, amount, key_sum in session.query(
            f"SELECT counter, bucket, COUNT(*), SUM(amount), {postings.KEY_SUM}"
            f" FROM {table} FORCE INDEX (PRIMARY)"
            f" WHERE counter {inside} GROUP BY counter, bucket",
            names,
        ):
            sides, label = found[name], label_of(bucket)
            sides.rows += int(rows)
            sides.held += Posting.of(label, int(amount), int(key_sum), month=bool(month))
            (sides.months if month else sides.days)[label] = int(rows)
    for ledger in ("counter_ledger", "app_ledger"):
        for name, rows, *sums in session.query(
            f"SELECT counter, COUNT(*), SUM(amount), SUM(checksum), SUM(moment) FROM {ledger}"
            f" WHERE counter {inside} GROUP BY counter",
            names,
        ):
            found[name].postings += int(rows)
            found[name].posted += Posting(*map(int, sums))
    for name, up_to in session.query(
        f"SELECT name, rolled_up_to FROM counter WHERE name {inside}", names
    ):
        if name in found:
            found[name].rolled_up_to = up_to
    for name, number, rolled_to in session.query(
        "SELECT counter, number, rolled_to FROM counter_policy"
        f" WHERE counter {inside} AND rolled_to IS NOT NULL",
        names,
    ):
        if name in found:
            found[name].rolled_to[int(number)] = label_of(rolled_to) // 60
    return {name: found[name] for name in names if name in found}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a counter differs from its ledger (day, key, a sentence), as far as that can be told.

    Attributes:
        detail: a sentence for people, without a capital or a full stop.
        day: of the bucket.
        key: the key as text.
    """

    detail: str
    day: date | None = None
    key: str | None = None


def locate(session: Session, counter: str, sides: Sides) -> Location:
    """Where a counter's rows differ from what was posted.

    Args:
        session: in the snapshot in which ``sides`` were read.
        counter: its name.
        sides: that differ.
    """
    difference = sides.held - sides.posted
    candidates = _candidates(difference, sides)
    keys = _keys(session, counter) if candidates else []
    known = {key_weight(key) % MODULUS: key for key in keys}
    found = [_in_bucket(session, counter, difference, each, known) for each in candidates]
    for one in found:
        if one.key is not None or len(found) == 1:
            return one
    there = candidates or [*_buckets(sides)]
    if difference.amount == 0 and difference.checksum and len(there) <= MOST_PAIRS:
        for source, target in _moves(difference, there):
            weights = postings.bucket_weight(*target) - postings.bucket_weight(*source)
            moved = quotient(difference.checksum, weights)
            if target[0] not in (sides.months if target[1] else sides.days):
                continue
            for key, amount in _rows(session, counter, target):
                if amount * key_weight(key) % MODULUS == moved:
                    return Location(
                        f"{amount:,} of key {key_text(key)!r} are in {_name(target)} that were"
                        f" counted in {_name(source)}",
                        _day(target),
                        key_text(key),
                    )
    if candidates:
        label, _ = candidates[0]
        quarter = label - label % _QUARTER_S
        return Location(
            f"in the quarter of an hour from {label_time(quarter):%Y-%m-%d %H:%M} (UTC) on",
            _day((label, False)),
        )
    return Location("in several days or keys")


MOST_KEYS: Final = 100_000
"""Keys of a counter that are tried."""
MOST_PAIRS: Final = 500
"""Keys of a bucket, or buckets, of which pairs are tried."""

_MONTHS_AWAY: Final = 400 * 86_400
"""Seconds by which a bucket that is gone may lie outside those that there are."""
_DAY_S: Final = 86_400
_LONG_AGO: Final = day_label(date(1990, 1, 1))
_FAR_AHEAD: Final = day_label(date(2100, 1, 1))
"""Between which the bucket of a counter is that has no rows any more."""

_Bucket = tuple[int, bool]
"""(label, whether it is a month)."""


def _candidates(difference: Posting, sides: Sides) -> list[_Bucket]:
    """The buckets of the only quarter of an hour, or the only month, in which something is wrong;
    none if there are several, or it is unknown.

    Those that there are, if any; where buckets are minutes also those that are gone.
    """
    if difference.checksum == 0:
        return []
    number = quotient(difference.moment, difference.checksum)
    label, month = postings.label_of_number(number)
    known = sides.months if month else sides.days
    there = [(each, month) for each in known if postings.bucket_number(each, month) == number]
    every = [*sides.days, *sides.months] or [_LONG_AGO, _FAR_AHEAD]
    if not _near(label, min(every), max(every)):
        return there
    if not month and any(each % _QUARTER_S >= _MINUTE_S for each in sides.days):
        numbers = sorted({each % _MINUTE_S for each in sides.days})
        gone = [(label + at + one, False) for at in range(0, _QUARTER_S, 60) for one in numbers]
        return there + [each for each in gone if each not in there]
    if there or label % _DAY_S or (month and label_time(label).day != 1):
        return there
    return [(label, month)]


def _near(label: int, first: int, last: int) -> bool:
    """Whether there may have been such a bucket."""
    return first - _MONTHS_AWAY <= label <= min(last + _MONTHS_AWAY, day_label(LAST_DAY))


def _in_bucket(
    session: Session,
    counter: str,
    difference: Posting,
    bucket: _Bucket,
    known: dict[int, bytes],
) -> Location:
    where, day = _name(bucket), _day(bucket)
    weighed = quotient(difference.checksum, postings.bucket_weight(*bucket))
    rows: dict[bytes, int] = {}
    for key, amount in _rows(session, counter, bucket):
        rows[key] = rows.get(key, 0) + amount
    if difference.amount % MODULUS:
        found = known.get(quotient(weighed, difference.amount))
        if found is None:
            return Location(f"in a key of {where} that is gone, or in several", day)
        gone = "" if found in rows else ", which has no row there"
        return Location(f"in key {key_text(found)!r} of {where}{gone}", day, key_text(found))
    for key, amount in rows.items():
        if amount % MODULUS:
            before = known.get((key_weight(key) - quotient(weighed, amount)) % MODULUS)
            if before is not None and before != key:
                return Location(
                    f"in {where}, {amount:,} are in key {key_text(key)!r} that were counted as"
                    f" {key_text(before)!r}",
                    day,
                    key_text(key),
                )
    if len(rows) <= MOST_PAIRS:
        for (one, first), (two, second) in combinations(rows.items(), 2):
            if (first - second) * (key_weight(one) - key_weight(two)) % MODULUS == weighed:
                return Location(
                    f"in {where}, the amounts of keys {key_text(one)!r} and {key_text(two)!r}"
                    " are exchanged",
                    day,
                    key_text(one),
                )
    return Location(f"in several keys of {where}, or in one that had another name", day)


def _moves(difference: Posting, there: list[_Bucket]) -> Iterator[tuple[_Bucket, _Bucket]]:
    """The pairs of buckets between which one key's amount may have moved."""
    terms = [
        (bucket, weight, weight * postings.bucket_number(*bucket) % MODULUS)
        for bucket in there
        for weight in (postings.bucket_weight(*bucket),)
    ]
    for one, two in combinations(terms, 2):
        left = difference.moment * (two[1] - one[1])
        if (left - difference.checksum * (two[2] - one[2])) % MODULUS == 0:
            yield one[0], two[0]
            yield two[0], one[0]


def _buckets(sides: Sides) -> Iterable[_Bucket]:
    """The buckets that there are, the days between them that there are not, and the months
    around them.
    """
    days = set(sides.days)
    if days:
        first, last = min(days) // _DAY_S - 1, max(days) // _DAY_S + 1
        if last - first <= MOST_PAIRS and all(label % _DAY_S == 0 for label in days):
            days |= {number * _DAY_S for number in range(first, last + 1)}
    months = set(sides.months)
    for label in {*days, *sides.months}:
        if _LONG_AGO <= label <= _FAR_AHEAD:
            begins = label_time(label).date().replace(day=1)
            after = (begins + 31 * ONE_DAY).replace(day=1)
            months |= {day_label(day) for day in (begins, _month_before(begins), after)}
    return [(label, False) for label in sorted(days)] + [(label, True) for label in sorted(months)]


def _month_before(first: date) -> date:
    return (first - ONE_DAY).replace(day=1)


def _rows(session: Session, counter: str, bucket: _Bucket) -> list[tuple[bytes, int]]:
    """Key and amount of the rows of a bucket, of so many at most."""
    label, month = bucket
    table = "counter_month" if month else "counter_slot"
    return [
        (bytes(key), int(amount))
        for key, amount in session.query(
            f"SELECT counter_key, amount FROM {table} FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND bucket = %s LIMIT {MOST_KEYS:d}",
            (counter, label_time(label)),
        )
    ]


def _keys(session: Session, counter: str) -> list[bytes]:
    """The keys of a counter, of all days."""
    return [
        bytes(key)
        for table in ("counter_slot", "counter_month")
        for _, key in session.query(
            f"SELECT DISTINCT counter, counter_key FROM {table} FORCE INDEX (by_key)"
            f" WHERE counter = %s LIMIT {MOST_KEYS:d}",
            (counter,),
        )
    ]


def _day(bucket: _Bucket) -> date:
    return label_time(bucket[0]).date()


def _name(bucket: _Bucket) -> str:
    label, month = bucket
    at = label_time(label)
    if month:
        return f"the month {at:%Y-%m}"
    return f"{at:%Y-%m-%d}" if label % _DAY_S < 60 else f"{at:%Y-%m-%d %H:%M} (UTC)"


_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, slot",
    "counter_month": "counter, bucket, counter_key",
    "counter_ledger": "counter, slot",
    "app_ledger": "counter, bucket, slot",
}
_MINUTE_S: Final = 60
_QUARTER_S: Final = 900
"""Seconds: a bucket's are the number of its policy, so what is above them is its time of day."""
_TRACKED: Final = "EXISTS (SELECT 1 FROM tracked_table AS t WHERE t.counter = sides.counter)"
_HAS_POLICY: Final = "EXISTS (SELECT 1 FROM counter_policy AS p WHERE p.counter = sides.counter"
_SUSPECTED: Final = (
    f"odd OR (timed AND NOT {_HAS_POLICY} AND p.resolution <> 'day'))"
    f" OR (minutes AND NOT {_HAS_POLICY} AND p.resolution = 'minute'))"
    f" OR ((posted = 0 OR amount <> 0 OR checksum MOD {MODULUS:d} <> 0) AND NOT {_TRACKED})"
)
"""A tracked table is what its counter is held against, not the ledger."""
