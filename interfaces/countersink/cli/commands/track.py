"""``countersink track`` and ``untrack``: flags, tables and texts, and how ``--dry-run`` prints SQL;
the work is in ``row_counts/``."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Misuse, values_checked
from countersink.cli.settings import COUNTER, NAME
from countersink.counting.counters.settings import DEFAULT_APP_SLOTS, MAX_APP_SLOTS
from countersink.row_counts.definitions import TrackedTable, in_words
from countersink.row_counts.lifecycle import Plan


@click.command("track", cls=settings.Command)
@click.argument("table", type=NAME, required=False)
@settings.one_off(
    "--counter",
    type=COUNTER,
    help="The counter to count in, which must be unused.  [default: the table's name]",
)
@settings.one_off(
    "--by",
    metavar="COLUMN",
    multiple=True,
    help="Count by the values of this column; repeatable.",
)
@settings.one_off(
    "--day", metavar="COLUMN", help="Count by the date of this DATE, DATETIME or TIMESTAMP column."
)
@settings.one_off(
    "--slots",
    type=click.IntRange(1, MAX_APP_SLOTS),
    default=DEFAULT_APP_SLOTS,
    help="Number of slots for writers: about as many as write at once.",
)
@settings.one_off(
    "--dry-run", is_flag=True, help="Print the SQL that would run, and change nothing."
)
@settings.one_off("--list", "listing", is_flag=True, help="List the tracked tables.")
@settings.of_mysql("table", "json")
def track_command(
    table: str | None,
    counter: str | None,
    by: tuple[str, ...],
    day: str | None,
    slots: int,
    dry_run: bool,
    listing: bool,
) -> None:
    """Keep a table's row count up to date with triggers.

    TABLE is a table of the application: name (in the database of countersink), schema.name, or
    either part in backquotes. Writers go on. But if a transaction uses the table, making a trigger
    waits for it, a second at a time, and statements that come meanwhile wait behind; and ALTER
    TABLE waits while the rows are counted. Avoid LOCK TABLES on a tracked table. If the command is
    interrupted, run it again. See docs/row-counts.md.
    """
    store = settings.open_store()
    if listing:
        if table is not None or counter or by or day or dry_run:
            raise Misuse("--list takes no table, nor options of one")
        tracked = store.tracked.list()
        document = {"tables": list(map(_document, tracked))}
        output.write_result(document, partial(_show_list, tracked))
        return
    if table is None:
        raise Misuse("name a table, or give --list")
    how: Any = {"counter": counter, "by": by, "day": day, "app_slots": slots}
    with values_checked():
        if dry_run:
            plan = store.tracked.plan(table, **how)
            output.write_result(_plan_document(plan), partial(_show_plan, plan))
            return
        with output.progress_of_rows(f"counting {table}") as shown:
            made = store.tracked.track(table, **how, progress=shown, notice=output.say)
    rows = store.row_count(made.counter)
    output.write_result(
        {**_document(made), "rows": rows}, f"tracking {_described(made)}: {rows:,} rows"
    )


@click.command("untrack", cls=settings.Command)
@click.argument("table_or_counter", type=NAME, metavar="[TABLE|COUNTER]", required=False)
@settings.one_off(
    "--counter", type=COUNTER, help="This counter, even if a table has the same name."
)
@settings.of_mysql("text", "json")
def untrack_command(table_or_counter: str | None, counter: str | None) -> None:
    """Stop counting a table's rows: drop the triggers and the counter.

    It drops exactly what track has made; the table stays as it is. If a table is tracked in several
    counters, name the counter. If the command is interrupted, run it again.
    """
    if (table_or_counter is None) == (counter is None):
        raise Misuse("name a table or a counter, or give --counter")
    store = settings.open_store()
    with values_checked():
        gone = store.tracked.untrack(table_or_counter, counter=counter, notice=output.say)
    output.write_result(_document(gone), f"tracking no more: {_described(gone)}")


_MEMBERS: Final = ("counter", "table", "by", "day", "slots", "triggers", "created", "counted")


def _document(tracked: TrackedTable) -> dict[str, object]:
    """A tracked table as JSON."""
    return output.document(tracked, _MEMBERS, table=tracked.name, slots=tracked.app_slots)


def _described(tracked: TrackedTable) -> str:
    """In words: which table, by what, in which counter."""
    return f"{output.cell(tracked.name + in_words(tracked))} in the counter {tracked.counter}"


def _show_list(tracked: Sequence[TrackedTable]) -> None:
    """Tracked tables for people."""
    rows = []
    for one in tracked:
        row = _document(one)
        counted = row["counted"] or "not yet: run track again"
        rows.append(row | {"by": ", ".join(one.by) or None, "counted": counted})
    columns = ("counter", "table", "by", "day", ">slots", "counted")
    output.write_documents(columns, rows, otherwise="No table is tracked: countersink track TABLE")


def _plan_document(plan: Plan) -> dict[str, object]:
    """What track would do, as JSON."""
    made, names = plan.definition, ("counter", "table", "statements", "warnings", "reads")
    return output.document(plan, names, counter=made.counter, table=made.name)


def _show_plan(plan: Plan) -> None:
    """What track would do; the SQL can be pasted into mysql or mariadb."""
    click.echo(f"-- Triggers that count {_described(plan.definition)}.")
    click.echo("-- To be read: `countersink track` makes its own, and then counts what is there.")
    if plan.reads:
        click.echo(
            f"-- They read {output.cell(', '.join(plan.reads))}: untrack before one of these is"
            " dropped or renamed."
        )
    for warning in plan.warnings:
        click.echo(f"-- {output.cell(warning)}")
    click.echo("DELIMITER //$")
    for statement in plan.statements:
        click.echo(f"{statement} //$")
    click.echo("DELIMITER ;")
