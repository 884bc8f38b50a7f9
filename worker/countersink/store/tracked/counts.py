"""Reading the row count of a tracked table."""

from collections.abc import Mapping, Sequence
from datetime import date

from countersink.store.connection import Session
from countersink.store.errors import Refused, UnknownCounter
from countersink.store.ranges import check_days
from countersink.store.tracked import columns
from countersink.store.tracked.columns import Column
from countersink.store.tracked.conditions import Condition, Exactly
from countersink.store.tracked.days import LATE_DAY, NO_DAY
from countersink.store.tracked.definitions import TrackedTable, read_all
from countersink.store.tracked.names import find, in_words
from countersink.store.tracked.selection import Days, count
from countersink.store.tracked.values import condition


def row_count(
    session: Session,
    database: str,
    table: str,
    where: Mapping[str, object],
    start: date | None = None,
    end: date | None = None,
) -> int:
    """How many rows a tracked table has, by its counter; as ``COUNT(*)`` in the same snapshot.

    Args:
        session: in a snapshot.
        database: where a table is that is named without a database.
        table: as it was given when it was tracked, or its counter.
        where: values of columns that it is tracked by, None for NULL; compared as the column's own
            collation does. Types as for :func:`countersink.store.tracked.values.condition`.
        start, end: days of its day column, both inclusive. Rows without a day, or with one before
            1970, are on 1969-12-31.

    Raises:
        UnknownCounter: no such table or counter is tracked.
        ValueError: it is not counted by such a column or by day; the name means two tables; a range
            that ends before it begins, or that tells days apart that are counted as one.
        TypeError: a value that the column cannot be compared with; a day that is no ``date``.
        Refused: its rows are not counted yet, or its columns cannot be seen by this user.
        StoreError: as any query.
    """
    check_days(start, end)
    _check_told_apart(start, end)
    asked = {name.lower(): value for name, value in where.items()}
    if len(asked) != len(where):
        raise ValueError("a column is given twice")
    found = find(read_all(session), table, database)
    if not found:
        raise UnknownCounter(f"no table or counter {table!r} is tracked: countersink track {table}")
    tracked = _choose(found, table, asked, start or end)
    conditions = _conditions(session, tracked, asked)
    return count(session, tracked.counter, conditions, Days(start, end))


def _check_told_apart(start: date | None, end: date | None) -> None:
    if start is not None and not NO_DAY <= start <= LATE_DAY:
        raise ValueError(
            f"no range can start on {start}: days before 1970 are counted as {NO_DAY}, together"
            f" with rows that have none, and those from {LATE_DAY} on as that day"
        )
    if end is not None and not (NO_DAY <= end < LATE_DAY or end == date.max):
        raise ValueError(
            f"no range can end on {end}: days before 1970 are counted as {NO_DAY}, together with"
            f" rows that have none, and those from {LATE_DAY} on as that day"
        )


def _choose(
    found: Sequence[TrackedTable], table: str, asked: Mapping[str, object], day: date | None
) -> TrackedTable:
    """The one of the fewest rows that knows what is asked for."""
    able = [
        each
        for each in found
        if asked.keys() <= {column.lower() for column in each.by}
        and (day is None or each.day is not None)
    ]
    if not able:
        what = ["day"] * (day is not None) + sorted(asked)
        ways = "; ".join(f"{each.counter} counts{in_words(each) or ' all rows'}" for each in found)
        raise ValueError(f"{table} is not counted by {' and '.join(what)}: {ways}")
    counted = [each for each in able if each.counted is not None]
    if not counted:
        raise Refused(
            f"the rows of {able[0].name} are not counted just now as {able[0].counter}: it is being"
            " tracked, repaired or untracked, or that was interrupted. Wait until it is done; if"
            " nobody is at it, countersink verify with --repair counts them, untrack tidies up"
        )
    return min(counted, key=lambda each: (len(each.by), each.day is not None, each.counter))


def _conditions(
    session: Session, tracked: TrackedTable, asked: Mapping[str, object]
) -> list[Condition]:
    """What is asked of each column of the keys."""
    if all(value is None for value in asked.values()):
        return [Exactly(None) if name.lower() in asked else None for name in tracked.by]
    known = columns.read(session, tracked.schema, tracked.table)
    conditions: list[Condition] = []
    for name in tracked.by:
        if name.lower() not in asked:
            conditions.append(None)
        elif name in known:
            conditions.append(condition(session, known[name], asked[name.lower()]))
        else:
            raise Refused(_out_of_sight(name, tracked, known))
    return conditions


def _out_of_sight(name: str, tracked: TrackedTable, known: Mapping[str, Column]) -> str:
    if not known:
        return (
            f"{tracked.name} is gone, or this user may not see it: grant it SELECT on that table;"
            " countersink verify says what is the matter"
        )
    return (
        f"column {name} of {tracked.name} is gone, or this user may see others only: if it was"
        f" dropped or renamed, writes to the table fail until countersink untrack --counter"
        f" {tracked.counter}; else grant this user SELECT on that table"
    )
