"""Steps of track, untrack and repair, and the plan of ``--dry-run``: what ``track`` alone refuses
(counters in use or with settings), warnings about foreign keys, partitions and missing primary
keys.

What is killed between two of them is found by the row of ``tracked_table``, which is the first
thing to come and the last to go: running track again goes on, and untrack tidies up. Whoever
changes triggers or counts holds that row; see :func:`countersink.row_counts.recount.turn`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex

from countersink.counting.apply.control import Control, bump, exclusive
from countersink.counting.counters.catalog import ZONE_STAYS
from countersink.counting.counters.deletion_sql import EVERYTHING, delete_rows
from countersink.counting.counters.settings import (
    check_app_slots,
    check_name,
    is_posted,
    is_used,
)
from countersink.counting.errors import UnknownCounter
from countersink.database.errors import Conflict, StoreError
from countersink.database.session import Connect, Session
from countersink.database.sql import quoted
from countersink.row_counts import definitions, recount, triggers
from countersink.row_counts.check import Progress
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.recount import Repaired
from countersink.row_counts.table import AppTable, read_table
from countersink.row_counts.triggers import InstalledTrigger, Notice, Trigger, change, changing


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table will be counted: definition, SQL statements, warnings.

    Attributes:
        definition: as it will be, or as it is, where it is tracked just so already.
        statements: the SQL that makes its triggers, in order.
        warnings: sentences on what makes the count wrong, so that a recount is needed.
        reads: the columns that they read: without one of them the application's writes fail, so
            untrack before one is dropped or renamed. On MariaDB the primary key is among them.
    """

    definition: TrackedTable
    statements: list[str]
    warnings: list[str]
    reads: list[str]


def make_plan(
    session: Session,
    database: str,
    table: str,
    counter: str | None,
    by: Sequence[str],
    day: str | None,
    app_slots: int,
) -> Plan:
    """Check what is asked for, and say what would be done.

    Raises:
        ValueError: it cannot be; says why, and what can.
        Refused: a right is missing; says what to grant.
    """
    schema, name = definitions.parse(table, database)
    if counter is None:
        counter = definitions.default_counter(table)
    if counter is None:
        raise ValueError(f"{table} cannot be the name of a counter: give one (--counter)")
    found = read_table(session, schema, name, database)
    # First: columns that this user may not see are not in the table.
    triggers.require_before(session, found.schema, found.name, database)
    columns, of_day = found.counted_by(by, day)
    wanted = TrackedTable(
        counter=check_name(counter),
        schema=found.schema,
        table=found.name,
        by=tuple(column.name for column in columns),
        day=None if of_day is None else of_day.name,
        app_slots=check_app_slots(app_slots),
        triggers=f"countersink_{token_hex(8)}",
        created=datetime.now(UTC),
        counted=None,
    )
    definition = same_or_free(session, wanted)
    reads = _reads(found, definition)
    with triggers.explaining(session, found.schema, found.name):
        read = ", ".join(map(quoted, reads)) or "1"
        session.query(f"SELECT {read} FROM {quoted(found.schema)}.{quoted(found.name)} LIMIT 0")
    return Plan(
        definition,
        [trigger.create for trigger in triggers.wanted(definition, found, database)],
        _warnings(found, definition),
        reads,
    )


def claim(session: Session, wanted: TrackedTable) -> bool:
    """Write the row of ``wanted``, unless it is there; whether it was written.

    From then on nobody but triggers may count this counter.

    Raises:
        ValueError: the counter is something else by now.
        Conflict: others were in the way all the time.
    """

    def work(_: Control) -> bool:
        if same_or_free(session, wanted, lock=" FOR UPDATE") is not wanted:
            return False
        # What is left of a deleted counter: rows of a table are counted by UTC day.
        session.execute(
            "DELETE FROM counter WHERE name = %s AND created IS NULL", (wanted.counter,)
        )
        definitions.insert(session, wanted)
        bump(session)
        return True

    return exclusive(session, work)


def count(
    connect: Connect, database: str, counter: str, progress: Progress, notice: Notice
) -> Repaired:
    """Make the triggers that are missing, then count.

    Raises:
        UnknownCounter: nothing is tracked as ``counter``.
        ValueError: the table cannot be tracked any more, as a column is gone.
        Conflict: others were in the way all the time; or the table was truncated or altered
            while it was counted.
        Refused: a right is missing.
    """
    with recount.turn(connect, counter) as (session, tracked):
        with changing(connect) as changer:
            recount.same_server(session, changer)
            table, changes = _look(changer, tracked, database)
            if changes:
                tracked = recount.uncounted(session, tracked)
                table, changes = _look(changer, tracked, database)
            for trigger in changes:
                change(changer, trigger, notice)
        made = sum(isinstance(trigger, Trigger) for trigger in changes)
        done = recount.recount(session, connect, tracked, table, progress)
        return replace(done, triggers=made)


def forget(connect: Connect, tracked: TrackedTable, notice: Notice) -> None:
    """Drop the triggers, delete the counter, and at last the row of ``tracked``.

    Raises:
        Conflict: others were in the way all the time; run it again.
    """
    try:
        with (
            recount.turn(connect, tracked.counter) as (held, there),
            changing(connect) as changer,
        ):
            recount.same_server(held, changer)
            drop = _all(changer, there)
            recount.uncounted(held, there)
            for trigger in drop:
                change(changer, trigger, notice)
            with connect() as session:
                recount.same_server(held, session)
                recount.empty(session, tracked.counter)
    except UnknownCounter:
        return  # somebody else has just done it
    with connect() as session:
        if not exclusive(session, partial(_let_go, session, tracked)):
            raise Conflict(
                f"somebody else is counting the rows of {tracked.name}: run this again later"
            )


def withdraw(connect: Connect, tracked: TrackedTable) -> None:
    """Undo :func:`claim` where no trigger was made. Never raises a StoreError."""
    # Else the row stays, which list shows and untrack deletes.
    with suppress(StoreError), connect() as session:
        exclusive(session, partial(_let_go, session, tracked))


def same_or_free(session: Session, wanted: TrackedTable, lock: str = "") -> TrackedTable:
    """What is tracked just so already, or else ``wanted``, whose counter nobody has used.

    Raises:
        ValueError: the counter is something else already.
    """
    counter = wanted.counter
    there = definitions.read(session, counter)
    if there is not None:
        same = replace(
            wanted, triggers=there.triggers, created=there.created, counted=there.counted
        )
        if there == same:
            return there
        raise ValueError(
            f"{counter} tracks {there.name}{definitions.in_words(there)} on {there.app_slots} slots"
            " already: untrack that first, or give another counter (--counter)"
        )
    if is_used(session, counter) or (lock and is_posted(session, counter)):
        raise ValueError(
            f"{counter} is a counter that has been counted already: give another one (--counter),"
            f" or delete it first (`countersink counter delete {counter}`)"
        )
    # Locked, as whoever is about to count it in a transaction of his own writes this row first.
    settings = session.query(
        "SELECT created IS NOT NULL AND (time_zone <> 'UTC' OR resolution <> 'day'"
        " OR keep_steps IS NOT NULL OR dimensions IS NOT NULL),"
        f" zone_fixed > {ZONE_STAYS}"
        f" FROM counter WHERE name = %s{lock}",
        (counter,),
    )
    for has_settings, may_be_counted in settings:
        if has_settings:
            raise ValueError(
                f"{counter} has a time zone, resolution, keep or dimensions of its own, which a"
                " tracked table cannot have: give another counter (--counter), or delete it first"
                f" (`countersink counter delete {counter}`)"
            )
        if may_be_counted:
            raise ValueError(
                f"{counter} was counted by an application, or deleted, a moment ago: run this again"
                " in ten minutes, or give another counter (--counter)"
            )
    return wanted


def _reads(table: AppTable, tracked: TrackedTable) -> list[str]:
    """The columns that the triggers read."""
    names = [*tracked.by, *([] if tracked.day is None else [tracked.day])]
    if names and table.updates_ignored:
        names += [column.name for column in table.primary_key if column.name not in names]
    return names


def _warnings(table: AppTable, tracked: TrackedTable) -> list[str]:
    again = f"then run `countersink verify {table.schema}.{table.name} --repair`"
    found = [f"{each}; {again}" for each in table.untriggered]
    if table.updates_ignored and not table.primary_key and _reads(table, tracked):
        found.append(
            "it has no primary key, so rows that an UPDATE IGNORE leaves as they were are counted"
            f" as if it had changed them; {again}"
        )
    return found


def _let_go(session: Session, tracked: TrackedTable, _: Control) -> bool:
    """Delete the row if nothing is left behind it; whether it is gone."""
    there = definitions.read(session, tracked.counter, " FOR UPDATE")
    # While the row is locked nobody makes triggers for it, nor counts.
    if there is None or there.triggers != tracked.triggers:
        return True
    if triggers.existing(session, tracked):
        return False
    delete_rows(session, "counter = %s", (tracked.counter,), EVERYTHING)
    for table in ("counter_ledger", "tracked_table"):
        session.execute(f"DELETE FROM {table} WHERE counter = %s", (tracked.counter,))
    bump(session)
    return True


def _all(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    return [*triggers.existing(session, tracked), *triggers.strays(session, tracked)]


def _look(
    session: Session, tracked: TrackedTable, database: str
) -> tuple[AppTable, list[Trigger | InstalledTrigger]]:
    """The table, and which triggers to drop, then to make, so that all run as this user."""
    table = read_table(session, tracked.schema, tracked.table, database)
    table.counted_by(tracked.by, tracked.day)
    triggers.require_before(session, table.schema, table.name, database)
    ((user,),) = session.query("SELECT CURRENT_USER()")
    should_be = triggers.wanted(tracked, table, database)
    drop, make = triggers.split(_all(session, tracked), should_be, user)
    return table, [*drop, *make]
