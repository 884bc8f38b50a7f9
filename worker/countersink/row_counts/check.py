"""Compares a tracked table with its counter and triggers for ``verify``: kinds of problems, their
sentences, rows per query, time limit.

Table and counter are compared cell by cell. A cell is a bucket's label and a key. Both sides are
read by plain SELECTs in the caller's snapshot, in which they agree if all is right: the triggers
count in the transactions that write. The differences are kept in memory, about 300 bytes for each
cell that the table has or had: 300 MB for a million different (day, key).

A table is read by ranges of its primary key, so that progress can be told and no answer takes long.
Where that cannot be it is one statement, for which :data:`COUNT_SECONDS` are allowed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal

from countersink.database.errors import Conflict, Refused
from countersink.database.session import SQL_MODE, Session, rerun
from countersink.database.sql import LABEL, label_time, quoted, width_number
from countersink.row_counts import triggers
from countersink.row_counts.definitions import TrackedTable, read
from countersink.row_counts.encoding import key_sql, label_of_number, number_sql
from countersink.row_counts.errors import HiddenTriggers, TableChanged
from countersink.row_counts.table import AppTable, read_table
from countersink.row_counts.triggers import SQL_MODE as TRIGGER_MODE
from countersink.runtime.limits import key_text

MOST: Final = 100
"""Cells of a table that are told one by one; the last one says how many more there are."""

Cell = tuple[int, bytes]
"""A bucket's label and a key."""
Progress = Callable[[int, int], object]
"""Is told how many rows of the table were counted, and about how many there are."""

TABLE_CHANGED: Final = 1412
"""Table definition has changed, please retry transaction: TRUNCATE or ALTER TABLE came between."""
COUNT_SECONDS: Final = 3600.0
"""Seconds that a server may be silent while rows are counted."""
ROWS_PER_QUERY: Final = 100_000

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


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Something that is wrong with a tracked table.

    Attributes:
        tracked: how the table is counted.
        problem: ``row_count``: counter and table differ; ``no_trigger``: a trigger is missing, or
            is not as it was made; ``hidden_trigger``: this user may not see whether they are right;
            ``stray_trigger``: a copy of the table in another database counts here, too;
            ``no_definer``: who they run as is gone, so that the application's writes fail;
            ``no_table``: there is no such table, or it cannot be tracked any
            more; ``no_column``: a column that it is counted by is missing, or has become another
            one; ``not_counted``: its rows were not counted to the end.
        day: the day of the rows; None where it is not about one.
        key: the key of the rows as text; None where it is not about one.
        in_counter: how many the counter says there are.
        in_table: how many there are.
        detail: a sentence for people.
    """

    tracked: TrackedTable
    problem: RowProblem
    detail: str
    day: date | None = None
    key: str | None = None
    in_counter: int = 0
    in_table: int = 0


def check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    """What is wrong with a tracked table; nothing, as long as nobody goes past its triggers.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        tracked: the table.

    Raises:
        Conflict: the table was altered again and again meanwhile.
        StoreError: as any query.
    """
    found = rerun(lambda: _check(session, tracked))
    return _not_in_work(session, tracked, found) if found else []


def _not_in_work(
    session: Session, tracked: TrackedTable, found: list[RowDifference]
) -> list[RowDifference]:
    """Problems of a tracked table, without those that an operation in progress explains."""
    try:
        there = read(session, tracked.counter, " FOR UPDATE NOWAIT")
        return found if there is not None and there.triggers == tracked.triggers else []
    except Conflict:
        # Whoever is at it makes its triggers and counts its rows, or deletes them.
        in_work = ("no_trigger", "not_counted", "row_count")
        return [one for one in found if one.problem not in in_work]


def _check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    ((database,),) = session.query("SELECT DATABASE()")
    strays = [
        RowDifference(
            tracked,
            "stray_trigger",
            f"the trigger {stray.name} on {stray.schema}.{stray.table}, a copy of the table, counts"
            " here, too",
        )
        for stray in triggers.strays(session, tracked)
    ]
    try:
        table = read_table(session, tracked.schema, tracked.table, database)
    except ValueError as error:
        detail = f"{error}; if it was renamed: untrack this, then track that"
        return [RowDifference(tracked, "no_table", detail), *strays]
    try:
        table.counted_by(tracked.by, tracked.day)
    except ValueError as error:
        detail = f"{error}; if a column is gone, writes that fire its triggers fail: untrack it"
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
        there = triggers.existing(session, tracked)
    except HiddenTriggers as error:
        yield RowDifference(tracked, "hidden_trigger", f"{error}")
        return
    should_be = triggers.wanted(tracked, table, database)
    for trigger in triggers.split(there, should_be)[1]:
        detail = (
            f"the trigger {trigger.name} is missing, or it, its table or a column that it goes by"
            " was changed (if that is gone, writes that fire it fail)"
        )
        yield RowDifference(tracked, "no_trigger", detail)
    for definer in sorted({trigger.definer for trigger in there}):
        if triggers.is_gone(session, definer):
            detail = (
                f"its triggers run as {definer}, who does not exist any more: writes that fire"
                " them fail (error 1449)"
            )
            yield RowDifference(tracked, "no_definer", detail)


def _cells(session: Session, tracked: TrackedTable, wrong: dict[Cell, int]) -> list[RowDifference]:
    """The cells that differ, in order; of very many the first ones."""
    ordered = sorted(wrong.items())
    more = len(ordered) - MOST
    found = list[RowDifference]()
    for (label, key), difference in ordered[:MOST]:
        ((counted,),) = session.query(
            "SELECT COALESCE(SUM(amount), 0) FROM counter_slot FORCE INDEX (PRIMARY)"
            " WHERE counter = %s AND bucket = %s AND counter_key = %s AND width = %s",
            (tracked.counter, label_time(label), key, width_number(label)),
        )
        rows = int(counted) + difference
        detail = f"{int(counted):,} counted, {rows:,} rows"
        if len(found) == MOST - 1 and more > 0:
            detail += f"; and {more:,} more days and keys like this"
        day = label_time(label).date()
        found.append(
            RowDifference(tracked, "row_count", detail, day, key_text(key), int(counted), rows)
        )
    return found


def differences(
    session: Session, tracked: TrackedTable, table: AppTable, progress: Progress = triggers.quiet
) -> tuple[dict[Cell, int], int]:
    """Rows of the table minus what is counted, for each cell where they differ; also all rows.

    Args:
        session: in a transaction at REPEATABLE READ; the snapshot begins here, or did before.
        tracked: how the table is counted.
        table: the table.
        progress: told after each part.

    Raises:
        TableChanged: it was truncated or altered meanwhile.
        StoreError: as any query.
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
        # Under the ``sql_mode`` of triggers: in another one MySQL finds no text for broken UCS-2.
        with session.variable("sql_mode", TRIGGER_MODE, SQL_MODE):
            for part in _in_table(session, tracked, table):
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


def _in_table(
    session: Session, tracked: TrackedTable, table: AppTable
) -> Iterator[list[tuple[Any, ...]]]:
    """(number of the day, key, rows) of parts of the table, by ranges of its primary key."""
    by, day = table.counted_by(tracked.by, tracked.day)
    source = _plain(f"{quoted(table.schema)}.{quoted(table.name)} AS t")
    values = _plain(f"{number_sql(day, 't.')}, {key_sql(by, 't.')}")
    select = f"SELECT {values}, COUNT(*) FROM {source}"
    if not table.primary_key or not table.primary_key[0].finds_its_place:
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
    """SQL with names in it, for a statement with arguments: no ``%`` of a name marks one."""
    return sql.replace("%", "%%")
