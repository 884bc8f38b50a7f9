"""What ``countersink track`` and ``untrack`` show."""

from collections.abc import Sequence

import click

from countersink.cli import output
from countersink.store.tracked import Plan, TrackedTable
from countersink.store.tracked.names import in_words


def document(tracked: TrackedTable) -> dict[str, object]:
    """A tracked table as JSON."""
    return {
        "counter": tracked.counter,
        "table": tracked.name,
        "by": list(tracked.by),
        "day": tracked.day,
        "slots": tracked.app_slots,
        "triggers": tracked.triggers,
        "created": output.iso(tracked.created),
        "counted": output.iso(tracked.counted),
    }


def described(tracked: TrackedTable) -> str:
    """In words: which table, by what, in which counter."""
    return f"{output.cell(tracked.name + in_words(tracked))} in the counter {tracked.counter}"


def show_list(tracked: Sequence[TrackedTable]) -> None:
    """Tracked tables for people."""
    if not tracked:
        click.echo("No table is tracked: countersink track TABLE")
        return
    table = output.table(
        {
            "counter": False,
            "table": False,
            "by": False,
            "day": False,
            "slots": True,
            "counted": False,
        }
    )
    for one in tracked:
        table.add_row(
            one.counter,
            output.cell(one.name),
            output.cell(", ".join(one.by) or None),
            output.cell(one.day),
            output.cell(one.app_slots),
            output.iso(one.counted) or "not yet: run track again",
        )
    output.write_table(table)


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """What track would do; the SQL can be pasted into mysql or mariadb."""
    if as_json:
        output.write_json(
            {
                "counter": plan.definition.counter,
                "table": plan.definition.name,
                "statements": plan.statements,
                "warnings": plan.warnings,
                "reads": plan.reads,
            }
        )
        return
    click.echo(f"-- Triggers that count {described(plan.definition)}.")
    click.echo("-- To be read: `countersink track` makes its own, and then counts what is there.")
    if plan.reads:
        click.echo(
            f"-- They read {output.cell(', '.join(plan.reads))}: untrack before one of these is"
            " dropped or renamed."
        )
    for warning in plan.warnings:
        click.echo(f"-- {output.cell(warning)}")
    delimiter = "//"
    while any(delimiter in statement for statement in plan.statements):
        delimiter += "$"
    click.echo(f"DELIMITER {delimiter}")
    for statement in plan.statements:
        click.echo(f"{statement} {delimiter}")
    click.echo("DELIMITER ;")
