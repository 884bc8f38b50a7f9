"""The steps to track, untrack and repair a table, and the plan for ``--dry-run`` with its checks
and warnings.

``track`` first inserts the table's row of ``tracked_table``, and ``untrack`` deletes this row last.
So after an interruption, ``track`` can continue, and ``untrack`` can remove the rest. Every process
that changes triggers or counts rows locks this row: see
:func:`countersink.row_counts.recount.locked`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex

from countersink.counting.apply.guards import BUILT_IN, Control, bump, exclusive
from countersink.counting.counters.all_counters import ZONE_STAYS, insert_rows, is_posted, is_used
from countersink.counting.counters.deletion_sql import EVERYTHING, delete_rows
from countersink.counting.counters.settings import check_app_slots, check_name
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
from countersink.runtime.texts import plural


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan to track a table.

    Attributes:
        definition: the table as it will be tracked, or as it is tracked already.
        statements: the SQL that creates its triggers, in order, even if they exist already.
        warnings: sentences, each about a kind of change that the triggers do not count correctly,
            such as the deletion of rows by a foreign key. After such a change, a recount is needed.
        reads: the columns that the triggers read: those of the key and the day, and on MariaDB also
            those of the primary key. Empty if the table is tracked without key and day columns. If
            one of these columns is dropped or renamed, the application's writes fail, so untrack
            the table before that.
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
    """Check whether a table can be tracked, and return the plan to do so. Change nothing.

    Args:
        session: a session outside a transaction.
        database: name of countersink's database.
        table: the table: ``name`` (in countersink's database) or ``schema.name``.
        counter: the counter for the rows; None for the counter that has the name ``table``.
        by: names of the columns whose values make the key, in this order.
        day: name of the column whose date is a row's day; None if there is none.
        app_slots: number of slots that the triggers use.

    Raises:
        ValueError: the table cannot be tracked in this way. The message says why, and what can be
            done.
        Refused: the user lacks a right. The message has the GRANT statement.
    """
    schema, name = definitions.parse(table, database)
    if counter is None:
        counter = definitions.default_counter(table)
    if counter is None:
        raise ValueError(f"{table} is no valid counter name: give a counter (--counter)")
    found = read_table(session, schema, name, database)
    # Before the columns are used: without rights some of them are invisible.
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
        [each.create for each in triggers.expected_triggers(definition, found, database)],
        _warnings(found, definition),
        reads,
    )


def claim(session: Session, wanted: TrackedTable) -> bool:
    """Insert the row of ``tracked_table`` for ``wanted``, and the row of its counter in ``counter``
    if that is missing, as the first step of ``track``. Return True. If the table is tracked in this
    counter already, in the same way, change nothing and return False. Once the row exists, only
    triggers may count in the counter: neither workers nor transactions of applications.

    Raises:
        ValueError: as raised by :func:`same_or_free`.
        Conflict: each attempt conflicted with another transaction.
    """

    def work(_: Control) -> bool:
        if same_or_free(session, wanted, lock=" FOR UPDATE") is not wanted:
            return False
        # Without a row it would have the default settings.
        insert_rows(session, [wanted.counter], BUILT_IN)
        # The time zone of a deleted counter goes: rows of tables are counted by UTC day. Its row
        # stays, as numbers of breakdowns are not used again.
        session.execute(
            "UPDATE counter SET time_zone = %s, resolution = %s, keep_steps = %s,"
            " counted_minute = NULL, counted_quarter = NULL, counted_hour = NULL,"
            " counted_day = NULL WHERE name = %s AND created IS NULL",
            (*BUILT_IN, wanted.counter),
        )
        definitions.insert(session, wanted)
        bump(session)
        return True

    return exclusive(session, work)


def count(
    connect: Connect, database: str, counter: str, progress: Progress, notice: Notice
) -> Repaired:
    """Drop the wrong triggers of a tracked table (such as changed ones, or those with another
    user's rights) and create the missing ones. Then count its rows and correct its counter.
    ``track`` and ``repair`` call this. Return what was repaired. In the result, ``tracked`` is the
    tracked table as it was before the rows were counted.

    Args:
        connect: opens a session at REPEATABLE READ.
        database: name of countersink's database.
        counter: the counter of the tracked table.
        progress: called with the number of rows counted so far, and an estimate of all rows.
        notice: called with a sentence before each pause, while a transaction uses the table.

    Raises:
        UnknownCounter: ``counter`` has no tracked table.
        ValueError: the table cannot be tracked any more, such as after a column was dropped.
        Conflict: a transaction went on using the table, or another process is counting it, or the
            table was truncated or altered meanwhile.
        Refused: the user lacks a right.
    """
    with recount.locked(connect, counter) as (session, tracked):
        with changing(connect) as changer:
            recount.require_same_server(session, changer)
            table, changes = _needed_changes(changer, tracked, database)
            if changes:
                tracked = recount.mark_uncounted(session, tracked)
                table, changes = _needed_changes(changer, tracked, database)
            for trigger in changes:
                change(changer, trigger, notice)
        made = sum(isinstance(trigger, Trigger) for trigger in changes)
        done = recount.recount(session, connect, tracked, table, progress)
        return replace(done, triggers=made)


def untrack(connect: Connect, tracked: TrackedTable, notice: Notice) -> None:
    """Drop the triggers of a tracked table, then delete the counts of its counter, then its row of
    ``tracked_table``. The counter's row in ``counter`` is deleted with it, unless the counter was
    created explicitly or once had breakdowns. It is no error if another process has done a part of
    this already.

    Args:
        connect: opens a session at REPEATABLE READ.
        tracked: the tracked table.
        notice: called with a sentence before each pause, while a transaction uses the table.

    Raises:
        Conflict: a transaction went on using the table, or another process is counting it. Run this
            again.
    """
    try:
        with (
            recount.locked(connect, tracked.counter) as (holder, current),
            changing(connect) as changer,
        ):
            recount.require_same_server(holder, changer)
            drop = _all_triggers(changer, current)
            recount.mark_uncounted(holder, current)
            for trigger in drop:
                change(changer, trigger, notice)
            with connect() as session:
                recount.require_same_server(holder, session)
                recount.delete_all_rows(session, tracked.counter)
    except UnknownCounter:
        return  # another process has just done it
    with connect() as session:
        if not exclusive(session, partial(_delete_unused, session, tracked)):
            raise Conflict(
                f"another process is counting the rows of {tracked.name}: run this again later"
            )


def undo_claim(connect: Connect, tracked: TrackedTable) -> None:
    """Undo :func:`claim` after ``track`` failed, unless the table has triggers by now. A StoreError
    is not raised: the row then stays, and ``untrack`` can delete it.

    Args:
        connect: opens a session at REPEATABLE READ.
        tracked: the tracked table that :func:`claim` has inserted.
    """
    # After an error the row stays; list shows it, and untrack deletes it.
    with suppress(StoreError), connect() as session:
        exclusive(session, partial(_delete_unused, session, tracked))


def same_or_free(session: Session, wanted: TrackedTable, lock: str = "") -> TrackedTable:
    """Return ``wanted`` if its counter is unused. If its table is already tracked in this counter,
    with the same columns and slots, return the stored tracked table instead.

    Args:
        session: a session.
        wanted: the table as it is to be tracked.
        lock: `` FOR UPDATE`` to lock the counter's row of the table ``counter``, and to look into
            the ledger, too, before the table is tracked; empty to do neither, for a plan.

    Raises:
        ValueError: the counter has counts, or tracks another table or the same table in another
            way. Or an application's transaction used it, or it was deleted, within the last ten
            minutes. Or it has settings that the counter of a table cannot have.
    """
    counter = wanted.counter
    current = definitions.read(session, counter)
    if current is not None:
        same = replace(
            wanted, triggers=current.triggers, created=current.created, counted=current.counted
        )
        if current == same:
            return current
        raise ValueError(
            f"{counter} tracks {current.name}{definitions.in_words(current)} on"
            f" {plural(current.app_slots, 'slot')} already: untrack that first, or give another"
            " counter (--counter)"
        )
    if is_used(session, counter) or (lock and is_posted(session, counter)):
        raise ValueError(
            f"the counter {counter} has counts already: give another counter (--counter), or delete"
            f" it first (`countersink counter delete {counter}`)"
        )
    # Locked, as an application's transaction that is about to count writes this row first.
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
                f"the counter {counter} has a time zone, resolution, keep or dimensions, which the"
                " counter of a table cannot have: give another counter (--counter), or delete it"
                f" first (`countersink counter delete {counter}`)"
            )
        if may_be_counted:
            raise ValueError(
                f"the counter {counter} was used by an application, or deleted, within the last ten"
                " minutes: run this again ten minutes later, or give another counter (--counter)"
            )
    return wanted


def _reads(table: AppTable, tracked: TrackedTable) -> list[str]:
    """Return the names of the columns that the triggers of a tracked table read: see
    :attr:`Plan.reads`.
    """
    names = [*tracked.by, *([] if tracked.day is None else [tracked.day])]
    if names and table.updates_ignored:
        names += [column.name for column in table.primary_key if column.name not in names]
    return names


def _warnings(table: AppTable, tracked: TrackedTable) -> list[str]:
    again = f"then run `countersink verify {table.schema}.{table.name} --repair`"
    found = [f"{each}; {again}" for each in table.untriggered]
    if table.updates_ignored and not table.primary_key and _reads(table, tracked):
        found.append(
            "the table has no primary key, so rows that an UPDATE IGNORE leaves unchanged are"
            f" counted as changed; {again}"
        )
    return found


def _delete_unused(session: Session, tracked: TrackedTable, _: Control) -> bool:
    """Delete the row of a tracked table, and all counts of its counter, if the table has none of
    its triggers. If it has one of them, delete nothing and return False. Otherwise return True,
    even if the row was deleted before. The last argument, the control row, is not used.

    The counter's row in ``counter`` is deleted, too, unless the counter was created explicitly or
    once had breakdowns.
    """
    current = definitions.read(session, tracked.counter, " FOR UPDATE")
    # While the row is locked, no process creates triggers or counts.
    if current is None or current.triggers != tracked.triggers:
        return True
    if triggers.installed_triggers(session, tracked):
        return False
    delete_rows(session, "counter = %s", (tracked.counter,), EVERYTHING)
    for table in ("counter_ledger", "tracked_table"):
        session.execute(f"DELETE FROM {table} WHERE counter = %s", (tracked.counter,))
    session.execute(
        "DELETE FROM counter WHERE name = %s AND created IS NULL AND last_breakdown IS NULL",
        (tracked.counter,),
    )
    bump(session)
    return True


def _all_triggers(session: Session, tracked: TrackedTable) -> list[InstalledTrigger]:
    return triggers.installed_triggers(session, tracked) + triggers.stray_triggers(session, tracked)


def _needed_changes(
    session: Session, tracked: TrackedTable, database: str
) -> tuple[AppTable, list[Trigger | InstalledTrigger]]:
    """Read the application's table, and check that it can still be tracked. Return the table, and a
    list of triggers to change, in this order. First, to be dropped: the installed triggers (also on
    copies of the table in other databases) that match no expected trigger, or run with another
    user's rights. Then, to be created: the expected triggers that no installed one matches.

    Args:
        session: a session of the user with whose rights the triggers must run.
        tracked: the tracked table.
        database: name of countersink's database.

    Raises:
        ValueError: the table cannot be tracked any more.
        Refused: the user lacks a right.
    """
    table = read_table(session, tracked.schema, tracked.table, database)
    table.counted_by(tracked.by, tracked.day)
    triggers.require_before(session, table.schema, table.name, database)
    ((user,),) = session.query("SELECT CURRENT_USER()")
    expected = triggers.expected_triggers(tracked, table, database)
    drop, create = triggers.needed_changes(_all_triggers(session, tracked), expected, user)
    return table, [*drop, *create]
