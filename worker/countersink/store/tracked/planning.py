"""What tracking a table would do, checked as far as can be without changing anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex

from countersink.store.connection import Session
from countersink.store.counter_reads import is_used
from countersink.store.errors import Refused
from countersink.store.names import quoted
from countersink.store.policy_changes import check_app_slots, check_name
from countersink.store.tracked import privileges, triggers
from countersink.store.tracked.definitions import TrackedTable, read_all
from countersink.store.tracked.names import default_counter, in_words, parse
from countersink.store.tracked.tables import Table, read_table


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table will be counted.

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
        TypeError, ValueError: it cannot be; says why, and what can.
        Refused: a right is missing; says what to grant.
    """
    if isinstance(by, str):
        raise TypeError("by is a sequence of str, one for each column")
    if counter is None:
        counter = default_counter(table)
        if counter is None:
            parse(table, database)
            raise ValueError(f"{table} cannot be the name of a counter: give one (--counter)")
    found = read_table(session, *parse(table, database), database)
    # First: columns that this user may not see are not in the table.
    privileges.require_before(session, found.schema, found.name, database)
    columns = found.by_columns(by)
    wanted = TrackedTable(
        counter=check_name(counter),
        schema=found.schema,
        table=found.name,
        by=tuple(column.name for column in columns),
        day=None if day is None else found.day_column(day).name,
        app_slots=check_app_slots(app_slots),
        triggers=f"countersink_{token_hex(8)}",
        created=datetime.now(UTC),
        counted=None,
    )
    definition = same_or_free(session, wanted)
    _require_readable(session, found, definition)
    return Plan(
        definition,
        [trigger.create for trigger in triggers.wanted(definition, found, database)],
        _warnings(found, definition),
        _reads(found, definition),
    )


def same_or_free(session: Session, wanted: TrackedTable) -> TrackedTable:
    """What is tracked just so already, or else ``wanted``, whose counter nobody has used.

    Raises:
        ValueError: the counter is something else already.
    """
    counter = wanted.counter
    for there in read_all(session):
        if there.counter != counter:
            continue
        if (
            replace(there, triggers=wanted.triggers, created=wanted.created, counted=wanted.counted)
            == wanted
        ):
            return there
        raise ValueError(
            f"{counter} tracks {there.name}{in_words(there)} on {there.app_slots} slots already:"
            " untrack that first, or give another counter (--counter)"
        )
    if is_used(session, counter):
        raise ValueError(
            f"{counter} is a counter that has been counted already: give another one (--counter),"
            f" or delete it first (`countersink counter delete {counter}`)"
        )
    settings = session.query(
        "SELECT 1 FROM counter_policy WHERE counter = %s"
        " UNION SELECT 1 FROM counter WHERE name = %s AND keep_days IS NOT NULL",
        (counter, counter),
    )
    if settings:
        raise ValueError(
            f"{counter} has a time zone, resolution or keep_days of its own, which a tracked table"
            " cannot have: give another counter (--counter), or delete it first"
            f" (`countersink counter delete {counter}`)"
        )
    return wanted


def _reads(table: Table, tracked: TrackedTable) -> list[str]:
    """The columns that the triggers read."""
    names = [*tracked.by, *([] if tracked.day is None else [tracked.day])]
    if names and table.updates_ignored:
        names += [column.name for column in table.primary_key if column.name not in names]
    return names


def _require_readable(session: Session, table: Table, tracked: TrackedTable) -> None:
    """Check that this user, whose the triggers will be, may read the columns that they read."""
    names = _reads(table, tracked)
    columns = ", ".join(map(quoted, names)) or "1"
    try:
        session.query(f"SELECT {columns} FROM {quoted(table.schema)}.{quoted(table.name)} LIMIT 0")
    except Refused as error:
        raise privileges.explained(error, session, table.schema, table.name) from error


def _warnings(table: Table, tracked: TrackedTable) -> list[str]:
    recount = f"then run `countersink verify {table.schema}.{table.name} --repair`"
    found = [
        f"{cascade}: what it deletes or changes fires no trigger; {recount}"
        for cascade in table.cascades
    ]
    if table.partitioned:
        found.append(f"dropping or truncating a partition fires no trigger; {recount}")
    if table.updates_ignored and not table.primary_key and _reads(table, tracked):
        found.append(
            "it has no primary key, so rows that an UPDATE IGNORE leaves as they were are counted"
            f" as if it had changed them; {recount}"
        )
    return found
