"""Which tables are tracked, and how: the rows of ``tracked_table``."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from countersink.store.connection import Session

_COLUMNS: Final = (
    "counter, table_schema, table_name, by_columns, day_column, app_slots, triggers, created,"
    " counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """A table whose rows are counted by triggers.

    Attributes:
        counter: the counter that they are counted in.
        schema: the database that the table is in.
        table: its name.
        by: the columns whose values make the key, in this order; see
            :mod:`countersink.store.tracked.encoding`.
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


def read_all(session: Session) -> list[TrackedTable]:
    """All tracked tables, by counter; in the caller's transaction, if any."""
    rows = session.query(f"SELECT {_COLUMNS} FROM tracked_table ORDER BY counter")
    return [_tracked(*row) for row in rows]


def read_locked(session: Session, counter: str) -> TrackedTable | None:
    """What a counter tracks, with its row locked until the transaction ends; None for nothing.

    It reads what is there now, and does not begin the transaction's snapshot.
    """
    rows = session.query(
        f"SELECT {_COLUMNS} FROM tracked_table WHERE counter = %s FOR UPDATE", (counter,)
    )
    return _tracked(*rows[0]) if rows else None


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


def set_counted(session: Session, counter: str) -> None:
    """Note that the counter is right from now on."""
    session.execute(
        "UPDATE tracked_table SET counted = UTC_TIMESTAMP(3) WHERE counter = %s", (counter,)
    )


def set_uncounted(session: Session, counter: str) -> None:
    """Note that the counter is not right, or may not be in a moment."""
    session.execute("UPDATE tracked_table SET counted = NULL WHERE counter = %s", (counter,))


def delete(session: Session, counter: str) -> None:
    """Delete the row."""
    session.execute("DELETE FROM tracked_table WHERE counter = %s", (counter,))


def _tracked(
    counter: str,
    schema: str,
    table: str,
    by: str,
    day: str | None,
    app_slots: int,
    triggers: str,
    created: datetime,
    counted: datetime | None,
) -> TrackedTable:
    columns: list[Any] = json.loads(by)
    return TrackedTable(
        counter=counter,
        schema=schema,
        table=table,
        by=tuple(str(column) for column in columns),
        day=day,
        app_slots=int(app_slots),
        triggers=triggers,
        created=created.replace(tzinfo=UTC),
        counted=None if counted is None else counted.replace(tzinfo=UTC),
    )
