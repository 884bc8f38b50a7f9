"""``--max-keys``: at most how many keys a day of a counter may have, how that is counted and
locked; what goes to ``__overflow__`` instead, and how much that is: from yesterday on in UTC
(``info``, metrics, ``doctor``), or today (``counter list``).

In the transaction that counts, before anything is added. Keys that are there already go on being
counted, so whatever is not remembered as being there is looked up. Whoever has new keys to make
holds the day's row of ``counter_keys`` from then on until the end of its transaction: under that
lock it looks once more, takes what room is left, and writes down how many keys were made by now. So
there are never more of them than may be, whoever is killed when, or runs again. Once a day is full
it stays so, and nobody asks for the lock any more: not for an attack of a million keys either.

The number only grows: a key that is deleted gives no room back. Where there was no cap before, the
keys that there are then are counted first (:func:`count_anew`).

The rows are locked in the order of (counter, day), before any other row but guards, so that nobody
waits in a circle. They are made in transactions of their own (:func:`make_rows`), since an INSERT
that others wait for, and that is rolled back, lets these deadlock.

Once retention has rolled a day up to its month, or has begun to (``rolled_month``), no key of it is
made any more, and its row may go. The keys of the month are there as well: a late event of a key
that the day had goes on under that key. Keys of the day itself are asked for first, then
``rolled_month``, and then the month: a key that is moved in between is met in one or the other, as
both change in one transaction, and ``rolled_month`` before it.

Sessions are at READ COMMITTED: each look has to see what was committed before it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from typing import Final

from countersink.counting.apply.amounts import Amounts
from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import counter_of, names_of
from countersink.counting.counters.buckets import NUMBER
from countersink.counting.counters.catalog import Catalog
from countersink.counting.errors import RowsMissing
from countersink.database.errors import Conflict
from countersink.database.session import Session, rerun
from countersink.database.sql import (
    EPOCH,
    KEYS_PER_STATEMENT,
    LABEL,
    datetime_of,
    day_label,
    labels_where,
    marks,
    month_label,
    parts,
)
from countersink.runtime.limits import OVERFLOW as OVERFLOW

Place = tuple[str, date]
"""(counter, day of its own time zone)."""
Cells = tuple[str, int]
"""(counter, label of the bucket)."""

_ROWS: Final = "counter_keys FORCE INDEX (PRIMARY)"
"""By the index by which workers lock, so that nobody waits in a circle: MariaDB takes the other one
for an UPDATE of a small table."""
_DAY: Final = NUMBER["day"]
_PLACES_PER_QUERY: Final = 200
_DAYS_PER_QUERY: Final = 1000
_COUNTERS_PER_QUERY: Final = 500


@dataclass(slots=True)
class Capped:
    """Which amounts were moved to the overflow key, and which keys are new.

    Attributes:
        catalog: that in force.
        moved: the keys that have gone to :data:`OVERFLOW`, by counter and bucket.
        made: the keys that are new, by (counter, day): there once the transaction is committed.
    """

    catalog: Catalog
    moved: dict[Cells, set[str]] = field(default_factory=dict)
    made: dict[Place, list[str]] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        """How many keys there was no room for, those of each bucket."""
        return sum(map(len, self.moved.values()))

    def key(self, counter: str, label: int, key: str) -> str:
        """The key under which the amount of a key is counted."""
        return OVERFLOW if key in self.moved.get((counter, label), ()) else key

    def remember(self) -> None:
        """Note which keys are there now; to be called once the transaction is committed."""
        for place, keys in self.made.items():
            self.catalog.made.add(*place, keys)


def cap(session: Session, amounts: Amounts, catalog: Catalog) -> Capped:
    """Move the amounts of keys for which there is no room to :data:`OVERFLOW`.

    Args:
        session: at READ COMMITTED, in a transaction that holds the share lock of control and has
            not added anything yet.
        amounts: what is to be added; it is changed.
        catalog: that in force.

    Raises:
        RowsMissing: roll back, make them, and begin again.
        StoreError: as any query.
    """
    capped = Capped(catalog)
    days = _unknown(amounts, catalog) if catalog.capped else {}
    if not days:
        return capped
    # First whether it is full, then which keys are there: all of them that ever will be.
    states = _states(session, days)
    over: dict[Place, list[str]] = {}
    doubtful: dict[Place, list[str]] = {}
    for place, day in days.items():
        missing, rolled_up = _missing_keys(session, catalog, place, day.keys)
        full = rolled_up or (states.get(place) or 0) >= day.most
        if missing:
            (over if full else doubtful)[place] = missing
    if without := doubtful.keys() - states.keys():
        raise RowsMissing(without)
    for place, keys in sorted(doubtful.items()):
        most, seen = days[place].most, states[place]
        capped.made[place], over[place] = _granted(session, catalog, place, keys, most, seen)
    for place, refused in over.items():
        counter = place[0]
        for label in days[place].labels:
            moved = amounts.of(counter)[label].keys() & refused
            if moved:
                amounts.move(counter, label, moved, OVERFLOW)
                capped.moved[counter, label] = moved
    return capped


def make_rows(session: Session, places: Iterable[Place]) -> None:
    """Make the rows by which makers of keys take turns; each in a transaction of its own."""
    for counter, day in sorted(places):
        session.execute(
            "INSERT IGNORE INTO counter_keys (counter, day) VALUES (%s, %s)", (counter, day)
        )


def count_anew(session: Session, counters: Iterable[str] | None = None) -> None:
    """Have the keys of all days counted before the next is made, of some counters or of all: where
    there was no cap before, with the change, which keeps everybody from counting.
    """
    if counters is None:
        session.execute("UPDATE counter_keys SET made = NULL")
        return
    for counter in counters:
        session.execute(f"UPDATE {_ROWS} SET made = NULL WHERE counter = %s", (counter,))


@dataclass(slots=True)
class _Day:
    """Keys of a day that are not remembered as being there, the buckets that they are for, and the
    cap.
    """

    most: int
    labels: list[int] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)


def _unknown(amounts: Amounts, catalog: Catalog) -> dict[Place, _Day]:
    """What has to be looked up, the keys in the order in which they came."""
    found: dict[Place, _Day] = {}
    for counter in amounts.counters:
        most = catalog.cap(counter)
        if most is None:
            continue
        free = _free(catalog, counter)
        for label, keys in amounts.of(counter).items():
            day = catalog.day(counter, label)
            known = catalog.made.of(counter, day)
            unknown = [key for key in keys if key not in known and key not in free]
            if unknown:
                one = found.setdefault((counter, day), _Day(most))
                one.labels.append(label)
                one.keys.update(dict.fromkeys(unknown))
    return found


def _free(catalog: Catalog, counter: str) -> tuple[str, ...]:
    """Keys that take no room of a counter's days: with dimensions that of all events which have
    any, since what its breakdowns hold is compared with it.
    """
    return (OVERFLOW, "") if counter in catalog.dimensioned else (OVERFLOW,)


def _states(session: Session, places: Iterable[Place]) -> dict[Place, int | None]:
    """How many keys the days have, as far as there are rows that say so; None: not counted.

    Without a lock: a number only grows.
    """
    found: dict[Place, int | None] = {}
    for part in parts(sorted(places), _PLACES_PER_QUERY):
        where = " OR ".join(["(counter = %s AND day = %s)"] * len(part))
        for counter, day, made in session.query(
            f"SELECT counter, day, made FROM counter_keys WHERE {where}",
            [value for place in part for value in place],
        ):
            found[counter, day] = made
    return found


def _granted(
    session: Session, catalog: Catalog, place: Place, keys: list[str], most: int, seen: int | None
) -> tuple[list[str], list[str]]:
    """The keys that may be made, and those that may not; the others are there by now.

    Nobody else makes keys of that day until this transaction ends.

    Args:
        session: as :func:`cap` has it.
        catalog: that in force.
        place: the counter and the day.
        keys: those that were not there when it was looked.
        most: the cap.
        seen: how many keys the day had before that; None: not counted.
    """
    rows: list[tuple[int | None]] = session.query(
        f"SELECT made FROM {_ROWS} WHERE counter = %s AND day = %s FOR UPDATE", place
    )
    if not rows:
        raise Conflict("a row of counter_keys was there, and then was not")
    ((made,),) = rows
    if made is None or made != seen:
        # Others have had the lock since it was looked which keys are there.
        keys, _ = _missing_keys(session, catalog, place, keys)
    counted = _count_keys(session, catalog, place) if made is None else made
    room = max(0, most - counted)
    granted, refused = keys[:room], keys[room:]
    if made is None or granted:
        session.execute(
            f"UPDATE {_ROWS} SET made = %s WHERE counter = %s AND day = %s",
            (counted + len(granted), *place),
        )
    return granted, refused


def _missing_keys(
    session: Session, catalog: Catalog, place: Place, keys: Iterable[str]
) -> tuple[list[str], bool]:
    """Keys of these that the day does not have, the others are remembered; and, where there are
    such, whether keys of the day may be in its month by now.
    """
    counter, day = place
    encoded = {key: key.encode().hex() for key in keys}
    where, args = _of_day(catalog, place)
    # In one bucket keys are found by the primary key, in several by the other index.
    index = "PRIMARY" if len(args) == 1 else "by_key"
    there = _there(session, index, counter, where, args, encoded.values())
    absent = [hexed for key, hexed in encoded.items() if key not in there]
    begins = datetime_of(buckets.day_begins(catalog.of(counter).known_zone(), day))
    rolled_up = "SELECT 1 FROM counter WHERE name = %s AND rolled_month > %s"
    is_rolled_up = bool(absent and session.query(rolled_up, (counter, begins)))
    if is_rolled_up:
        month = labels_where([month_label(day)])
        there |= _there(session, "PRIMARY", counter, *month, absent)
    catalog.made.add(*place, there)
    return [key for key in encoded if key not in there], is_rolled_up


def _count_keys(session: Session, catalog: Catalog, place: Place) -> int:
    """How many keys take room of the day."""
    where, args = _of_day(catalog, place)
    free = [key.encode() for key in _free(catalog, place[0])]
    ((number,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT DISTINCT counter_key FROM counter_slot"
        f" FORCE INDEX (PRIMARY) WHERE counter = %s AND {where}"
        f" AND counter_key NOT IN ({marks(free)})) AS there",
        (place[0], *args, *free),
    )
    return int(number)


def _of_day(catalog: Catalog, place: Place) -> tuple[str, list[object]]:
    """The condition for the rows of a day's buckets, of any width, and its values."""
    counter, day = place
    scheme = catalog.of(counter)
    where, args = labels_where([day_label(day)])
    if scheme.widths[0] == "day":
        return where, args
    for begin, end in buckets.intervals(scheme.known_zone(), day, day):
        assert begin is not None
        assert end is not None
        where += f" OR bucket >= %s AND bucket < %s AND width < {_DAY:d}"
        args += [datetime_of(begin), datetime_of(end)]
    return f"({where})", args


def _there(
    session: Session,
    index: str,
    counter: str,
    where: str,
    args: Sequence[object],
    encoded: Iterable[str],
) -> set[str]:
    """Those of some keys, given as hex digits, that are in rows of some buckets of a counter."""
    there: set[str] = set()
    for part in parts(sorted(encoded), KEYS_PER_STATEMENT):
        literals = "', X'".join(part)
        found = session.query(
            f"SELECT DISTINCT counter_key FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s AND {where} AND counter_key IN (X'{literals}')",
            (counter, *args),
        )
        there.update(bytes(key).decode() for (key,) in found)
    return there


def overflown(
    session: Session, names: Iterable[str], since: datetime = EPOCH
) -> dict[tuple[str, int], int]:
    """Amounts in :data:`OVERFLOW` of these counters and breakdowns, by counter and bucket's label;
    of the buckets from ``since`` on alone.
    """
    found: dict[tuple[str, int], int] = {}
    for part in parts(sorted(names), _COUNTERS_PER_QUERY):
        rows = session.query(
            f"SELECT counter, {LABEL}, SUM(amount) FROM counter_slot FORCE INDEX (by_key)"
            f" WHERE counter IN ({marks(part)}) AND counter_key = %s AND bucket >= %s"
            " GROUP BY counter, bucket, width HAVING SUM(amount) <> 0",
            (*part, OVERFLOW.encode(), since),
        )
        found |= {(name, label): int(amount) for name, label, amount in rows}
    return found


def overflown_lately(session: Session, counter: str | None = None) -> dict[tuple[str, int], int]:
    """Amounts in :data:`OVERFLOW` of all counters, or of one and its breakdowns, by counter and
    bucket's label; of the buckets from yesterday (in UTC) on.
    """
    ((yesterday,),) = session.query("SELECT CAST(UTC_DATE() - INTERVAL 1 DAY AS DATETIME)")
    where, args = "", tuple[object, ...]()
    if counter is not None:
        names = (counter, *names_of(session, counter))
        where, args = f" AND counter IN ({marks(names)})", names
    found = session.query(
        f"SELECT DISTINCT counter FROM counter_keys WHERE day >= %s{where}", (yesterday, *args)
    )
    return overflown(session, (name for (name,) in found), yesterday)


def overflown_by_counter(session: Session) -> dict[str, int]:
    """Amounts of :func:`overflown_lately` by the counter whose, or whose breakdowns', they are; the
    largest first.
    """
    sums: Counter[str] = Counter()
    for (name, _), amount in overflown_lately(session).items():
        sums[counter_of(name)] += amount
    return dict(sums.most_common())


def prune(
    session: Session,
    *,
    stop: Callable[[], bool] = lambda: False,
    rest: Callable[[], object] = lambda: None,
) -> tuple[int, bool]:
    """Forget how many keys the days had that are rolled up by now; of how many days, and whether
    these were all.

    Each row is deleted in a transaction of its own, as workers hold several, in another order.

    Raises:
        StoreError: as any statement.
    """
    deleted = 0
    delete = f"DELETE counter_keys FROM {_ROWS} WHERE counter = %s AND day = %s"
    while True:
        found = session.query(
            "SELECT counter, day FROM counter_keys JOIN counter ON name = counter"
            # The local day of the month's begin may be one later than in UTC.
            " WHERE day < rolled_month - INTERVAL 1 DAY LIMIT %s",
            (_DAYS_PER_QUERY,),
        )
        for place in found:
            if stop():
                return deleted, False
            deleted += rerun(partial(session.execute, delete, place))
        if len(found) < _DAYS_PER_QUERY:
            return deleted, True
        rest()
