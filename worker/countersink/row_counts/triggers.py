"""The SQL of the triggers that count a table's rows: which rows and changes count (``check.py``
reads the same rows); comparing them with those that exist; changing them: lock wait, tries, pauses
and error messages. Rights that triggers need, and the sentences that say what to GRANT where one is
missing.

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

A statement that makes or drops a trigger waits until no transaction uses the table, and whoever
comes to use it meanwhile waits behind it, readers too. So it waits for a second at most, lets the
others pass for at least as long, and tries again.

The server is asked by trying: what triggers read and write is tried beforehand, without a row;
whether they may be made is what it says to CREATE TRIGGER.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from countersink.database import app_connection as connection
from countersink.database.errors import Conflict, Refused, StoreError
from countersink.database.session import Connect, Session
from countersink.database.sql import quoted
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.encoding import DAY, bucket_sql, key_sql
from countersink.row_counts.errors import HiddenTriggers
from countersink.row_counts.table import AppTable
from countersink.runtime.limits import MAX_KEY_BYTES

_DENIED: Final = frozenset(
    {
        1044,  # Access denied to database
        1142,  # TRIGGER command denied to user for table
        1143,  # … for column
    }
)


def require_before(session: Session, schema: str, table: str, database: str) -> None:
    """Check that triggers made by this user can read a table, and can count.

    Args:
        session: of the user whose triggers they will be.
        schema: the database that the table is in.
        table: its name.
        database: where the tables of countersink are.

    Raises:
        Refused: they cannot; says what to grant.
    """
    # With no rights but those that a trigger has: on MariaDB none of a role.
    ((role,),) = session.query("SELECT CURRENT_ROLE()")
    by_role = role is not None and session.dialect.name == "mariadb"
    if by_role:
        session.execute("SET ROLE NONE")
    try:
        with explaining(session, schema, table):
            session.query(f"SELECT 1 FROM {quoted(schema)}.{quoted(table)} LIMIT 0")
        with explaining(session, database, "counter_slot", ("SELECT", "INSERT", "UPDATE")):
            session.execute(
                f"INSERT INTO {quoted(database)}.counter_slot SELECT * FROM"
                f" {quoted(database)}.counter_slot AS t WHERE FALSE"
                " ON DUPLICATE KEY UPDATE amount = t.amount"
            )
    finally:
        if by_role:
            session.execute(f"SET ROLE {quoted(role)}")


@contextmanager
def explaining(
    session: Session, schema: str, table: str, needed: Sequence[str] = ("SELECT", "TRIGGER")
) -> Iterator[None]:
    """An error within that is about a missing right says what to grant."""
    try:
        yield
    except StoreError as error:
        if error.code not in _DENIED:
            raise
        # Without what a general advice would say behind it.
        said, _, _ = str(error).partition(" (error ")
        raise Refused(
            f"triggers on {schema}.{table} need rights of their own, which a role does not give:"
            f" {grant(session, schema, table, needed)}; the server said: {said}",
            code=error.code,
        ) from error


def grant(session: Session, schema: str, table: str, needed: Sequence[str]) -> str:
    """What an administrator has to run for this user, in words."""
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = user.rpartition("@")
    return (
        f"let an administrator run GRANT {', '.join(needed)} ON"
        f" {quoted(schema)}.{quoted(table)} TO {quoted(name)}@{quoted(host)}"
    )


def is_gone(session: Session, definer: str) -> bool:
    """Whether there is no user ``definer`` (``user@host``) any more, as whom triggers run; False
    where this user may not look at others.
    """
    accounts = {
        account
        for (account,) in session.query("SELECT grantee FROM information_schema.user_privileges")
    }
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = definer.rpartition("@")
    # Whoever may not read the grants sees only its own.
    return f"'{name}'@'{host}'" not in accounts and (len(accounts) > 1 or definer == user)


SQL_MODE: Final = ""
"""Of the session that makes triggers, and so of the triggers."""
LOCK_WAIT: Final = 1
"""Seconds that others may have to wait behind a statement."""
ATTEMPTS: Final = 15
PAUSES: Final = (1.0, 2.0)
"""Seconds between two attempts, at least and at most."""
_UNKNOWN_DATABASE: Final = 1049
_NO_SUCH_TRIGGER: Final = 1360
_HIDDEN: Final = 1227
"""What SHOW CREATE TRIGGER says of a trigger that is there, to a user who may not see it."""
Event = Literal["INSERT", "UPDATE", "DELETE"]
Notice = Callable[[str], object]
"""Is told, in a sentence, what is being waited for."""


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


@dataclass(frozen=True, slots=True)
class InstalledTrigger:
    """A trigger as the server has it.

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

    def does(self, wanted: Trigger) -> bool:
        """Whether it is as it should be. (The server changes what stands before the body.)"""
        return (
            (self.table, self.name, self.sql_mode) == (wanted.table, wanted.name, SQL_MODE)
            and f" AFTER {wanted.event} ON " in self.statement
            and self.statement.endswith(wanted.body)
        )


def trigger_names(tracked: TrackedTable) -> list[str]:
    """The names that its triggers have, or would have."""
    return [f"{tracked.triggers}_{event}" for event in ("insert", "update", "delete")]


def wanted(tracked: TrackedTable, table: AppTable, database: str) -> list[Trigger]:
    """The triggers that count a table.

    Args:
        tracked: how it is counted.
        table: the table.
        database: where the tables of countersink are.
    """
    by, day = table.counted_by(tracked.by, tracked.day)
    slots = f"{quoted(database)}.counter_slot"
    slot = connection.slot(tracked.app_slots, table.snapshot_isolation)

    def add(bucket: str, key: str, amount: int) -> str:
        return (
            f"INSERT INTO {slots} (counter, bucket, counter_key, width, slot, amount)\n"
            f"VALUES ('{tracked.counter}', {bucket}, {key}, {DAY:d}, {slot}, {amount:d})\n"
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
    return [
        Trigger(tracked.schema, tracked.table, f"{tracked.triggers}_{event.lower()}", event, body)
        for event, body in bodies.items()
    ]


def existing(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    """Those of its triggers that there are, on whatever table of its database they are by now.

    Raises:
        HiddenTriggers: this user may not see them; says what to grant.
    """
    found = _visible(session, tracked, "trigger_schema = %s")
    # The server leaves out what a user may not see, without a word; by name it says so.
    for name in {*trigger_names(tracked)} - {trigger.name for trigger in found}:
        try:
            _shown(session, tracked.schema, name)
        except Refused as error:
            if error.code != _HIDDEN:
                raise
            raise HiddenTriggers(
                f"this user may not see the triggers of {tracked.name}, which are there:"
                f" {grant(session, tracked.schema, tracked.table, ('TRIGGER',))}",
                code=error.code,
            ) from error
    return found


def strays(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    """Triggers of the same names in other databases, which came there with a copy of the table.

    Only those that count in these tables of countersink, and that this user may see. On MariaDB
    this takes longer the more tables the server has.
    """
    ((database,),) = session.query("SELECT DATABASE()")
    counts = f"INSERT INTO {quoted(database)}.counter_slot "
    copies = _visible(session, tracked, "trigger_schema <> %s")
    return [trigger for trigger in copies if counts in trigger.statement]


def split(
    there: Sequence[InstalledTrigger], should_be: Sequence[Trigger], definer: str | None = None
) -> tuple[list[InstalledTrigger], list[Trigger]]:
    """Of triggers that are there and that should be: which to drop, and which to make.

    Args:
        there: as they are.
        should_be: as they should be.
        definer: ``user@host`` that they should run as; None: any.
    """

    def right(found: InstalledTrigger, trigger: Trigger) -> bool:
        return found.does(trigger) and definer in (None, found.definer)

    return (
        [found for found in there if not any(right(found, trigger) for trigger in should_be)],
        [trigger for trigger in should_be if not any(right(found, trigger) for found in there)],
    )


def quiet(*_: object) -> None:
    """Tell nobody."""


@contextmanager
def changing(connect: Connect) -> Iterator[Session]:
    """A session for making and dropping triggers."""
    with connect() as session:
        session.execute(
            "SET SESSION lock_wait_timeout = %s, SESSION sql_mode = %s", (LOCK_WAIT, SQL_MODE)
        )
        yield session


def change(session: Session, trigger: Trigger | InstalledTrigger, notice: Notice) -> None:
    """Make a trigger, or drop one that is installed: a statement that needs the table for itself,
    in short waits.

    Args:
        session: one of :func:`changing`.
        trigger: the trigger.
        notice: is told that it waits.

    Raises:
        Conflict: others used the table all the time; says how to find them.
        Refused: a right is missing; says what to grant.
        StoreError: as any statement.
    """
    statement = trigger.create if isinstance(trigger, Trigger) else trigger.drop
    table = f"{trigger.schema}.{trigger.table}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with explaining(session, trigger.schema, trigger.table):
                session.execute(statement)
            return
        except Conflict as error:
            if attempt == ATTEMPTS:
                raise Conflict(
                    f"a transaction has been using {table} all the time, so its triggers could not"
                    f" be changed ({error}): end it (SHOW PROCESSLIST shows who is connected, KILL"
                    " and that number ends one), then run this again",
                    code=error.code,
                ) from error
            notice(f"waiting for a transaction that uses {table} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(random.uniform(*PAUSES))


def _unchanged(tracked: TrackedTable, table: AppTable) -> str:
    """Finds the row that an UPDATE was about if it still is counted where it was."""
    by, day = table.counted_by(tracked.by, tracked.day)
    same = " AND ".join(
        f"kept.{quoted(column.name)} = OLD.{quoted(column.name)}" for column in table.primary_key
    )
    return (
        f"SELECT 1 FROM {quoted(table.schema)}.{quoted(table.name)} AS kept WHERE {same}"
        f" AND {bucket_sql(day, 'kept.')} = old_bucket AND {key_sql(by, 'kept.')} = old_key"
        # As it is now, not as it was when the application's transaction began to read.
        " LOCK IN SHARE MODE"
    )


def _visible(session: Session, tracked: TrackedTable, where: str) -> list[InstalledTrigger]:
    rows = session.query(
        "SELECT trigger_schema, event_object_table, trigger_name, definer"
        f" FROM information_schema.triggers WHERE {where} AND trigger_name IN (%s, %s, %s)",
        (tracked.schema, *trigger_names(tracked)),
    )
    # Not action_statement, where MySQL spoils names that have a backquote in them.
    return [
        InstalledTrigger(schema, table, name, definer, sql_mode, statement)
        for schema, table, name, definer in rows
        for _, sql_mode, statement, *_ in _shown(session, schema, name)
    ]


def _shown(session: Session, schema: str, name: str) -> list[tuple[Any, ...]]:
    """The row of a trigger (name, ``sql_mode``, statement); no row where there is no trigger."""
    try:
        return session.query(f"SHOW CREATE TRIGGER {quoted(schema)}.{quoted(name)}")
    except StoreError as error:
        if error.code not in (_NO_SUCH_TRIGGER, _UNKNOWN_DATABASE):
            raise
        return []
