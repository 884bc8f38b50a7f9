"""What ``countersink track`` and ``untrack`` show."""

from collections.abc import Sequence

import click

from countersink.cli import output
from countersink.store.tracked import Plan, TrackedTable


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
    by = f" by {', '.join(tracked.by)}" if tracked.by else ""
    day = f" by day of {tracked.day}" if tracked.day is not None else ""
    return f"{output.cell(tracked.name)}{output.cell(by + day)} in the counter {tracked.counter}"


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
    output.console().print(table)


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """What track would do; the SQL can be pasted into mysql or mariadb."""
    if as_json:
        output.write_json(
            {
                "counter": plan.definition.counter,
                "table": plan.definition.name,
                "statements": plan.statements,
                "warnings": plan.warnings,
            }
        )
        return
    click.echo(f"-- Triggers that count {described(plan.definition)}.")
    click.echo("-- To be read: `countersink track` makes its own, and then counts what is there.")
    for warning in plan.warnings:
        click.echo(f"-- {output.cell(warning)}")
    delimiter = "//"
    while any(delimiter in statement for statement in plan.statements):
        delimiter += "$"
    click.echo(f"DELIMITER {delimiter}")
    for statement in plan.statements:
        click.echo(f"{statement} {delimiter}")
    click.echo("DELIMITER ;")
