"""Holding a tracked table's counter against the table."""

from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

from countersink.store.buckets import label_text, label_time
from countersink.store.connection import Session
from countersink.store.errors import Conflict, Refused
from countersink.store.keys import key_text
from countersink.store.rerun import rerun
from countersink.store.tracked import triggers
from countersink.store.tracked.days import is_day
from countersink.store.tracked.definitions import TrackedTable, tracked_names
from countersink.store.tracked.recount import TABLE_CHANGED
from countersink.store.tracked.sums import Cell, differences
from countersink.store.tracked.tables import Table, read_table, require_columns

MOST: Final = 100
"""Cells of a table that are told one by one; the last one says how many more there are."""

RowProblem = Literal["row_count", "no_trigger", "no_table", "no_column", "not_counted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """Something that is wrong with a tracked table.

    Attributes:
        tracked: how the table is counted.
        problem: ``row_count``: counter and table differ; ``no_trigger``: a trigger is missing, or
            is not as it was made; ``no_table``: there is no such table, or it cannot be tracked any
            more; ``no_column``: a column that it is counted by is missing, or has become another
            one; ``not_counted``: its rows were never counted to the end.
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
    # Somebody may have untracked it while its triggers were looked at.
    return found if not found or tracked.counter in tracked_names(session) else []


def _check(session: Session, tracked: TrackedTable) -> list[RowDifference]:
    ((database,),) = session.query("SELECT DATABASE()")
    try:
        table = read_table(session, tracked.schema, tracked.table, database)
    except ValueError as error:
        return [RowDifference(tracked=tracked, problem="no_table", detail=f"{error}")]
    try:
        require_columns(table, tracked)
    except ValueError as error:
        return [RowDifference(tracked=tracked, problem="no_column", detail=f"{error}")]
    found = _triggers(session, tracked, table, database)
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
) -> list[RowDifference]:
    there = triggers.existing(session, tracked)
    should_be = triggers.wanted(tracked, table, database)
    found = []
    for trigger in triggers.split(there, should_be)[1]:
        now = next((each for each in there if each.name == trigger.name), None)
        if now is None:
            detail = f"the trigger {trigger.name} is missing"
        elif now.table != trigger.table:
            detail = f"the trigger {trigger.name} is on {now.table}, which was renamed"
        else:
            detail = f"the trigger {trigger.name} was changed, or a column that it goes by was"
        found.append(RowDifference(tracked=tracked, problem="no_trigger", detail=detail))
    return found


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
