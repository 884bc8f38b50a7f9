"""The steps of track, untrack and repair.

What is killed between two of them is found by the row of ``tracked_table``, which is the first
thing to come and the last to go: running track again goes on, and untrack tidies up. Whoever
changes triggers or counts holds that row; see :func:`countersink.store.tracked.recount.turn`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from countersink.store import fence
from countersink.store.connection import Connect, Session
from countersink.store.control import Control
from countersink.store.counter_writes import bump
from countersink.store.deletion_sql import TABLES, delete_rows
from countersink.store.errors import Conflict, StoreError, UnknownCounter
from countersink.store.tracked import definitions, installed, privileges, triggers
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.emptying import EVERYTHING, empty
from countersink.store.tracked.installed import Found
from countersink.store.tracked.patience import Notice, change, changing
from countersink.store.tracked.planning import same_or_free
from countersink.store.tracked.recount import Counted, TableChanged, recount, turn, uncounted
from countersink.store.tracked.sums import Progress
from countersink.store.tracked.tables import Table, read_table, require_columns
from countersink.store.tracked.triggers import Trigger

_ATTEMPTS: Final = 3


def claim(session: Session, wanted: TrackedTable) -> bool:
    """Write the row of ``wanted``, unless it is there; whether it was written.

    From then on nobody but triggers may count this counter.

    Raises:
        ValueError: the counter is something else by now.
        Conflict: others were in the way all the time.
    """

    def work(_: Control) -> bool:
        if same_or_free(session, wanted) is not wanted:
            return False
        definitions.insert(session, wanted)
        bump(session)
        return True

    return fence.alone(session, wanted.counter, work)


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
                    table, drop, make = _look(changer, tracked, database)
                    if drop or make:
                        tracked = uncounted(session, tracked)
                        table, drop, make = _look(changer, tracked, database)
                    _change(changer, tracked, drop, make, notice)
                return tracked, len(make), recount(session, connect, tracked, table, progress)
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
            with turn(connect, tracked.counter) as (held, there), changing(connect) as changer:
                drop = _all(changer, there)
                uncounted(held, there)
                _change(changer, there, drop, (), notice)
                with connect() as session:
                    empty(session, tracked.counter)
        except UnknownCounter:
            return  # somebody else has just done it
        with connect() as session:
            if fence.alone(session, tracked.counter, partial(_let_go, session, tracked)):
                return
    raise Conflict(
        f"somebody else is counting the rows of {tracked.name} all the time: run this again later"
    )


def withdraw(connect: Connect, tracked: TrackedTable) -> None:
    """Undo :func:`claim` where no trigger was made. Never raises a StoreError."""
    try:
        with connect() as session:
            fence.alone(session, tracked.counter, partial(_let_go, session, tracked))
    except StoreError:
        return  # the row stays, which list shows and untrack deletes


def _let_go(session: Session, tracked: TrackedTable, _: Control) -> bool:
    """Delete the row if nothing is left behind it; whether it is gone."""
    there = definitions.read_locked(session, tracked.counter)
    # While the row is locked nobody makes triggers for it, nor counts.
    if there is None or there.triggers != tracked.triggers:
        return True
    if installed.existing(session, tracked):
        return False
    for table in TABLES:
        delete_rows(session, table, "counter = %s", (tracked.counter,), EVERYTHING)
    session.execute("DELETE FROM counter_ledger WHERE counter = %s", (tracked.counter,))
    definitions.delete(session, tracked.counter)
    bump(session)
    return True


def _all(session: Session, tracked: TrackedTable) -> list[Found]:
    return [*installed.existing(session, tracked), *installed.strays(session, tracked)]


def _look(
    session: Session, tracked: TrackedTable, database: str
) -> tuple[Table, list[Found], list[Trigger]]:
    """The table, and which triggers to drop and to make so that all run as this user."""
    try:
        table = read_table(session, tracked.schema, tracked.table, database)
    except ValueError as error:
        raise ValueError(f"{error}{installed.elsewhere(session, tracked)}") from error
    require_columns(table, tracked)
    privileges.require_before(session, table.schema, table.name, database)
    ((user,),) = session.query("SELECT CURRENT_USER()")
    should_be = triggers.wanted(tracked, table, database)
    return table, *installed.split(_all(session, tracked), should_be, user)


def _change(
    session: Session,
    tracked: TrackedTable,
    drop: Sequence[Found],
    make: Sequence[Trigger],
    notice: Notice,
) -> None:
    try:
        for trigger in drop:
            place = trigger.schema, trigger.table
            change(session, trigger.drop, ".".join(place), notice=notice)
        place = tracked.schema, tracked.table
        for each in make:
            change(session, each.create, tracked.name, notice=notice)
    except StoreError as error:
        explained = privileges.explained(error, session, *place)
        if explained is error:
            raise
        raise explained from error
