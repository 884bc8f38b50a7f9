"""Caps of keys (``--max-keys``): how many keys a day of a counter may have. Applies caps when
counting, and reads the amounts of the key ``__overflow__``, in which all further keys are counted.

The transaction that counts applies the cap before it adds anything. It looks up the keys that the
catalog does not remember; keys that exist are always counted. If some are new, it locks the day's
row of ``counter_keys`` until it ends. Under that lock it looks them up again, decides how many of
them have room, and stores the day's new number of keys. So workers and backfills never make more
keys than the cap allows, even if a process is killed or repeats its transaction. (Transactions of
applications keep to no cap.) A full day stays full. Nobody locks its row any more, even if a
million further keys arrive.

The stored number never decreases: a deleted key makes no room. When a counter without a cap gets
one, the keys that it has already are counted (:func:`count_anew`).

Transactions lock rows of ``counter_keys`` in the order of (counter, day), after guards and before
all other rows, so that they do not deadlock. :func:`make_rows` inserts each row in its own
transaction: transactions that wait for an INSERT can deadlock if it is rolled back.

When retention rolls a day up to its month (``rolled_month``), the day gets no new keys any more,
and its row may be pruned. A late event of a key that the day had is still counted under this key,
because the month has it. A look-up reads the day, then ``rolled_month``, then the month. Retention
sets ``rolled_month``, and then moves each key in one transaction. So a key that moves during the
look-up is found in the day or in the month.

Sessions are at READ COMMITTED, so that each query sees all earlier commits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from typing import Final

from countersink.counting.apply.amounts import Amounts
from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import counter_of, names_of
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
"""(counter, day in the counter's time zone): what a cap is for."""
Cells = tuple[str, int]
"""(counter, bucket's label)."""

_ROWS: Final = "counter_keys FORCE INDEX (PRIMARY)"
"""The table with the index by which workers lock. MariaDB would use the other index for an UPDATE
of a small table, and transactions could deadlock."""
_DAY: Final = NUMBER["day"]
_PLACES_PER_QUERY: Final = 200
_DAYS_PER_QUERY: Final = 1000
_COUNTERS_PER_QUERY: Final = 500


@dataclass(slots=True)
class Capped:
    """The result of :func:`cap`: the keys that had no room, and the keys that are new.

    Attributes:
        moved: keys whose amounts were moved to the key ``__overflow__``, by (counter, bucket's
            label).
        made: new keys by (counter, day). They exist once the transaction is committed.
    """

    moved: dict[Cells, set[str]] = field(default_factory=dict)
    made: dict[Place, list[str]] = field(default_factory=dict)

    def key(self, counter: str, label: int, key: str) -> str:
        """Return ``key``; or ``__overflow__``, if the amount of ``key`` was moved there."""
        return OVERFLOW if key in self.moved.get((counter, label), ()) else key


def cap(session: Session, amounts: Amounts, catalog: Catalog) -> Capped:
    """Decide for which new keys each day of a counter with a cap has room, and store the day's new
    number of keys. Move the amounts of the other new keys to the key ``__overflow__``. Return the
    new keys of both kinds.

    Args:
        session: at READ COMMITTED, in a transaction that holds the share lock on the control row
            and has not added anything yet.
        amounts: the amounts that will be added; they are changed in place.
        catalog: the catalog in force; at least one counter in it has a cap.

    Raises:
        RowsMissing: a day with new keys has no row in ``counter_keys``. Roll back, insert the
            missing rows, and run the transaction again.
        StoreError: a query failed, or (Conflict) a row of ``counter_keys`` was pruned meanwhile.
    """
    capped = Capped()
    days = _unknown(amounts, catalog)
    if not days:
        return capped
    # The number of keys first: the keys that a full day has after that are final.
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
        most, made = days[place].most, states[place]
        capped.made[place], over[place] = _granted(session, catalog, place, keys, most, made)
    for place, refused in over.items():
        counter = place[0]
        for label in days[place].labels:
            moved = amounts.by_bucket(counter)[label].keys() & refused
            if moved:
                amounts.move(counter, label, moved, OVERFLOW)
                capped.moved[counter, label] = moved
    return capped


def make_rows(session: Session, places: Iterable[Place]) -> None:
    """Insert missing rows of ``counter_keys``, each in an own transaction; call outside of one."""
    for counter, day in sorted(places):
        session.execute(
            "INSERT IGNORE INTO counter_keys (counter, day) VALUES (%s, %s)", (counter, day)
        )


def count_anew(session: Session, counters: Iterable[str] | None = None) -> None:
    """Set the stored numbers of keys to NULL. A day's keys are then counted before the day gets
    another key. Call this in the transaction that sets a cap where there was none, under the
    exclusive lock on the control row.

    Args:
        session: in that transaction.
        counters: names of counters; None for all.
    """
    if counters is None:
        session.execute("UPDATE counter_keys SET made = NULL")
        return
    for counter in counters:
        session.execute(f"UPDATE {_ROWS} SET made = NULL WHERE counter = %s", (counter,))


@dataclass(slots=True)
class _Day:
    """A day of a counter with a cap (``most``): the day's keys that the catalog does not remember,
    and the labels of the buckets in which they are.
    """

    most: int
    labels: list[int] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)


def _unknown(amounts: Amounts, catalog: Catalog) -> dict[Place, _Day]:
    """Return, by (counter, day), the keys that must be looked up: keys of counters with a cap that
    are not in ``catalog.made``, without those that the cap does not count (:func:`_free`)."""
    found: dict[Place, _Day] = {}
    for counter in amounts.counters:
        most = catalog.cap(counter)
        if most is None:
            continue
        free = _free(catalog, counter)
        for label, keys in amounts.by_bucket(counter).items():
            day = catalog.day(counter, label)
            known = catalog.made.keys(counter, day)
            unknown = [key for key in keys if key not in known and key not in free]
            if unknown:
                place = found.setdefault((counter, day), _Day(most))
                place.labels.append(label)
                place.keys.update(dict.fromkeys(unknown))
    return found


def _free(catalog: Catalog, counter: str) -> tuple[str, ...]:
    """Return the keys of a counter that its cap does not count: ``__overflow__`` and, if it has
    dimensions, the key ``""``, in which all events with dimensions are counted."""
    return (OVERFLOW, "") if counter in catalog.dimensioned else (OVERFLOW,)


def _states(session: Session, places: Iterable[Place]) -> dict[Place, int | None]:
    """Return the stored number of keys of each (counter, day) that has a row in ``counter_keys``;
    None if the day's keys are not counted yet. No lock is needed: the number never decreases, so a
    day that was full is still full."""
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
    session: Session, catalog: Catalog, place: Place, keys: list[str], most: int, before: int | None
) -> tuple[list[str], list[str]]:
    """Return the keys that may be made, and the keys that have no room. Keys that another
    transaction made meanwhile are in neither list.

    Stores the day's new number of keys. The day's row stays locked until this transaction ends.

    Args:
        session: as for :func:`cap`.
        catalog: the catalog in force.
        place: counter and day.
        keys: keys that did not exist when they were first looked up.
        most: the cap.
        before: the day's stored number of keys at that look-up; None if they were not counted yet.

    Raises:
        Conflict: the day's row was pruned meanwhile.
    """
    rows: list[tuple[int | None]] = session.query(
        f"SELECT made FROM {_ROWS} WHERE counter = %s AND day = %s FOR UPDATE", place
    )
    if not rows:
        raise Conflict("a row of counter_keys existed, and was deleted meanwhile")
    ((made,),) = rows
    if made is None or made != before:
        # Another transaction may have made keys since the first look-up.
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
    """Return those of ``keys`` that do not exist, and whether the day is rolled up to its month. A
    key exists if the day has it, or if the day is rolled up and its month has it. (If the day has
    all keys, the second value is always False.) The catalog then remembers the keys that exist."""
    counter, day = place
    encoded = {key: key.encode().hex() for key in keys}
    where, args = _of_day(catalog, place)
    # The primary key finds keys in one bucket, the other index finds them in several.
    index = "PRIMARY" if len(args) == 1 else "by_key"
    existing = _existing(session, index, counter, where, args, encoded.values())
    absent = [hexed for key, hexed in encoded.items() if key not in existing]
    begins = datetime_of(buckets.day_begins(catalog.scheme(counter).known_zone(), day))
    rolled_up = "SELECT 1 FROM counter WHERE name = %s AND rolled_month > %s"
    is_rolled_up = bool(absent and session.query(rolled_up, (counter, begins)))
    if is_rolled_up:
        month = labels_where([month_label(day)])
        existing |= _existing(session, "PRIMARY", counter, *month, absent)
    catalog.made.add(*place, existing)
    return [key for key in encoded if key not in existing], is_rolled_up


def _count_keys(session: Session, catalog: Catalog, place: Place) -> int:
    """Return the number of keys of a day that the cap counts."""
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
    """Return an SQL condition for the rows of a day's buckets of all widths, and its values."""
    counter, day = place
    scheme = catalog.scheme(counter)
    where, args = labels_where([day_label(day)])
    if scheme.widths[0] == "day":
        return where, args
    for begin, end in buckets.intervals(scheme.known_zone(), day, day):
        assert begin is not None
        assert end is not None
        where += f" OR bucket >= %s AND bucket < %s AND width < {_DAY:d}"
        args += [datetime_of(begin), datetime_of(end)]
    return f"({where})", args


def _existing(
    session: Session,
    index: str,
    counter: str,
    where: str,
    args: Sequence[object],
    encoded: Iterable[str],
) -> set[str]:
    """Return those of the given keys that have rows of a counter. ``encoded`` has the given keys in
    hex digits, ``where`` is an SQL condition on the rows, ``index`` names the index to use."""
    existing: set[str] = set()
    for part in parts(sorted(encoded), KEYS_PER_STATEMENT):
        literals = "', X'".join(part)
        found = session.query(
            f"SELECT DISTINCT counter_key FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s AND {where} AND counter_key IN (X'{literals}')",
            (counter, *args),
        )
        existing.update(bytes(key).decode() for (key,) in found)
    return existing


def overflown(
    session: Session, names: Iterable[str], since: datetime = EPOCH
) -> dict[tuple[str, int], int]:
    """Return the amounts of the key ``__overflow__`` by (counter, bucket's label), for counters and
    breakdowns. Sums of 0, and rows whose column ``bucket`` is before ``since``, are left out.
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
    """Return the amounts of the key ``__overflow__`` since the beginning of yesterday (in UTC), by
    (counter, bucket's label): of all counters, or of one counter and its breakdowns."""
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
    """Return the amount of ``__overflow__`` since yesterday (in UTC) by counter, largest first. The
    amounts of breakdowns are added to that of their counter.
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
    """Delete the rows of ``counter_keys`` for days rolled up to months: these get no new keys.

    Each row is deleted in its own transaction. A transaction with several rows could deadlock with
    workers, which lock rows in another order.

    Args:
        session: outside a transaction.
        stop: called before each row; if it returns True, no more rows are deleted.
        rest: called between two pages of rows, to let others work.

    Returns:
        The number of deleted rows; and True, or False if ``stop`` ended this early.

    Raises:
        StoreError: a statement failed.
    """
    deleted = 0
    delete = f"DELETE counter_keys FROM {_ROWS} WHERE counter = %s AND day = %s"
    while True:
        found = session.query(
            "SELECT counter, day FROM counter_keys JOIN counter ON name = counter"
            # The month may begin on a local day that is one later than in UTC.
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
