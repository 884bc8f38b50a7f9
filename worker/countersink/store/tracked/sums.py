"""What a tracked table's counter holds, and what the table itself holds, cell by cell.

A cell is a bucket's label and a key. Both sides are read by plain SELECTs in the caller's snapshot,
in which they agree if all is right: the triggers count in the transactions that write. The
differences are kept in memory, about 300 bytes for each cell that the table has or had: 300 MB for
a million different (day, key).

A table is read by ranges of its primary key, so that progress can be told and no answer takes long.
Where that cannot be it is one statement, for which :data:`COUNT_SECONDS` are allowed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from countersink.store.buckets import label_time
from countersink.store.connection import SQL_MODE, Session
from countersink.store.errors import Unavailable
from countersink.store.names import quoted
from countersink.store.tracked.columns import (
    BINARY_TYPES,
    DAY_TYPES,
    INTEGER_TYPES,
    OWN_TEXT,
    TEXT_TYPES,
    Column,
)
from countersink.store.tracked.days import label_of_number, number_sql
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.encoding import key_sql
from countersink.store.tracked.tables import Table
from countersink.store.tracked.triggers import SQL_MODE as TRIGGER_MODE

Cell = tuple[int, bytes]
"""A bucket's label and a key."""
Progress = Callable[[int, int], object]
"""Is told how many rows of the table were counted, and about how many there are."""

COUNT_SECONDS: Final = 3600.0
"""Seconds that a server may be silent while rows are counted."""
CELLS_PER_QUERY: Final = 10_000
ROWS_PER_QUERY: Final = 100_000
_LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket)"
_ORDERED_TYPES: Final = (INTEGER_TYPES - {"bit"}) | BINARY_TYPES | DAY_TYPES | OWN_TEXT
_ORDERED_CHARSETS: Final = frozenset({"ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})


def no_progress(done: int, about: int) -> None:
    """Tell nobody."""


def differences(
    session: Session, tracked: TrackedTable, table: Table, progress: Progress = no_progress
) -> tuple[dict[Cell, int], int]:
    """Rows of the table minus what is counted, for each cell where they differ; also all rows.

    Args:
        session: in a transaction at REPEATABLE READ; the snapshot begins here, or did before.
        tracked: how the table is counted.
        table: the table.
        progress: told after each part.
    """
    found = {cell: -amount for cell, amount in in_counter(session, tracked.counter) if amount}
    done = 0
    progress(0, table.rows)
    with _long_waits_told(tracked.name), _as_triggers_do(session):
        for part in _in_table(session, tracked, table):
            for number, key, rows in part:
                cell = (label_of_number(int(number)), bytes(key))
                difference = found.get(cell, 0) + int(rows)
                if difference:
                    found[cell] = difference
                else:
                    found.pop(cell, None)
                done += int(rows)
            progress(done, max(done, table.rows))
    progress(done, done)
    return found, done


@contextmanager
def _long_waits_told(table: str) -> Iterator[None]:
    try:
        yield
    except Unavailable as error:
        raise Unavailable(
            f"the connection broke while the rows of {table} were counted, or one answer took"
            f" longer than {COUNT_SECONDS / 60:.0f} minutes ({error}): nothing was changed; run"
            " this again",
            code=error.code,
        ) from error


@contextmanager
def _as_triggers_do(session: Session) -> Iterator[None]:
    """Under the ``sql_mode`` of triggers: in another one MySQL finds no text for broken UCS-2."""
    session.execute("SET SESSION sql_mode = %s", (TRIGGER_MODE,))
    try:
        yield
    finally:
        if not session.closed:
            session.execute("SET SESSION sql_mode = %s", (SQL_MODE,))


def in_counter(session: Session, counter: str) -> Iterator[tuple[Cell, int]]:
    """What the counter holds, in the order of the primary key, some cells at a time."""
    select = (
        f"SELECT {_LABEL}, counter_key, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s"
    )
    end = f" GROUP BY bucket, counter_key ORDER BY bucket, counter_key LIMIT {CELLS_PER_QUERY:d}"
    where, args = "", tuple[object, ...]()
    inside = False
    while True:
        rows = session.query(f"{select}{where}{end}", (counter, *args))
        for label, key, amount in rows:
            yield (int(label), bytes(key)), int(amount)
        if len(rows) == CELLS_PER_QUERY:
            # First the rest of the bucket, then those after it: each is one range of the index.
            last_label, last_key, _ = rows[-1]
            bucket = label_time(int(last_label))
            where, args = " AND bucket = %s AND counter_key > %s", (bucket, last_key)
            inside = True
        elif inside:
            where, args = " AND bucket > %s", args[:1]
            inside = False
        else:
            return


def _in_table(
    session: Session, tracked: TrackedTable, table: Table
) -> Iterator[list[tuple[int, bytes, int]]]:
    """(number of the day, key, rows) of parts of the table, by ranges of its primary key."""
    by, day = table.counted_by(tracked)
    source = _plain(f"{quoted(table.schema)}.{quoted(table.name)} AS t")
    values = _plain(f"{number_sql(day, 't.')}, {key_sql(by, 't.')}")
    select = f"SELECT {values}, COUNT(*) FROM {source}"
    where, args = "%s", tuple[object, ...]((1,))
    if table.first_key is None or not _finds_its_place(table.first_key):
        yield _tuples(session, f"{select} WHERE {where} GROUP BY 1, 2", args)
        return
    column = _plain(f"t.{quoted(table.first_key.name)}")
    while True:
        ends = session.query(
            f"SELECT {column} FROM {source} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {column} LIMIT 1 OFFSET {ROWS_PER_QUERY - 1:d}",
            args,
        )
        part = f"{select} FORCE INDEX (PRIMARY) WHERE {where}"
        if not ends:
            yield _tuples(session, f"{part} GROUP BY 1, 2", args)
            return
        last = ends[0][0]
        yield _tuples(session, f"{part} AND {column} <= %s GROUP BY 1, 2", (*args, last))
        where, args = f"{column} > %s", (last,)


def _finds_its_place(column: Column) -> bool:
    """Whether a value that was read, bound again, is in the same place of the index."""
    if column.type in TEXT_TYPES:
        return column.type in ("char", "varchar") and column.charset in _ORDERED_CHARSETS
    return column.type in _ORDERED_TYPES


def _plain(sql: str) -> str:
    """SQL with names in it, for a statement with arguments: no ``%`` of a name marks one."""
    return sql.replace("%", "%%")


def _tuples(session: Session, sql: str, args: tuple[object, ...]) -> list[tuple[int, bytes, int]]:
    return [(number, key, rows) for number, key, rows in session.query(sql, args)]
