"""``TrackedTable``, a row of the table ``tracked_table``: how to read it, write it, and find it by
a name that a person has written.
"""

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
    """A table of the application whose rows are counted by triggers.

    Attributes:
        counter: the counter for the rows.
        schema: the database of the table.
        table: the name of the table.
        by: the columns whose values make the key, in this order; see
            :mod:`countersink.row_counts.keys`.
        day: the column whose date is the day of a row; None if all rows are counted on 1970-01-01.
        app_slots: number of slots that the triggers use.
        triggers: the text with which the names of the triggers begin.
        created: time since which the table is tracked, an aware datetime in UTC.
        counted: time at which the rows were last counted, also aware. None if they were not counted
            yet, or if an untrack or a repair of triggers has begun since, so that the counter may
            be wrong.
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
    """Return the database of a table and its name, both without backquotes.

    Args:
        table: ``name`` or ``schema.name``. Each part may be in backquotes; a backquote within such
            a part is written twice.
        database: the database that is meant if ``table`` names none.

    Raises:
        ValueError: ``table`` cannot be the name of a table.
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
    """Return the name of the counter that a table gets by default: ``table`` without backquotes,
    with the database if ``table`` names one (``shop.orders``). Return None if that is not a valid
    name of a counter.
    """
    name = ".".join(map(_plain, re.findall(_PART, table)))
    return name if is_name(name) else None


def find(
    tracked: Sequence[TrackedTable], table_or_counter: str, database: str
) -> list[TrackedTable]:
    """Return the tracked tables that a name means. If tables are tracked that have this name,
    return all of them (one for each counter). Otherwise return the table that is tracked in the
    counter of this name. Return an empty list if there is neither.

    Args:
        tracked: all tracked tables.
        table_or_counter: the name: a counter, or a table as :func:`parse` takes it.
        database: the database that is meant if the name has none.

    Raises:
        ValueError: the name is the counter of one tracked table, and the name of another tracked
            table.
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
    """Return the only tracked table that a name means.

    Args:
        tracked: all tracked tables.
        table_or_counter: the name: a counter, or a table as :func:`parse` takes it.
        database: the database that is meant if the name has none.

    Raises:
        UnknownCounter: no tracked table, and no counter of a tracked table, has this name.
        ValueError: the table is tracked in several counters. Or the name is the counter of one
            tracked table, and the name of another tracked table.
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
    """Return text that names the columns of a tracked table's key and day, to follow the table's
    name in a message. It begins with a space: `` by tenant, status by day of placed``. The text is
    empty if there are none.
    """
    by = f" by {', '.join(tracked.by)}" if tracked.by else ""
    return by if tracked.day is None else f"{by} by day of {tracked.day}"


def read_all(session: Session) -> list[TrackedTable]:
    """Return all tracked tables, sorted by counter."""
    rows = session.query(f"SELECT {_COLUMNS} FROM tracked_table ORDER BY counter")
    return [_tracked(row) for row in rows]


def read(session: Session, counter: str, lock: str = "") -> TrackedTable | None:
    """Return the tracked table of a counter; None if the counter has none.

    Args:
        session: a session.
        counter: name of the counter.
        lock: `` FOR UPDATE`` (or `` FOR UPDATE NOWAIT``) to lock the row of ``tracked_table`` until
            the transaction ends; empty for no lock. With a lock the query reads the present row,
            not that of the transaction's snapshot, and does not begin the snapshot.

    Raises:
        Conflict: with a lock: another transaction holds the row's lock for too long, or with NOWAIT
            at all.
    """
    select = f"SELECT {_COLUMNS} FROM tracked_table WHERE counter = %s{lock}"
    rows = session.query(select, (counter,))
    return _tracked(rows[0]) if rows else None


def tracked_names(session: Session) -> frozenset[str]:
    """Return the names of all counters that have a tracked table."""
    return frozenset(name for (name,) in session.query("SELECT counter FROM tracked_table"))


def insert(session: Session, tracked: TrackedTable) -> None:
    """Insert the row of a tracked table whose rows were not counted yet. The column ``created``
    gets the server's time.

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
    """Record in the row of a tracked table whether its counter is right: the column ``counted``
    gets the server's time if it is right, else NULL.

    Args:
        session: a session.
        counter: name of the counter.
        counted: True if it is right from now on; False if it is not, or may become wrong.
    """
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
