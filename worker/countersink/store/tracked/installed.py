"""The triggers of tracked tables as they are: those that there are, and what they do."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.store.connection import Session
from countersink.store.errors import Conflict, Refused, StoreError
from countersink.store.names import quoted
from countersink.store.tracked import privileges
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.triggers import SQL_MODE, Trigger, names

_UNKNOWN_DATABASE: Final = 1049
_NO_SUCH_TRIGGER: Final = 1360
_HIDDEN: Final = 1227
"""What SHOW CREATE TRIGGER says of a trigger that is there, to a user who may not see it."""
_COLUMN: Final = re.compile(r"\b(?:OLD|NEW)\.`((?:[^`]|``)+)`")


class HiddenTriggers(Refused):
    """There are triggers that this user may not see."""


@dataclass(frozen=True, slots=True)
class Found:
    """A trigger as it is.

    Attributes:
        schema: the database that it and its table are in.
        table: what it is on.
        name: its own.
        definer: ``user@host`` with whose rights it runs.
        sql_mode: under which it runs.
        statement: what the server says made it.
    """

    schema: str
    table: str
    name: str
    definer: str
    sql_mode: str
    statement: str

    @property
    def drop(self) -> str:
        """The statement that takes it away, wherever it is by now."""
        return f"DROP TRIGGER IF EXISTS {quoted(self.schema)}.{quoted(self.name)}"

    @property
    def columns(self) -> list[str]:
        """The columns that it goes by."""
        return [name.replace("``", "`") for name in _COLUMN.findall(self.statement)]

    def does(self, wanted: Trigger) -> bool:
        """Whether it is as it should be. (The server changes what stands before the body.)"""
        return (
            (self.table, self.name, self.sql_mode) == (wanted.table, wanted.name, SQL_MODE)
            and f" AFTER {wanted.event} ON " in self.statement
            and self.statement.endswith(wanted.body)
        )


def existing(session: Session, tracked: TrackedTable) -> list[Found]:
    """Those of its triggers that there are, on whatever table of its database they are by now.

    Raises:
        HiddenTriggers: this user may not see them; says what to grant.
        Conflict: they are just being changed.
    """
    found = _visible(session, tracked, "trigger_schema = %s")
    # The server leaves out what a user may not see, without a word; by name it says so.
    for name in set(names(tracked).values()) - {trigger.name for trigger in found}:
        try:
            there = _shown(session, tracked.schema, name) is not None
        except Refused as error:
            if error.code != _HIDDEN:
                raise
            raise HiddenTriggers(
                f"this user may not see the triggers of {tracked.name}, which are there:"
                f" {privileges.grant(session, tracked.schema, tracked.table, ('TRIGGER',))}",
                code=error.code,
            ) from error
        if there:
            raise Conflict(f"the triggers of {tracked.name} are just being changed: run this again")
    return found


def strays(session: Session, tracked: TrackedTable) -> list[Found]:
    """Triggers of the same names in other databases, which came there with a copy of the table.

    Only those that count in these tables of countersink, and that this user may see. On MariaDB
    this takes longer the more tables the server has.
    """
    ((database,),) = session.query("SELECT DATABASE()")
    counts = f"INSERT INTO {quoted(database)}.counter_slot "
    copies = _visible(session, tracked, "trigger_schema <> %s")
    return [trigger for trigger in copies if counts in trigger.statement]


def elsewhere(session: Session, tracked: TrackedTable) -> str:
    """What to add where the table is missing: on which one its triggers are by now."""
    try:
        there = existing(session, tracked)
    except HiddenTriggers as error:
        return f"; {error}"
    others = sorted({trigger.table for trigger in there} - {tracked.table})
    if not others:
        return ""
    tables = " and ".join(f"{tracked.schema}.{table}" for table in others)
    return f"; its triggers are on {tables} now: untrack this, then track that"


def split(
    there: Sequence[Found], should_be: Sequence[Trigger], definer: str | None = None
) -> tuple[list[Found], list[Trigger]]:
    """Of triggers that are there and that should be: which to drop, and which to make.

    Args:
        there: as they are.
        should_be: as they should be.
        definer: ``user@host`` that they should run as; None: any.
    """

    def right(found: Found, trigger: Trigger) -> bool:
        return found.does(trigger) and definer in (None, found.definer)

    return (
        [found for found in there if not any(right(found, trigger) for trigger in should_be)],
        [trigger for trigger in should_be if not any(right(found, trigger) for found in there)],
    )


def _visible(session: Session, tracked: TrackedTable, where: str) -> list[Found]:
    rows = session.query(
        "SELECT trigger_schema, event_object_table, trigger_name, definer"
        f" FROM information_schema.triggers WHERE {where} AND trigger_name IN (%s, %s, %s)",
        (tracked.schema, *names(tracked).values()),
    )
    found = []
    for schema, table, name, definer in rows:
        # Not action_statement, where MySQL spoils names that have a backquote in them.
        shown = _shown(session, schema, name)
        if shown is not None:
            found.append(Found(schema, table, name, definer, *shown))
    return found


def _shown(session: Session, schema: str, name: str) -> tuple[str, str] | None:
    """The ``sql_mode`` and the statement of a trigger; None where there is none."""
    try:
        rows = session.query(f"SHOW CREATE TRIGGER {quoted(schema)}.{quoted(name)}")
    except StoreError as error:
        if error.code in (_NO_SUCH_TRIGGER, _UNKNOWN_DATABASE):
            return None
        raise
    _, sql_mode, statement, *_ = rows[0]
    return sql_mode, statement
