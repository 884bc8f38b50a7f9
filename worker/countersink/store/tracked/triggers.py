"""The triggers that count a table's rows.

They run after the row was written, so that neither a row that an INSERT IGNORE leaves out nor what
another trigger still changes is counted wrongly. Each adds 1 or -1 in the application's own
transaction, into a slot by its connection, so that transactions do not wait for each other. An
UPDATE that leaves key and day alone writes nothing; where nothing is counted by, it has no trigger.

MariaDB runs the trigger also for a row that UPDATE IGNORE leaves as it was, since it met a
duplicate key or a missing parent. So there it looks, by the primary key, whether the row still is
what it was; without one it cannot tell.

A trigger must never fail the application's write. It runs under the ``sql_mode`` and the character
set of the session that made it: that has an empty ``sql_mode``, so a value that was not foreseen
becomes a warning (and a difference that verification finds) instead of an error.
"""

from dataclasses import dataclass
from typing import Final, Literal

from countersink.store import app_slots
from countersink.store.names import quoted
from countersink.store.tracked.days import bucket_sql
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.encoding import MAX_KEY_BYTES, key_sql
from countersink.store.tracked.tables import Table

Event = Literal["INSERT", "UPDATE", "DELETE"]

SQL_MODE: Final = ""
"""Of the session that makes triggers, and so of the triggers."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger as it should be.

    Attributes:
        schema: the database that it and its table are in.
        table: what it is on.
        name: its own.
        event: after what it runs.
        body: what it does, as SQL.
    """

    schema: str
    table: str
    name: str
    event: Event
    body: str

    @property
    def create(self) -> str:
        """The statement that makes it."""
        return (
            f"CREATE TRIGGER {quoted(self.schema)}.{quoted(self.name)}"
            f" AFTER {self.event} ON {quoted(self.schema)}.{quoted(self.table)}"
            f" FOR EACH ROW\n{self.body}"
        )


def names(tracked: TrackedTable) -> dict[Event, str]:
    """The names that its triggers have, or would have."""
    events: tuple[Event, ...] = ("INSERT", "UPDATE", "DELETE")
    return {event: f"{tracked.triggers}_{event.lower()}" for event in events}


def wanted(tracked: TrackedTable, table: Table, database: str) -> list[Trigger]:
    """The triggers that count a table.

    Args:
        tracked: how it is counted.
        table: the table.
        database: where the tables of countersink are.
    """
    by = [table.column(name) for name in tracked.by]
    day = None if tracked.day is None else table.column(tracked.day)
    slots = f"{quoted(database)}.counter_slot"
    slot = app_slots.slot(tracked.app_slots, table.snapshot_isolation)

    def add(bucket: str, key: str, amount: int) -> str:
        return (
            f"INSERT INTO {slots} (counter, bucket, counter_key, slot, amount)\n"
            f"VALUES ('{tracked.counter}', {bucket}, {key}, {slot}, {amount:d})\n"
            f"ON DUPLICATE KEY UPDATE amount = amount {'+' if amount > 0 else '-'} 1"
        )

    bodies: dict[Event, str] = {
        "INSERT": add(bucket_sql(day, "NEW."), key_sql(by, "NEW."), 1),
        "DELETE": add(bucket_sql(day, "OLD."), key_sql(by, "OLD."), -1),
    }
    if by or day is not None:
        less, more = add("old_bucket", "old_key", -1), add("new_bucket", "new_key", 1)
        # In the order of the primary key, as everybody writes several rows.
        moved = "old_bucket <> new_bucket OR old_key <> new_key"
        if table.updates_ignored and table.primary_key:
            moved = f"({moved}) AND NOT EXISTS ({_unchanged(tracked, table)})"
        bodies["UPDATE"] = (
            "BEGIN\n"
            f"DECLARE old_bucket DATETIME DEFAULT {bucket_sql(day, 'OLD.')};\n"
            f"DECLARE new_bucket DATETIME DEFAULT {bucket_sql(day, 'NEW.')};\n"
            f"DECLARE old_key VARBINARY({MAX_KEY_BYTES}) DEFAULT {key_sql(by, 'OLD.')};\n"
            f"DECLARE new_key VARBINARY({MAX_KEY_BYTES}) DEFAULT {key_sql(by, 'NEW.')};\n"
            f"IF {moved} THEN\n"
            "IF old_bucket < new_bucket OR (old_bucket = new_bucket AND old_key < new_key) THEN\n"
            f"{less};\n{more};\n"
            "ELSE\n"
            f"{more};\n{less};\n"
            "END IF;\n"
            "END IF;\n"
            "END"
        )
    named = names(tracked)
    return [
        Trigger(tracked.schema, tracked.table, named[event], event, body)
        for event, body in bodies.items()
    ]


def _unchanged(tracked: TrackedTable, table: Table) -> str:
    """Finds the row that an UPDATE was about if it still is counted where it was."""
    by = [table.column(name) for name in tracked.by]
    day = None if tracked.day is None else table.column(tracked.day)
    same = " AND ".join(
        f"kept.{quoted(column.name)} = OLD.{quoted(column.name)}" for column in table.primary_key
    )
    return (
        f"SELECT 1 FROM {quoted(table.schema)}.{quoted(table.name)} AS kept WHERE {same}"
        f" AND {bucket_sql(day, 'kept.')} = old_bucket AND {key_sql(by, 'kept.')} = old_key"
        # As it is now, not as it was when the application's transaction began to read.
        " LOCK IN SHARE MODE"
    )
