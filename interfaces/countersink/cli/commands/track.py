"""``countersink track`` and ``untrack``: their flags, tables and texts, and the SQL that
``track --dry-run`` prints.

See ``row_counts/`` for the triggers and counts.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import COUNTER, NAME, TRACKED
from countersink.counting.counters.settings import DEFAULT_APP_SLOTS, MAX_APP_SLOTS
from countersink.row_counts.definitions import TrackedTable, in_words
from countersink.row_counts.lifecycle import Plan
from countersink.runtime.texts import plural


@click.command("track", cls=settings.Command)
@click.argument("table", type=NAME, required=False)
@settings.one_off(
    "--counter",
    type=COUNTER,
    help="The counter for the rows, which must be unused.  [default: the table's name]",
)
@settings.one_off(
    "--by", metavar="COLUMN", multiple=True, help="Count by the values of this column; repeatable."
)
@settings.one_off(
    "--day", metavar="COLUMN", help="Count by the date of this DATE, DATETIME or TIMESTAMP column."
)
@settings.one_off(
    "--slots",
    type=click.IntRange(1, MAX_APP_SLOTS),
    default=DEFAULT_APP_SLOTS,
    help="Number of slots: about the number of writers at once.",
)
@settings.one_off(
    "--dry-run", is_flag=True, help="Print the SQL of the triggers, and change nothing."
)
@settings.one_off("--list", "listing", is_flag=True, help="List the tracked tables.")
@settings.mysql_options("table", "json")
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
    either part in backquotes. Writers go on, with two exceptions: while a transaction uses the
    table, the creation of a trigger waits for it, a second at a time, and new statements wait
    behind it; and ALTER TABLE waits while the rows are counted. Avoid LOCK TABLES on a tracked
    table. If the command is interrupted, run it again. See docs/row-counts.md.
    """
    store = settings.open_store()
    if listing:
        if table is not None or counter or by or day or dry_run:
            raise Misuse("--list takes neither TABLE nor its options")
        tracked = store.tracked.list()
        document = {"tables": list(map(_document, tracked))}
        output.write_result(document, partial(_show_list, tracked))
        return
    if table is None:
        raise Misuse("give TABLE or --list")
    tracking: Any = {"counter": counter, "by": by, "day": day, "app_slots": slots}
    with values_checked():
        if dry_run:
            plan = store.tracked.plan(table, **tracking)
            output.write_result(_plan_document(plan), partial(_show_plan, plan))
            return
        with output.progress_of_rows(f"counting {table}") as show:
            made = store.tracked.track(table, **tracking, progress=show, notice=output.say)
    rows = store.row_count(made.counter)
    output.write_result(
        {**_document(made), "rows": rows}, f"tracking {_described(made)}: {plural(rows, 'row')}"
    )


@click.command("untrack", cls=settings.Command)
@click.argument("table_or_counter", type=TRACKED, metavar="[TABLE|COUNTER]", required=False)
@settings.one_off(
    "--counter", type=COUNTER, help="This counter, even if a table has the same name."
)
@settings.mysql_options("text", "json")
def untrack_command(table_or_counter: str | None, counter: str | None) -> None:
    """Stop counting a table's rows: drop the triggers and the counter.

    It drops only what track has made; the table stays as it is. If a table is tracked in several
    counters, name the counter. If the command is interrupted, run it again.
    """
    if (table_or_counter is None) == (counter is None):
        raise Misuse("give TABLE, COUNTER or --counter")
    store = settings.open_store()
    with values_checked():
        untracked = store.tracked.untrack(table_or_counter, counter=counter, notice=output.say)
    output.write_result(_document(untracked), f"no longer tracking {_described(untracked)}")


_MEMBERS: Final = ("counter", "table", "by", "day", "slots", "triggers", "created", "counted")


def _document(tracked: TrackedTable) -> dict[str, object]:
    """Return a tracked table as a JSON document."""
    return output.document(tracked, _MEMBERS, table=tracked.name, slots=tracked.app_slots)


def _described(tracked: TrackedTable) -> str:
    """Return a text that names a tracked table, the columns by which it is counted, and its
    counter."""
    return f"{output.display(tracked.name + in_words(tracked))} in the counter {tracked.counter}"


def _show_list(tracked: Sequence[TrackedTable]) -> None:
    """Print the tracked tables as a table; without any, print a sentence."""
    rows = []
    for one in tracked:
        row = _document(one)
        counted = row["counted"] or "not yet: run track again"
        rows.append(row | {"by": ", ".join(one.by) or None, "counted": counted})
    columns = ("counter", "table", "-by", "-day", "->slots", "counted")
    output.write_documents(columns, rows, otherwise="No table is tracked: countersink track TABLE")


def _plan_document(plan: Plan) -> dict[str, object]:
    """Return the plan of ``--dry-run`` as a JSON document."""
    made, names = plan.definition, ("counter", "table", "statements", "warnings", "reads")
    return output.document(plan, names, counter=made.counter, table=made.name)


def _show_plan(plan: Plan) -> None:
    """Print the SQL of the triggers in a plan, with the plan's warnings as comments. The SQL is
    only for reading: ``track`` does more, such as counting the rows."""
    click.echo(f"-- Triggers that count {_described(plan.definition)}.")
    click.echo("-- For reading: `countersink track` creates them, then counts the rows.")
    if plan.reads:
        click.echo(
            f"-- They read {output.display(', '.join(plan.reads))}: untrack before you drop or"
            " rename one of these."
        )
    for warning in plan.warnings:
        click.echo(f"-- {output.display(warning)}")
    click.echo("DELIMITER //$")
    for statement in plan.statements:
        click.echo(f"{statement} //$")
    click.echo("DELIMITER ;")
