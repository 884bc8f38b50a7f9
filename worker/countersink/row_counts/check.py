"""The comparison of a tracked table with its counter and its triggers, for ``verify`` and for
recounts.

The table and its counter are compared cell by cell, that is by day and key. Both are read in one
snapshot, without locks. In this snapshot they must be equal, because a trigger counts a row in the
same transaction that writes the row. The differences are kept in memory. They take about 300 bytes
for each cell that the table has or its counter ever had: 300 MB for a million different pairs of
day and key.

A table is read by ranges of its primary key, so that progress can be reported and no query takes
long. If that is not possible, one query reads the whole table, and may take :data:`COUNT_SECONDS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal

from countersink.counting.errors import HiddenTriggers, TableChanged
from countersink.database.connection import SQL_MODE
from countersink.database.errors import Conflict, Refused
from countersink.database.session import Session, rerun
from countersink.database.sql import LABEL, label_time, quoted, width_number
from countersink.row_counts import triggers
from countersink.row_counts.definitions import TrackedTable, read
from countersink.row_counts.keys import key_sql, label_of_number, number_sql
from countersink.row_counts.table import AppTable, read_table
from countersink.row_counts.triggers import SQL_MODE as TRIGGER_MODE
from countersink.runtime.limits import key_text
from countersink.runtime.texts import plural

MAX_CELLS: Final = 100
"""Maximum of cells of a table that are reported. The last one says how many more there are."""

Cell = tuple[int, bytes]
"""The label of a bucket, and a key."""
Progress = Callable[[int, int], object]
"""A function that is called with the number of rows counted so far, and an estimate of all rows."""

TABLE_CHANGED: Final = 1412
"""MySQL error after TRUNCATE or ALTER TABLE: Table definition has changed, please retry
transaction."""
COUNT_SECONDS: Final = 3600.0
"""Seconds for which a server may be silent while it counts rows."""
ROWS_PER_QUERY: Final = 100_000
"""Number of a table's rows that one query counts."""

RowProblem = Literal[
    "row_count",
    "no_trigger",
    "hidden_trigger",
    "stray_trigger",
    "no_definer",
    "no_table",
    "no_column",
    "not_counted",
]
"""Kinds of problems of a tracked table.

* ``row_count``: the counter and the table differ.
* ``no_trigger``: a trigger is missing, or was changed.
* ``hidden_trigger``: this user may not see the triggers.
* ``stray_trigger``: a copy of the table in another database counts in the same counter.
* ``no_definer``: the user with whose rights the triggers run does not exist, so the application's
  writes fail.
* ``no_table``: the table does not exist, or cannot be tracked any more.
* ``no_column``: a column of the key, or the day column, is missing or was changed.
* ``not_counted``: the counting of the rows did not end."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A problem of a tracked table.

    Attributes:
        tracked: the tracked table.
        problem: the kind of problem; see :data:`RowProblem`.
        detail: a sentence for people.
        day: the day of the rows; None if the problem is not about a day.
        key: the key of the rows as text; None if the problem is not about a key.
        in_counter: number of rows of this day and key according to the counter; 0 if the problem is
            not about numbers of rows.
        in_table: number of these rows in the table; 0 if the problem is not about numbers of rows.
    """

    tracked: TrackedTable
    problem: RowProblem
    detail: str
    day: date | None = None
    key: str | None = None
    in_counter: int = 0
    in_table: int = 0


def check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    """Return the problems of a tracked table; an empty list if there are none.

    Rows and counter agree as long as every change of rows fires the table's triggers. They are not
    compared if the table or a column is missing or cannot be tracked any more, or if the counting
    of the rows has not ended. Then a problem says so.

    Args:
        session: a session at REPEATABLE READ, outside a transaction.
        tracked: the tracked table.

    Raises:
        Conflict: each attempt conflicted, for example because the table was altered meanwhile.
        StoreError: a query failed.
    """
    found = rerun(lambda: _check(session, tracked))
    return _unexplained(session, tracked, found) if found else []


def _unexplained(
    session: Session, tracked: TrackedTable, found: list[RowDifference]
) -> list[RowDifference]:
    """Return the problems ``found`` of a tracked table, without those that may only exist because
    another process is tracking, repairing or untracking the table right now. Return none of them
    if the table was untracked meanwhile.
    """
    try:
        current = read(session, tracked.counter, " FOR UPDATE NOWAIT")
        return found if current is not None and current.triggers == tracked.triggers else []
    except Conflict:
        # Another process is creating its triggers and counting its rows, or deleting them.
        explained = ("no_trigger", "not_counted", "row_count")
        return [one for one in found if one.problem not in explained]


def _check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    ((database,),) = session.query("SELECT DATABASE()")
    strays = [
        RowDifference(
            tracked,
            "stray_trigger",
            f"the trigger {stray.name} on {stray.schema}.{stray.table}, a copy of the table, counts"
            " here, too",
        )
        for stray in triggers.stray_triggers(session, tracked)
    ]
    try:
        table = read_table(session, tracked.schema, tracked.table, database)
    except ValueError as error:
        detail = f"{error}; if it was renamed: untrack the old name, then track the new one"
        return [RowDifference(tracked, "no_table", detail), *strays]
    try:
        table.counted_by(tracked.by, tracked.day)
    except ValueError as error:
        detail = f"{error}; if a column is missing, writes that fire its triggers fail: untrack it"
        return [RowDifference(tracked, "no_column", detail), *strays]
    found = [*_triggers(session, tracked, table, database), *strays]
    if tracked.counted is None:
        detail = "its rows were not counted to the end: run track again, or verify with --repair"
        return [*found, RowDifference(tracked, "not_counted", detail)]
    with session.transaction(snapshot=True):
        wrong, _ = differences(session, tracked, table)
        return found + _cells(session, tracked, wrong)


def _triggers(
    session: Session, tracked: TrackedTable, table: AppTable, database: str
) -> Iterator[RowDifference]:
    try:
        installed = triggers.installed_triggers(session, tracked)
    except HiddenTriggers as error:
        yield RowDifference(tracked, "hidden_trigger", f"{error}")
        return
    expected = triggers.expected_triggers(tracked, table, database)
    for trigger in triggers.needed_changes(installed, expected)[1]:
        detail = (
            f"the trigger {trigger.name} is missing, or it, its table or one of its columns was"
            " changed (if a column was dropped, writes that fire it fail)"
        )
        yield RowDifference(tracked, "no_trigger", detail)
    for definer in sorted({trigger.definer for trigger in installed}):
        if triggers.is_missing_user(session, definer):
            detail = (
                f"its triggers run as {definer}, who does not exist any more: writes that fire"
                " them fail (error 1449)"
            )
            yield RowDifference(tracked, "no_definer", detail)


def _cells(session: Session, tracked: TrackedTable, wrong: dict[Cell, int]) -> list[RowDifference]:
    """Return a problem for each cell that differs, in the order of days and keys, up to
    :data:`MAX_CELLS`. If more cells differ, the last problem says how many more.

    Args:
        session: a session in the snapshot of the comparison.
        tracked: the tracked table.
        wrong: cell → rows in the table minus rows according to the counter.
    """
    ordered = sorted(wrong.items())
    more = len(ordered) - MAX_CELLS
    found = list[RowDifference]()
    for (label, key), difference in ordered[:MAX_CELLS]:
        ((counted,),) = session.query(
            "SELECT COALESCE(SUM(amount), 0) FROM counter_slot FORCE INDEX (PRIMARY)"
            " WHERE counter = %s AND bucket = %s AND counter_key = %s AND width = %s",
            (tracked.counter, label_time(label), key, width_number(label)),
        )
        rows = int(counted) + difference
        detail = f"{int(counted):,} counted, {plural(rows, 'row')}"
        if len(found) == MAX_CELLS - 1 and more > 0:
            detail += f"; {more:,} further pairs of day and key differ"
        day = label_time(label).date()
        found.append(
            RowDifference(tracked, "row_count", detail, day, key_text(key), int(counted), rows)
        )
    return found


def differences(
    session: Session, tracked: TrackedTable, table: AppTable, progress: Progress = triggers.ignore
) -> tuple[dict[Cell, int], int]:
    """Compare a tracked table with its counter. Return a map of the cells that differ, and the
    number of all rows of the table. The map's values are the rows of a cell in the table minus its
    rows according to the counter.

    Args:
        session: a session in a transaction at REPEATABLE READ. If the transaction has no snapshot
            yet, this function takes it.
        tracked: the tracked table.
        table: the table's columns.
        progress: called with the number of rows counted so far, and an estimate of all rows: at the
            beginning, after each range of rows, and at the end.

    Raises:
        TableChanged: the table was truncated or altered meanwhile.
        StoreError: a query failed.
    """
    counted = session.stream(
        f"SELECT {LABEL}, counter_key, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s GROUP BY bucket, counter_key, width",
        (tracked.counter,),
    )
    found = {(label, bytes(key)): -int(amount) for label, key, amount in counted if amount}
    done = 0
    progress(0, table.rows)
    try:
        # Under the triggers' ``sql_mode``: in another mode MySQL cannot convert broken UCS-2.
        with session.variable("sql_mode", TRIGGER_MODE, SQL_MODE):
            for part in _table_cells(session, tracked, table):
                for number, key, rows in part:
                    cell = (label_of_number(int(number)), bytes(key))
                    found[cell] = found.get(cell, 0) + int(rows)
                    if not found[cell]:
                        del found[cell]
                    done += int(rows)
                progress(done, max(done, table.rows))
    except Refused as error:
        if error.code != TABLE_CHANGED:
            raise
        raise TableChanged(
            f"{tracked.name} was truncated or altered while its rows were counted: run this again",
            code=error.code,
        ) from error
    progress(done, done)
    return found, done


def _table_cells(
    session: Session, tracked: TrackedTable, table: AppTable
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield, for each range of the table's primary key, a list of triples: number of a day, key,
    and number of the range's rows with this day and key. A day and key may be in several ranges.
    If the table cannot be read by ranges, yield one list, for the whole table.
    """
    by, day = table.counted_by(tracked.by, tracked.day)
    source = _plain(f"{quoted(table.schema)}.{quoted(table.name)} AS t")
    values = _plain(f"{number_sql(day, 't.')}, {key_sql(by, 't.')}")
    select = f"SELECT {values}, COUNT(*) FROM {source}"
    if not table.primary_key or not table.primary_key[0].is_comparable:
        yield session.query(f"{select} WHERE %s GROUP BY 1, 2", (1,))
        return
    column = _plain(f"t.{quoted(table.primary_key[0].name)}")
    ordered = "FORCE INDEX (PRIMARY) WHERE"
    where, args = "%s", tuple[object, ...]((1,))
    while ends := session.query(
        f"SELECT {column} FROM {source} {ordered} {where}"
        f" ORDER BY {column} LIMIT 1 OFFSET {ROWS_PER_QUERY - 1:d}",
        args,
    ):
        part = f"{select} {ordered} {where} AND {column} <= %s GROUP BY 1, 2"
        yield session.query(part, (*args, *ends[0]))
        where, args = f"{column} > %s", ends[0]
    yield session.query(f"{select} {ordered} {where} GROUP BY 1, 2", args)


def _plain(sql: str) -> str:
    """Return ``sql`` with each ``%`` doubled. In a statement with bound arguments, the driver would
    take a ``%`` in a name for a placeholder.
    """
    return sql.replace("%", "%%")
