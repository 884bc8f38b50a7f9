"""The steps of track, untrack and repair.

What is killed between two of them is found by the row of ``tracked_table``, which is the first
thing to come and the last to go: running track again goes on, and untrack tidies up. Whoever
changes triggers or counts holds that row; see :func:`countersink.store.tracked.recount.turn`.
"""

from functools import partial
from typing import Final

from countersink.store import fence
from countersink.store.connection import Connect, Session
from countersink.store.control import Control, exclusive
from countersink.store.counter_writes import bump
from countersink.store.deletion_sql import TABLES, delete_rows
from countersink.store.errors import Conflict, StoreError, UnknownCounter
from countersink.store.tracked import definitions, privileges, triggers
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.emptying import EVERYTHING, empty
from countersink.store.tracked.patience import Notice, change, changing
from countersink.store.tracked.planning import same_or_free
from countersink.store.tracked.recount import Counted, TableChanged, recount, turn
from countersink.store.tracked.sums import Progress
from countersink.store.tracked.tables import Table, read_table, require_columns

_ATTEMPTS: Final = 3


def claim(session: Session, wanted: TrackedTable) -> bool:
    """Write the row of ``wanted``, unless it is there; whether it was written.

    From then on nobody but triggers may count this counter.

    Raises:
        ValueError: the counter is something else by now.
        Conflict: others were in the way all the time.
    """

    def work(_: Control) -> bool:
        fence.lower(session, wanted.counter)
        if same_or_free(session, wanted) is not wanted:
            return False
        definitions.insert(session, wanted)
        bump(session)
        return True

    return exclusive(session, work)


def count(
    connect: Connect, database: str, counter: str, progress: Progress, notice: Notice
) -> tuple[TrackedTable, int, Counted]:
    """Make the triggers that are missing, then count; also how many triggers were made.

    Raises:
        UnknownCounter: nothing is tracked as ``counter``.
        ValueError: the table cannot be tracked any more, as a column is gone.
        Conflict: others were in the way all the time.
        Refused: a right is missing.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with turn(connect, counter) as (session, tracked):
                with changing(connect) as changer:
                    table = read_table(changer, tracked.schema, tracked.table, database)
                    require_columns(table, tracked)
                    made = _put_right(changer, tracked, table, database, notice)
                return tracked, made, recount(session, connect, tracked, table, progress)
        except TableChanged as error:
            if attempt == _ATTEMPTS:
                raise
            notice(f"{error}; counting anew")
    raise AssertionError("there is at least one attempt")


def forget(connect: Connect, tracked: TrackedTable, notice: Notice) -> None:
    """Drop the triggers, delete the counter, and at last the row of ``tracked``.

    Raises:
        Conflict: others were in the way all the time; run it again.
    """
    for _ in range(_ATTEMPTS):
        try:
            with turn(connect, tracked.counter), changing(connect) as changer:
                for trigger in triggers.existing(changer, tracked):
                    change(changer, trigger.drop, tracked.name, notice=notice)
                with connect() as session:
                    empty(session, tracked.counter)
        except UnknownCounter:
            return  # somebody else has just done it
        with connect() as session:
            if exclusive(session, partial(_let_go, session, tracked)):
                return
    raise Conflict(
        f"somebody else is counting the rows of {tracked.name} all the time: run this again later"
    )


def withdraw(connect: Connect, tracked: TrackedTable) -> None:
    """Undo :func:`claim` where no trigger was made. Never raises a StoreError."""
    try:
        with connect() as session:
            exclusive(session, partial(_let_go, session, tracked))
    except StoreError:
        return  # the row stays, which list shows and untrack deletes


def _let_go(session: Session, tracked: TrackedTable, _: Control) -> bool:
    """Delete the row if nothing is left behind it; whether it is gone."""
    fence.lower(session, tracked.counter)
    there = definitions.read_locked(session, tracked.counter)
    # While the row is locked nobody makes triggers for it, nor counts.
    if there is None or there.triggers != tracked.triggers:
        return True
    if triggers.existing(session, tracked):
        return False
    for table in TABLES:
        delete_rows(session, table, "counter = %s", (tracked.counter,), EVERYTHING)
    session.execute("DELETE FROM counter_ledger WHERE counter = %s", (tracked.counter,))
    definitions.delete(session, tracked.counter)
    bump(session)
    return True


def _put_right(
    session: Session, tracked: TrackedTable, table: Table, database: str, notice: Notice
) -> int:
    """Drop the triggers that are not as they should be, make those that are missing; how many."""
    there = triggers.existing(session, tracked)
    drop, make = triggers.split(there, triggers.wanted(tracked, table, database))
    for stray in drop:
        change(session, stray.drop, f"{stray.schema}.{stray.table}", notice=notice)
    for trigger in make:
        try:
            change(session, trigger.create, tracked.name, notice=notice)
        except StoreError as error:
            explained = privileges.explained(error, session, table.schema, table.name)
            if explained is error:
                raise
            raise explained from error
    return len(make)
