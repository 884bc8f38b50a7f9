"""``TrackedTable``, a row of ``tracked_table``: read, write, and find by a name that a person has
written."""

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
        counter: the counter of its rows.
        schema: the table's database.
        table: the table's name.
        by: the columns whose values make the key, in this order; see
            :mod:`countersink.row_counts.encoding`.
        day: the column whose date is the day; None: all rows are on 1970-01-01.
        app_slots: number of slots of the triggers.
        triggers: the beginning of its triggers' names.
        created: time since which it is tracked, UTC.
        counted: time at which its rows were last counted, UTC; None: they were not, or an untrack
            or repair has begun since, so the counter is not right.
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
    """Database and name of a table.

    Args:
        table: ``name``, ``schema.name``, or either part in backquotes, with backquotes within it
            doubled.
        database: the default database.

    Raises:
        ValueError: ``table`` cannot be a table's name.
    """
    found = _NAME.fullmatch(table)
    if found is None or "\0" in table:
        raise ValueError(
            f"{table!r} is not a table's name: write name, schema.name or `schema`.`name`, with"
            " backquotes within a name doubled"
        )
    schema, name = found.groups()
    return (database if schema is None else _plain(schema)), _plain(name)


def default_counter(table: str) -> str | None:
    """The name of a table as a counter's name; None where it is no valid counter name."""
    name = ".".join(map(_plain, re.findall(_PART, table)))
    return name if is_name(name) else None


def find(
    tracked: Sequence[TrackedTable], table_or_counter: str, database: str
) -> list[TrackedTable]:
    """The tracked tables of a name: all of this table, or else the table of this counter.

    Args:
        tracked: all tracked tables.
        table_or_counter: a counter, or a table as of :func:`parse`.
        database: the default database.

    Raises:
        ValueError: the name is the counter of one tracked table, and the name of another one.
    """
    by_counter = [each for each in tracked if each.counter == table_or_counter]
    try:
        name = parse(table_or_counter, database)
    except ValueError:
        name = None
    by_name = [each for each in tracked if (each.schema, each.table) == name]
    if by_counter and by_name and by_counter[0] not in by_name:
        counters = ", ".join(each.counter for each in by_name)
        raise ValueError(
            f"{table_or_counter!r} is the counter of {by_counter[0].name}, and also a table tracked"
            f" as {counters}: name that counter, or the table with its database"
        )
    return by_name or by_counter


def find_one(tracked: Sequence[TrackedTable], table_or_counter: str, database: str) -> TrackedTable:
    """The only tracked table of a name.

    Args:
        tracked, table_or_counter, database: as of :func:`find`.

    Raises:
        UnknownCounter: no tracked table or its counter has this name.
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
            f"{table_or_counter} is tracked in several counters: name one of them (--counter):"
            f" {counters}"
        )
    return found[0]


def in_words(tracked: TrackedTable) -> str:
    """Text of key and day columns: `` by tenant, status by day of placed``; empty: neither."""
    by = f" by {', '.join(tracked.by)}" if tracked.by else ""
    return by if tracked.day is None else f"{by} by day of {tracked.day}"


def read_all(session: Session) -> list[TrackedTable]:
    """All tracked tables, sorted by counter."""
    rows = session.query(f"SELECT {_COLUMNS} FROM tracked_table ORDER BY counter")
    return [_tracked(row) for row in rows]


def read(session: Session, counter: str, lock: str = "") -> TrackedTable | None:
    """The tracked table of a counter; None: it has none.

    ``lock`` `` FOR UPDATE`` locks its row until the transaction ends; this reads the present row,
    and does not begin the transaction's snapshot.
    """
    select = f"SELECT {_COLUMNS} FROM tracked_table WHERE counter = %s{lock}"
    rows = session.query(select, (counter,))
    return _tracked(rows[0]) if rows else None


def tracked_names(session: Session) -> frozenset[str]:
    """The counters of tracked tables."""
    return frozenset(name for (name,) in session.query("SELECT counter FROM tracked_table"))


def insert(session: Session, tracked: TrackedTable) -> None:
    """Insert the row of a table that was not counted yet; ``created`` is the server's time.

    Raises:
        DuplicateKey: the counter has a tracked table already.
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
    """Note that the counter is right from now on; or that it is not, or may become wrong."""
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
