"""How ``countersink sequence`` shows sequences."""

from collections.abc import Sequence as Many
from typing import Final

import click

from countersink.cli import output
from countersink.store.sequences.views import Period, Sequence

COLUMNS: Final = (
    "sequence",
    "value",
    "period_start",
    "updated_at",
    "start",
    "step",
    "minimum",
    "maximum",
    "cycle",
    "period",
    "time_zone",
)
"""Of a sequence, in JSON and CSV."""
PERIOD_COLUMNS: Final = ("period_start", "value", "updated_at")
"""Of a period, in JSON and CSV."""


def document(sequence: Sequence) -> output.Row:
    """A sequence as JSON: ``COLUMNS``; null for what it has not."""
    options = sequence.options
    return {
        "sequence": sequence.name,
        "value": sequence.value,
        "period_start": None if sequence.period_start is None else str(sequence.period_start),
        "updated_at": output.iso(sequence.updated_at),
        "start": options.start,
        "step": options.step,
        "minimum": options.minimum,
        "maximum": options.maximum,
        "cycle": options.cycle,
        "period": options.period,
        "time_zone": options.time_zone,
    }


def period_document(period: Period) -> output.Row:
    """A period as JSON: ``PERIOD_COLUMNS``; no start where the sequence has no periods."""
    return {
        "period_start": None if period.start is None else str(period.start),
        "value": period.value,
        "updated_at": output.iso(period.updated_at),
    }


def print_one(sequence: Sequence) -> None:
    """A sequence's settings, for people."""
    options = sequence.options
    table = output.table({"setting": False, "value": False})
    table.show_header = False
    for name, value in (
        ("sequence", sequence.name),
        ("value", sequence.value),
        ("start", "the step" if options.start is None else options.start),
        ("step", options.step),
        ("minimum", options.minimum),
        ("maximum", options.maximum),
        ("at the end", "begins again" if options.cycle else "fails"),
        ("period", options.period),
        ("time zone", options.time_zone),
    ):
        table.add_row(name, output.cell(value))
    output.write_table(table)


def print_list(sequences: Many[Sequence]) -> None:
    """Sequences for people, one line each."""
    if not sequences:
        click.echo("There are no sequences.")
        return
    table = output.table(
        {"sequence": False, "value": True, "period": False, "updated at": False, "settings": False}
    )
    for sequence in sequences:
        table.add_row(
            output.cell(sequence.name),
            output.cell(sequence.value),
            output.cell(sequence.period_start),
            output.cell(output.iso(sequence.updated_at)),
            _settings(sequence),
        )
    output.write_table(table)


def print_periods(rows: Many[output.Row], total: int) -> None:
    """Periods for people, one line each, and their sum."""
    table = output.table({"period": False, "value": True, "updated at": False})
    for row in rows:
        table.add_row(
            "all time" if row["period_start"] is None else output.cell(row["period_start"]),
            output.cell(row["value"]),
            output.cell(row["updated_at"]),
        )
    if len(rows) > 1:
        table.add_row("all", output.cell(total), "")
    output.write_table(table)


def _settings(sequence: Sequence) -> str:
    """What is not as it is of a sequence that nobody has configured."""
    options = sequence.options
    said = []
    if options.start is not None:
        said.append(f"start {options.start:,}")
    if options.step != 1:
        said.append(f"step {options.step:,}")
    if options.minimum is not None:
        said.append(f"minimum {options.minimum:,}")
    if options.maximum is not None:
        said.append(f"maximum {options.maximum:,}")
    if options.cycle:
        said.append("cycle")
    if options.period != "none":
        said.append(f"by {options.period} in {options.time_zone}")
    return ", ".join(said)


def print_reset(last: dict[str, int | None], format: str) -> None:
    """Print which sequences were reset, with their last values; nothing if none was."""
    if format == "json":
        if last:
            count = sum(value is not None for value in last.values())
            output.write_json({"reset": count, "last_values": last})
        return
    for name, value in last.items():
        click.echo(
            f"{shown(name)} had no value"
            if value is None
            else f"reset {shown(name)}, which was at {value}"
        )


def shown(name: str) -> str:
    """A name in a sentence."""
    return output.cell(name) or repr(name)
