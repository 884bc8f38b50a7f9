"""Rows of ``tracked_table``, and names of tables as people write them, with the errors for unknown
or ambiguous ones."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from countersink.counting.errors import UnknownCounter
from countersink.database.session import Session
from countersink.runtime.limits import is_name

_COLUMNS: Final = (
    "counter, table_schema, table_name, by_columns, day_column, app_slots, triggers, created,"
    " counted"
)
_PART = r"`(?:[^`]|``)+`|[^`.]+"
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """A table whose rows are counted by triggers.

    Attributes:
        counter: the counter that they are counted in.
        schema: the database that the table is in.
        table: its name.
        by: the columns whose values make the key, in this order; see
            :mod:`countersink.row_counts.encoding`.
        day: the column whose date is the day; None: all rows are on 1970-01-01.
        app_slots: over how many slots the triggers spread.
        triggers: how the names of its triggers begin.
        created: since when it is tracked, UTC.
        counted: when its rows were last counted, UTC; None: not yet, or not since
            somebody began to untrack or to repair it, so the counter is not right.
    """

    counter: str
    schema: str
    table: str
    by: tuple[str, ...]
    day: str | None
    app_slots: int
    triggers: str
    created: datetime
    counted: datetime | None

    @property
    def name(self) -> str:
        """The table as people write it: ``schema.table``."""
        return f"{self.schema}.{self.table}"


def parse(table: str, database: str) -> tuple[str, str]:
    """The database and the name that ``table`` says.

    Args:
        table: ``name``, ``schema.name``, or with backquotes around either part, and then with each
            backquote within doubled.
        database: which one is meant where none is said.

    Raises:
        ValueError: it cannot be a table's name.
    """
    found = _NAME.fullmatch(table)
    if found is None or "\0" in table:
        raise ValueError(
            f"{table!r} is no table's name: write name, schema.name or `schema`.`name`, with each"
            " backquote within backquotes doubled"
        )
    schema, name = found.groups()
    return (database if schema is None else _plain(schema)), _plain(name)


def default_counter(table: str) -> str | None:
    """The counter's name for a table, as it was written; None where that cannot be one."""
    name = ".".join(map(_plain, re.findall(_PART, table)))
    return name if is_name(name) else None


def find(
    tracked: Sequence[TrackedTable], table_or_counter: str, database: str
) -> list[TrackedTable]:
    """What is tracked under a name: all trackings of this table, or else that by this counter.

    Args:
        tracked: all that are.
        table_or_counter: a counter, or a table as for :func:`parse`.
        database: which one is meant where none is said.

    Raises:
        ValueError: it is the counter of one table, and the name of another one that is tracked.
    """
    own = [each for each in tracked if each.counter == table_or_counter]
    try:
        place = parse(table_or_counter, database)
    except ValueError:
        place = None
    alike = [each for each in tracked if (each.schema, each.table) == place]
    if own and alike and own[0] not in alike:
        counters = ", ".join(each.counter for each in alike)
        raise ValueError(
            f"{table_or_counter!r} is the counter of {own[0].name}, and table {alike[0].name} is"
            f" tracked as {counters}: name that counter, or the table with its database"
        )
    return alike or own


def find_one(tracked: Sequence[TrackedTable], table_or_counter: str, database: str) -> TrackedTable:
    """The one that is tracked under a name.

    Args:
        tracked, table_or_counter, database: as for :func:`find`.

    Raises:
        UnknownCounter: nothing is.
        ValueError: as :func:`find`; or the table is tracked in several counters.
    """
    found = find(tracked, table_or_counter, database)
    if not found:
        raise UnknownCounter(
            f"no table is tracked as {table_or_counter!r}: see `countersink track --list`"
        )
    if len(found) > 1:
        counters = ", ".join(each.counter for each in found)
        raise ValueError(
            f"{table_or_counter} is tracked in several counters: name one of {counters} as the"
            " counter (--counter)"
        )
    return found[0]


def in_words(tracked: TrackedTable) -> str:
    """By what a table is counted: `` by tenant, status by day of placed``; nothing for all rows."""
    by = f" by {', '.join(tracked.by)}" if tracked.by else ""
    return by if tracked.day is None else f"{by} by day of {tracked.day}"


def read_all(session: Session) -> list[TrackedTable]:
    """All tracked tables, by counter; in the caller's transaction, if any."""
    rows = session.query(f"SELECT {_COLUMNS} FROM tracked_table ORDER BY counter")
    return [_tracked(row) for row in rows]


def read(session: Session, counter: str, lock: str = "") -> TrackedTable | None:
    """What a counter tracks; None for nothing.

    With `` FOR UPDATE`` its row is locked until the transaction ends; that reads what is there now,
    and does not begin the transaction's snapshot.
    """
    select = f"SELECT {_COLUMNS} FROM tracked_table WHERE counter = %s{lock}"
    rows = session.query(select, (counter,))
    return _tracked(rows[0]) if rows else None


def tracked_names(session: Session) -> frozenset[str]:
    """The counters of tracked tables."""
    return frozenset(name for (name,) in session.query("SELECT counter FROM tracked_table"))


def insert(session: Session, tracked: TrackedTable) -> None:
    """Write the row of a table that was not counted yet; ``created`` is by the server's clock.

    Raises:
        DuplicateKey: the counter tracks a table already.
    """
    session.execute(
        f"INSERT INTO tracked_table ({_COLUMNS})"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3), NULL)",
        (
            tracked.counter,
            tracked.schema,
            tracked.table,
            json.dumps(tracked.by),
            tracked.day,
            tracked.app_slots,
            tracked.triggers,
        ),
    )


def set_counted(session: Session, counter: str, counted: bool) -> None:
    """Note that the counter is right from now on; or that it is not, or may not be in a moment."""
    now = "UTC_TIMESTAMP(3)" if counted else "NULL"
    session.execute(f"UPDATE tracked_table SET counted = {now} WHERE counter = %s", (counter,))


def _tracked(row: tuple[Any, ...]) -> TrackedTable:
    counter, schema, table, by, day, app_slots, triggers, created, counted = row
    return TrackedTable(
        counter=counter,
        schema=schema,
        table=table,
        by=tuple(map(str, json.loads(by))),
        day=day,
        app_slots=int(app_slots),
        triggers=triggers,
        created=created.replace(tzinfo=UTC),
        counted=None if counted is None else counted.replace(tzinfo=UTC),
    )


def _plain(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
