"""The triggers that count a table's rows: their SQL, their comparison with the installed triggers,
how they are created and dropped, and the rights that they need.

The triggers run after a row was written. So a row that an INSERT IGNORE omits is not counted, and a
value that another trigger changes is counted as changed. A trigger adds 1 or -1 in the
application's own transaction, to the slot of the connection, so that transactions do not wait for
each other. If an UPDATE changes neither key nor day, nothing is written. A table without key and
day columns has no UPDATE trigger.

MariaDB runs the UPDATE trigger even if UPDATE IGNORE leaves the row unchanged, because of a
duplicate key or a missing parent. So there the trigger reads the row by its primary key, and
compares. If the table has no primary key, such an UPDATE is counted wrong.

A trigger must never make the application's write fail. It runs with the empty ``sql_mode`` of the
session that created it. So an unexpected value causes a warning (and a difference that ``verify``
finds) instead of an error. It also runs with that session's character set.

CREATE TRIGGER and DROP TRIGGER wait until no transaction uses the table. Meanwhile all new
statements on the table wait, even those that read. So an attempt waits for at most a second, and
the next attempt follows after a pause that is at least as long.

Rights are checked by trying: the reads and writes of the triggers are executed once before, in a
way that affects no row. The server checks the other rights at CREATE TRIGGER.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from countersink.counting.errors import HiddenTriggers
from countersink.database import app_connection as connection
from countersink.database.errors import Conflict, Refused, StoreError
from countersink.database.session import Connect, Session
from countersink.database.sql import quoted
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.keys import DAY, bucket_sql, key_sql
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
    """Check that this user (on MariaDB without a role) has the rights by which its triggers read a
    table and count: SELECT on the table; SELECT, INSERT and UPDATE on ``counter_slot``.

    Args:
        session: a session of the user who creates the triggers.
        schema, table: the table's database and name.
        database: name of countersink's database.

    Raises:
        Refused: a right is missing. The message has the GRANT statement.
    """
    # Without rights that a trigger does not have: on MariaDB those of a role.
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
    """If the block fails because of a missing right, raise Refused. Its message has the GRANT
    statement for the rights ``needed`` on the table. Other errors pass. A context manager.
    """
    try:
        yield
    except StoreError as error:
        if error.code not in _DENIED:
            raise
        # Without the general advice at the message's end.
        answer, _, _ = str(error).partition(" (error ")
        raise Refused(
            f"triggers on {schema}.{table} need rights of the user itself, not of a role:"
            f" {grant(session, schema, table, needed)}; the server said: {answer}",
            code=error.code,
        ) from error


def grant(session: Session, schema: str, table: str, needed: Sequence[str]) -> str:
    """Return text that asks an administrator to GRANT ``needed`` rights on a table to this user."""
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = user.rpartition("@")
    return (
        f"let an administrator run GRANT {', '.join(needed)} ON"
        f" {quoted(schema)}.{quoted(table)} TO {quoted(name)}@{quoted(host)}"
    )


def is_missing_user(session: Session, definer: str) -> bool:
    """Return True if the user ``definer`` (``user@host``) does not exist; False if it exists, or if
    this user may not see whether it does.
    """
    accounts = {
        account
        for (account,) in session.query("SELECT grantee FROM information_schema.user_privileges")
    }
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = definer.rpartition("@")
    # A user without the right to read grants sees only its own.
    return f"'{name}'@'{host}'" not in accounts and (len(accounts) > 1 or definer == user)


SQL_MODE: Final = ""
"""``sql_mode`` of the session that creates triggers, with which the triggers then run."""
LOCK_WAIT: Final = 1
"""Seconds that a statement waits for the table, and that others wait behind it."""
ATTEMPTS: Final = 15
"""Number of times that a statement waits for the table before it is given up."""
PAUSES: Final = (1.0, 2.0)
"""Shortest and longest pause between two attempts, in seconds."""
_UNKNOWN_DATABASE: Final = 1049
_NO_SUCH_TRIGGER: Final = 1360
_HIDDEN: Final = 1227
"""Error of SHOW CREATE TRIGGER if the trigger exists, but this user may not see it."""
Event = Literal["INSERT", "UPDATE", "DELETE"]
Notice = Callable[[str], object]
"""A function that is called with a sentence: a warning, or a reason to wait."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger to be created.

    Attributes:
        schema: the database of the trigger and of its table.
        table: the table's name.
        name: the trigger's name.
        event: the kind of statement after which the trigger runs.
        body: the SQL that the trigger runs.
    """

    schema: str
    table: str
    name: str
    event: Event
    body: str

    @property
    def create(self) -> str:
        """The statement that creates the trigger."""
        return (
            f"CREATE TRIGGER {quoted(self.schema)}.{quoted(self.name)}"
            f" AFTER {self.event} ON {quoted(self.schema)}.{quoted(self.table)}"
            f" FOR EACH ROW\n{self.body}"
        )


@dataclass(frozen=True, slots=True)
class InstalledTrigger:
    """A trigger that exists on the server.

    Attributes:
        schema: the database of the trigger and of its table.
        table: the table's name.
        name: the trigger's name.
        definer: the user, as ``user@host``, with whose rights the trigger runs.
        sql_mode: the ``sql_mode`` with which it runs.
        statement: the statement that created it, as SHOW CREATE TRIGGER returns it.
    """

    schema: str
    table: str
    name: str
    definer: str
    sql_mode: str
    statement: str

    @property
    def drop(self) -> str:
        """The statement that drops the trigger, if it exists, whichever table it is on."""
        return f"DROP TRIGGER IF EXISTS {quoted(self.schema)}.{quoted(self.name)}"

    def matches(self, expected: Trigger) -> bool:
        """Return whether the names of trigger, table and database, the event and the body are those
        of ``expected``, and ``sql_mode`` is :data:`SQL_MODE`. The definers may differ."""
        return (
            (self.schema, self.table, self.name) == (expected.schema, expected.table, expected.name)
            and self.sql_mode == SQL_MODE
            and f" AFTER {expected.event} ON " in self.statement
            and self.statement.endswith(expected.body)
        )


def trigger_names(tracked: TrackedTable) -> list[str]:
    """Return the three names of a tracked table's triggers, whether these exist or not."""
    return [f"{tracked.triggers}_{event}" for event in ("insert", "update", "delete")]


def expected_triggers(tracked: TrackedTable, table: AppTable, database: str) -> list[Trigger]:
    """Return the triggers that a tracked table must have: for INSERT and DELETE, and if it has key
    or day columns, for UPDATE. Raise ValueError if one of these columns cannot be used any more.

    Args:
        tracked, table: the tracked table, and the same table as read from the server.
        database: name of countersink's database.
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
        # In the order of the primary key, as in all transactions that write several rows.
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


def installed_triggers(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    """Return the existing triggers that have the names of a tracked table's triggers, whichever
    table of its database they are on (they stay with a table that is renamed).

    Raises:
        HiddenTriggers: this user may not see them. The message has the GRANT statement.
    """
    found = _visible(session, tracked, "trigger_schema = %s")
    # Lists of the server omit triggers that a user may not see; a query by name raises an error.
    for name in {*trigger_names(tracked)} - {trigger.name for trigger in found}:
        try:
            _shown(session, tracked.schema, name)
        except Refused as error:
            if error.code != _HIDDEN:
                raise
            raise HiddenTriggers(
                f"this user may not see the existing triggers of {tracked.name}:"
                f" {grant(session, tracked.schema, tracked.table, ('TRIGGER',))}",
                code=error.code,
            ) from error
    return found


def stray_triggers(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    """Return triggers in other databases that have the names of this table's triggers and count in
    the same counter. They came there with a copy of the table. Triggers that this user may not see
    are left out. On MariaDB the query takes longer, the more tables the server has.
    """
    ((database,),) = session.query("SELECT DATABASE()")
    counts = f"INSERT INTO {quoted(database)}.counter_slot "
    copies = _visible(session, tracked, "trigger_schema <> %s")
    return [trigger for trigger in copies if counts in trigger.statement]


def needed_changes(
    installed: Sequence[InstalledTrigger], expected: Sequence[Trigger], definer: str | None = None
) -> tuple[list[InstalledTrigger], list[Trigger]]:
    """Return the installed triggers to drop, since they match no expected one or have another
    definer, and the expected triggers to create, since no installed one matches.

    Args:
        installed, expected: the triggers that exist, and those that the table must have.
        definer: ``user@host`` with whose rights they must run; None for any user.
    """

    def right(found: InstalledTrigger, trigger: Trigger) -> bool:
        return found.matches(trigger) and definer in (None, found.definer)

    return (
        [found for found in installed if not any(right(found, trigger) for trigger in expected)],
        [trigger for trigger in expected if not any(right(found, trigger) for found in installed)],
    )


def ignore(*_: object) -> None:
    """Do nothing. This is the default for a :data:`Notice` and for a ``Progress``."""


@contextmanager
def changing(connect: Connect) -> Iterator[Session]:
    """Open a session that waits :data:`LOCK_WAIT` s for a table, with triggers' ``sql_mode``."""
    with connect() as session:
        session.execute(
            "SET SESSION lock_wait_timeout = %s, SESSION sql_mode = %s", (LOCK_WAIT, SQL_MODE)
        )
        yield session


def change(session: Session, trigger: Trigger | InstalledTrigger, notice: Notice) -> None:
    """Create a trigger, or drop an installed one. Try it up to :data:`ATTEMPTS` times, if
    a transaction uses the table; between two attempts there is a pause of 1 to 2 seconds.

    Args:
        session, trigger: a session from :func:`changing`, and the trigger.
        notice: called with the reason before each pause.

    Raises:
        Conflict: transactions went on using the table. The message says how to find them.
        Refused: a right is missing. The message has the GRANT statement.
        StoreError: the statement failed for another reason.
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
                    f" be changed ({error}): end it (SHOW PROCESSLIST lists the connections, KILL"
                    " with its number ends one), then run this again",
                    code=error.code,
                ) from error
            notice(f"waiting for a transaction that uses {table} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(random.uniform(*PAUSES))


def _unchanged(tracked: TrackedTable, table: AppTable) -> str:
    """Return a query for the UPDATE trigger of MariaDB: it reads the row that is now in the table
    under the old primary key, and finds it only if key and day are still the old ones."""
    by, day = table.counted_by(tracked.by, tracked.day)
    same = " AND ".join(
        f"kept.{quoted(column.name)} = OLD.{quoted(column.name)}" for column in table.primary_key
    )
    return (
        f"SELECT 1 FROM {quoted(table.schema)}.{quoted(table.name)} AS kept WHERE {same}"
        f" AND {bucket_sql(day, 'kept.')} = old_bucket AND {key_sql(by, 'kept.')} = old_key"
        # Reads the present row, not that of the application's snapshot.
        " LOCK IN SHARE MODE"
    )


def _visible(session: Session, tracked: TrackedTable, where: str) -> list[InstalledTrigger]:
    rows = session.query(
        "SELECT trigger_schema, event_object_table, trigger_name, definer"
        f" FROM information_schema.triggers WHERE {where} AND trigger_name IN (%s, %s, %s)",
        (tracked.schema, *trigger_names(tracked)),
    )
    # Not action_statement, where MySQL damages names with a backquote.
    return [
        InstalledTrigger(schema, table, name, definer, sql_mode, statement)
        for schema, table, name, definer in rows
        for _, sql_mode, statement, *_ in _shown(session, schema, name)
    ]


def _shown(session: Session, schema: str, name: str) -> list[tuple[Any, ...]]:
    """Return the row of SHOW CREATE TRIGGER (name, ``sql_mode``, statement), or [] if none."""
    try:
        return session.query(f"SHOW CREATE TRIGGER {quoted(schema)}.{quoted(name)}")
    except StoreError as error:
        if error.code not in (_NO_SUCH_TRIGGER, _UNKNOWN_DATABASE):
            raise
        return []
