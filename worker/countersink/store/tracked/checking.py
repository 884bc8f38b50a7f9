"""Holding a tracked table's counter against the table."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

from countersink.store.buckets import label_text, label_time
from countersink.store.connection import Session
from countersink.store.errors import Conflict, Refused
from countersink.store.keys import key_text
from countersink.store.rerun import rerun
from countersink.store.tracked import installed, privileges, triggers
from countersink.store.tracked.days import is_day
from countersink.store.tracked.definitions import TrackedTable
from countersink.store.tracked.installed import Found, HiddenTriggers
from countersink.store.tracked.recount import TABLE_CHANGED
from countersink.store.tracked.sums import Cell, differences
from countersink.store.tracked.tables import Table, read_table, require_columns

MOST: Final = 100
"""Cells of a table that are told one by one; the last one says how many more there are."""

RowProblem = Literal[
    "row_count",
    "no_trigger",
    "hidden_trigger",
    "stray_trigger",
    "no_definer",
    "no_table",
    "no_column",
    "not_counted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """Something that is wrong with a tracked table.

    Attributes:
        tracked: how the table is counted.
        problem: ``row_count``: counter and table differ; ``no_trigger``: a trigger is missing, or
            is not as it was made; ``hidden_trigger``: this user may not see whether they are right;
            ``stray_trigger``: a copy of the table in another database counts here, too;
            ``no_definer``: who they run as is gone or lacks rights, so that the application's
            writes fail; ``no_table``: there is no such table, or it cannot be tracked any
            more; ``no_column``: a column that it is counted by is missing, or has become another
            one; ``not_counted``: its rows were not counted to the end.
        day: the day of the rows; None where it is not about one.
        key: the key of the rows as text; None where it is not about one.
        in_counter: how many the counter says there are.
        in_table: how many there are.
        detail: a sentence for people.
    """

    tracked: TrackedTable
    problem: RowProblem
    detail: str
    day: date | None = None
    key: str | None = None
    in_counter: int = 0
    in_table: int = 0


def check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    """What is wrong with a tracked table; nothing, as long as nobody goes past its triggers.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        tracked: the table.

    Raises:
        Conflict: the table was altered again and again meanwhile.
        StoreError: as any query.
    """
    found = rerun(lambda: _check(session, tracked))
    return _not_in_work(session, tracked, found) if found else []


def _not_in_work(
    session: Session, tracked: TrackedTable, found: list[RowDifference]
) -> list[RowDifference]:
    """What is not just because somebody is tracking, repairing or untracking the table."""
    where = "FROM tracked_table WHERE counter = %s"
    try:
        there = session.query(
            f"SELECT triggers {where} FOR UPDATE NOWAIT",
            (tracked.counter,),
        )
        return found if there == [(tracked.triggers,)] else []
    except Conflict:
        in_work: set[RowProblem] = {"no_trigger", "not_counted"}
        if (None,) in session.query(f"SELECT counted {where}", (tracked.counter,)):
            in_work.add("row_count")  # the triggers are being changed, and it is counted then
        return [one for one in found if one.problem not in in_work]


def _check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    ((database,),) = session.query("SELECT DATABASE()")
    strays = _strays(session, tracked)
    try:
        table = read_table(session, tracked.schema, tracked.table, database)
    except ValueError as error:
        detail = f"{error}{installed.elsewhere(session, tracked)}"
        return [RowDifference(tracked=tracked, problem="no_table", detail=detail), *strays]
    try:
        require_columns(table, tracked)
    except ValueError as error:
        detail = f"{error}{_failing(session, tracked, table)}"
        return [RowDifference(tracked=tracked, problem="no_column", detail=detail), *strays]
    found = [*_triggers(session, tracked, table, database), *strays]
    if tracked.counted is None:
        detail = "its rows were not counted to the end: run track again, or verify with --repair"
        return [*found, RowDifference(tracked=tracked, problem="not_counted", detail=detail)]
    try:
        with session.transaction(snapshot=True):
            wrong, _ = differences(session, tracked, table)
            return found + _cells(session, tracked, wrong)
    except Refused as error:
        if error.code != TABLE_CHANGED:
            raise
        raise Conflict(f"{tracked.name} was truncated or altered meanwhile") from error


def _triggers(
    session: Session, tracked: TrackedTable, table: Table, database: str
) -> Iterator[RowDifference]:
    try:
        there = installed.existing(session, tracked)
    except HiddenTriggers as error:
        yield RowDifference(tracked=tracked, problem="hidden_trigger", detail=f"{error}")
        return
    should_be = triggers.wanted(tracked, table, database)
    for trigger in installed.split(there, should_be)[1]:
        now = next((each for each in there if each.name == trigger.name), None)
        detail = f"the trigger {trigger.name} {_difference(now, table)}"
        yield RowDifference(tracked=tracked, problem="no_trigger", detail=detail)
    for definer in sorted({trigger.definer for trigger in there}):
        trouble = privileges.trouble_of(session, definer, table.schema, table.name, database)
        if trouble is not None:
            detail = f"its triggers run as {definer}, and writes that fire them fail: {trouble}"
            yield RowDifference(tracked=tracked, problem="no_definer", detail=detail)


def _difference(now: Found | None, table: Table) -> str:
    """What is the matter with a trigger that is not as it should be."""
    if now is None:
        return "is missing"
    if now.table != table.name:
        return f"is on {now.table}, which was renamed"
    gone = _gone(now, table)
    if gone is not None:
        return f"goes by column {gone}, which is gone: writes that fire it fail"
    return "was changed, or a column that it goes by was"


def _gone(trigger: Found, table: Table) -> str | None:
    """A column that a trigger goes by and that the table has no more."""
    known = {name.casefold() for name in table.columns}
    return next((name for name in trigger.columns if name.casefold() not in known), None)


def _failing(session: Session, tracked: TrackedTable, table: Table) -> str:
    """What to add where a column is gone that triggers go by, in case they are there."""
    try:
        there = installed.existing(session, tracked)
    except HiddenTriggers:
        return ""
    if any(trigger.table == table.name and _gone(trigger, table) for trigger in there):
        return "; writes that fire its triggers fail: untrack it"
    return ""


def _strays(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    return [
        RowDifference(
            tracked=tracked,
            problem="stray_trigger",
            detail=f"the trigger {stray.name} on {stray.schema}.{stray.table}, a copy of the"
            " table, counts here, too",
        )
        for stray in installed.strays(session, tracked)
    ]


def _cells(session: Session, tracked: TrackedTable, wrong: dict[Cell, int]) -> list[RowDifference]:
    """The cells that differ, in order; of very many the first ones."""
    ordered = sorted(wrong.items())
    more = len(ordered) - MOST
    found = list[RowDifference]()
    for (label, key), difference in ordered[:MOST]:
        ((counted,),) = session.query(
            "SELECT COALESCE(SUM(amount), 0) FROM counter_slot FORCE INDEX (PRIMARY)"
            " WHERE counter = %s AND bucket = %s AND counter_key = %s",
            (tracked.counter, label_time(label), key),
        )
        rows = int(counted) + difference
        detail = f"{int(counted):,} counted, {rows:,} rows"
        if not is_day(label):
            detail += f"; the bucket {label_text(label)} is none that a trigger writes"
        if len(found) == MOST - 1 and more > 0:
            detail += f"; and {more:,} more days and keys like this"
        found.append(
            RowDifference(
                tracked=tracked,
                problem="row_count",
                detail=detail,
                day=label_time(label).date(),
                key=key_text(key),
                in_counter=int(counted),
                in_table=rows,
            )
        )
    return found
