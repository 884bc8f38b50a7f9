"""All counters. Reads the names of the counters that were created or counted, their totals of all
time, and whether a rise of each counter is good. Checks whether a counter is in use. Inserts rows
of counters that have no row in ``counter``, and deletes rows that are not used. Tells names of
breakdowns (``page_views#1``) from other names.

Names are read in parts. Totals are read from the ledger, those of tracked tables from their rows.
One statement reads hundreds of counters.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, get_args

from countersink.counting.apply.guards import CounterDefaults, bump, exclusive, read_control
from countersink.counting.errors import TrackedCounter, UnknownCounter
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sql import LABEL, labels_where, marks, parts
from countersink.runtime.limits import is_name

NAMES_PER_QUERY: Final = 10_000
"""Maximum number of names per query."""
_NAMED: Final = (("counter_ledger", "counter", ""), ("counter", "name", " AND created IS NOT NULL"))
"""Each table that has names of counters, its column with the name, which is indexed, and a further
condition: a deleted counter keeps a row with its time zone in ``counter``."""
_COUNTERS_PER_QUERY: Final = 500
_STORED: Final = re.compile(r"([A-Za-z0-9_.:\-]{1,61})#([1-9][0-9]?)", re.ASCII)
"""The form of a breakdown's name: the name of its counter, and a number."""

ZONE_STAYS: Final = "UTC_TIMESTAMP(3) - INTERVAL 10 MINUTE"
"""SQL: a time zone that an application has fixed after this time cannot be changed. Applications
fix it again every 5 minutes."""
_UNUSED: Final = (
    "created IS NULL AND breakdown_of IS NULL AND last_breakdown IS NULL"
    f" AND COALESCE(zone_fixed < {ZONE_STAYS}, TRUE)"
) + "".join(
    f" AND (SELECT 1 FROM {rows} counter = counter.name LIMIT 1) IS NULL"
    for rows in (
        *("counter_ledger WHERE", "counter_slot WHERE", "tracked_table WHERE"),
        "backfill_run WHERE state = 'running' AND",
    )
)
"""SQL condition for the row of a counter that was neither created nor counted, and that nobody may
be counting by the settings in the row. (For NOT EXISTS, MariaDB may read the whole tables.)"""

Better = Literal["up", "down", "none"]
"""Whether a rise of a counter is good (``up``), bad (``down``) or neither (``none``)."""
BETTER: Final[tuple[Better, ...]] = get_args(Better)


def counter_names(session: Session) -> list[str]:
    """Return the sorted names of all counters that were created or counted, without breakdowns."""
    return sorted(name for names in names_in_parts(session, "") for name in names)


def read_better(session: Session, names: Sequence[str]) -> dict[str, Better]:
    """Return the setting ``better`` of some counters, by name: whether a rise is good (``up``), bad
    (``down``) or neither (``none``); the dashboard colours changes by it. Counters without a row in
    ``counter`` are left out; they have the default, ``up``.
    """
    if not names:
        return {}
    query = f"SELECT name, better FROM counter WHERE name IN ({marks(names)})"
    return dict(session.query(query, names))


def check_better(better: str) -> Better:
    """Return ``better`` if it is valid.

    Raises:
        ValueError: it is not ``up``, ``down`` or ``none``.
    """
    if better not in BETTER:
        raise ValueError(f"better {better!r}: use one of {', '.join(BETTER)}")
    return better


def names_in_parts(session: Session, after: str, *, reverse: bool = False) -> Iterator[list[str]]:
    """Yield the sorted names of all counters that were created or counted, in lists of up to
    :data:`NAMES_PER_QUERY` names. Names of breakdowns are left out, so a list may be shorter or
    empty. Each list is read by one query, which uses indexes.

    Args:
        session: in a snapshot.
        after: yield only names greater than this one, or less than this one if ``reverse`` is set;
            an empty text yields all names.
        reverse: whether to yield the names in descending order.
    """
    order = "DESC" if reverse else "ASC"
    while True:
        beyond = f"{{}} {'<' if reverse else '>'} %s" if after else "%s = ''"
        each = [
            f"(SELECT {name} AS counter FROM {table} WHERE {beyond.format(name)}"
            f"{more} GROUP BY {name} ORDER BY {name} {order}"
            f" LIMIT {NAMES_PER_QUERY})"
            for table, name, more in _NAMED
        ]
        found = session.query(
            f"SELECT counter FROM ({' UNION '.join(each)}) AS named"
            f" ORDER BY counter {order} LIMIT {NAMES_PER_QUERY}",
            [after] * len(each),
        )
        yield [name for (name,) in found if not is_breakdown(name)]
        if len(found) < NAMES_PER_QUERY:
            return
        ((after,),) = found[-1:]


def known_names(session: Session, wanted: Iterable[str]) -> set[str]:
    """Return the names in ``wanted`` whose counters were created or counted. The caller has checked
    that the names are valid (SQL takes ``'c '`` for ``'c'``). Breakdowns' names are found, too.
    """
    known: set[str] = set()
    for part in parts(sorted(wanted), _COUNTERS_PER_QUERY):
        each = [
            f"SELECT {name} FROM {table} WHERE {name} IN ({marks(part)}){more} GROUP BY {name}"
            for table, name, more in _NAMED
        ]
        found = session.query(" UNION ".join(each), [*part] * len(each))
        known.update(name for (name,) in found)
    return known


def insert_rows(session: Session, names: Iterable[str], defaults: CounterDefaults) -> None:
    """Insert the rows of counters into ``counter``, with the default settings; ``created`` is NULL,
    so a row alone does not make its counter a created one. Existing rows stay as they are, and are
    locked exclusively until the transaction ends.

    Args:
        session: in a transaction that has read the control row under a lock. Otherwise, workers
            could count a new counter by other defaults before its row is inserted.
        names: the names of the counters.
        defaults: the default settings, from the control row.
    """
    into = "counter (name, time_zone, resolution, keep_steps)"
    rows = [(name, *defaults) for name in sorted(names)]
    # ON DUPLICATE KEY takes the exclusive lock of an existing row; INSERT IGNORE a shared one.
    keep = " ON DUPLICATE KEY UPDATE name = counter.name"
    session.insert_rows(into, rows, _COUNTERS_PER_QUERY, keep)


def insert_all_rows(session: Session) -> None:
    """Insert a row with the default settings for each counter that was counted and has no row in
    ``counter``, in transactions of up to 500 rows. So these counters keep the settings when the
    defaults change, and retention finds their steps. The session is outside a transaction.
    """
    stored = {name for (name,) in session.query("SELECT name FROM counter")}
    for names in parts(sorted(set(counter_names(session)) - stored), _COUNTERS_PER_QUERY):
        with session.transaction():
            insert_rows(session, names, read_control(session).defaults)


def names_without_row(session: Session) -> list[str]:
    """Return the names of counters that have rows in the ledger, but no row in ``counter``."""
    row = "SELECT 1 FROM counter WHERE name = counter_ledger.counter"
    found = session.query(
        f"SELECT counter FROM counter_ledger WHERE NOT EXISTS ({row}) GROUP BY counter"
    )
    return [name for (name,) in found]


def delete_unused_rows(session: Session) -> None:
    """Delete rows of ``counter`` whose counters were neither created nor counted, and which no
    backfill or application may be about to count: no backfill of the counter is running, and in the
    last ten minutes no application was about to count it, and it was not deleted. Such a row is
    left by an application that rolls back, by a backfill that counts nothing, or by a deletion.

    Rows of breakdowns and of tracked tables' counters stay. So do rows of counters whose dimensions
    or breakdowns were ever set. Up to 500 rows are deleted together; if other transactions keep
    locks that this needs, all of these rows stay.

    The session is at REPEATABLE READ, outside a transaction.
    """
    # This also sees what open transactions have counted, so the deletion need not wait for them.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    names = [name for (name,) in session.query(f"SELECT name FROM counter WHERE {_UNUSED}")]

    def delete(some: Sequence[str], _: object) -> None:
        where = f"name IN ({marks(some)}) AND {_UNUSED}"
        if session.execute(f"DELETE FROM counter WHERE {where}", some):
            bump(session)  # workers may have read the rows since the last change of the catalog

    for some in parts(names, _COUNTERS_PER_QUERY):
        with suppress(Conflict):
            # Few attempts, as workers wait for each, for a second at most.
            exclusive(session, partial(delete, some), attempts=3)


def totals_of(session: Session, names: Sequence[str]) -> dict[str, int]:
    """Return the total of all time of each counter, by name, in the order of ``names``; 0 for
    unknown counters. It is read from the ledger, which has one row where ``counter_slot`` has one
    for each key.

    Counters of tracked tables are not in the ledger, because triggers post nothing there. Their
    totals are added up from their rows in ``counter_slot``.
    """
    tracked = {name for (name,) in session.query("SELECT counter FROM tracked_table")}
    found = dict.fromkeys(names, 0)
    for table, wanted in (
        ("counter_ledger", [name for name in names if name not in tracked]),
        ("counter_slot", [name for name in names if name in tracked]),
    ):
        for some in parts(wanted, _COUNTERS_PER_QUERY):
            for name, amount in session.query(
                f"SELECT counter, SUM(amount) FROM {table} FORCE INDEX (PRIMARY)"
                f" WHERE counter IN ({marks(some)}) GROUP BY counter",
                some,
            ):
                found[name] = int(amount)
    return found


def labels_with_rows(session: Session, counter: str, labels: Iterable[int]) -> set[int]:
    """Return the labels of those buckets that have rows in ``counter_slot``, of the buckets with
    the given labels. All rows of these are read: call it for buckets that may have none.
    """
    query = (
        f"SELECT {LABEL} FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s AND {} GROUP BY bucket, width"
    )
    conditions = map(labels_where, parts([*labels], _COUNTERS_PER_QUERY))
    found = (session.query(query.format(where), (counter, *args)) for where, args in conditions)
    return {int(label) for rows in found for (label,) in rows}


def refuse_tracked(session: Session, counter: str) -> None:
    """Raise an error if a counter belongs to a tracked table.

    Raises:
        TrackedCounter: the triggers of a table count it.
    """
    if session.query("SELECT 1 FROM tracked_table WHERE counter = %s", (counter,)):
        raise TrackedCounter(
            f"{counter} is the row count of a tracked table: only its triggers count it, and it has"
            f" no settings of its own (`countersink untrack {counter}` ends that)"
        )


def is_breakdown(name: str) -> bool:
    """Return whether ``name`` has the form of a breakdown's name."""
    return _STORED.fullmatch(name) is not None


def counter_of(name: str) -> str:
    """Return the name of the counter to which a breakdown belongs; any other name is returned as it
    is.
    """
    return name.partition("#")[0]


def names_of(session: Session, counter: str, condition: str = "created IS NOT NULL") -> list[str]:
    """Return the sorted names of a counter's breakdowns.

    Args:
        session: in a transaction or not.
        counter: the counter's name.
        condition: SQL condition on the rows of the breakdowns in the table ``counter``; only the
            names of rows that fulfil it are returned. The default includes removed breakdowns whose
            counts are not deleted yet. It leaves out breakdowns whose counts are deleted, and of
            which only the row in ``counter`` is left.
    """
    found = session.query(
        f"SELECT name FROM counter WHERE breakdown_of = %s AND {condition} ORDER BY name",
        (counter,),
    )
    return [name for (name,) in found]


def is_posted(session: Session, name: str) -> bool:
    """Return whether the ledger has rows of a counter, including rows committed after the session's
    snapshot was taken. If an open transaction has locked the first of these rows exclusively, or is
    inserting it, wait for the end of that transaction.
    """
    posted = "SELECT 1 FROM counter_ledger WHERE counter = %s LIMIT 1 LOCK IN SHARE MODE"
    return bool(session.query(posted, (name,)))


def is_used(session: Session, name: str, more: Sequence[str] = ()) -> bool:
    """Return whether the ledger or ``counter_slot`` has rows of a counter, even rows with the
    amount 0.

    Args:
        session: in a transaction or not.
        name: the counter's name.
        more: names of further tables with a column ``counter``. The result is also True if one of
            them has a row of the counter.
    """
    tables = ("counter_ledger", "counter_slot", *more)
    seen = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE counter = %s)" for table in tables)
    ((found,),) = session.query(f"SELECT {seen}", (name,) * len(tables))
    return bool(found)


def require(session: Session, name: str, more: Sequence[str] = ()) -> None:
    """Raise an error if a counter is unknown: it was not created, and no table below has its rows.

    Args:
        session: in a transaction or not.
        name: the counter's name. The name of a breakdown is invalid here.
        more: names of tables with a column ``counter``, in which rows are looked for in addition to
            the ledger and ``counter_slot``.

    Raises:
        UnknownCounter: the counter is unknown, or its name is invalid.
    """
    if is_name(name) and (
        session.query("SELECT 1 FROM counter WHERE name = %s AND created IS NOT NULL", (name,))
        or is_used(session, name, more)
    ):
        return
    raise UnknownCounter(f"there is no counter {name!r}: it was neither created nor ever counted")
