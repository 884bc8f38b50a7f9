"""How a reconcile's corrections are shown."""

from collections.abc import Iterable, Sequence
from typing import Final

import click

from countersink.backfill.listing import Drift
from countersink.cli import output

COLUMNS: Final = ("day", "bucket", "key", "had", "should_be", "delta")
SHOWN: Final = 20
"""Corrections in a table; the others are counted."""


def document(one: Drift) -> dict[str, object]:
    """A correction as JSON; ``bucket`` is as in the tables: of hours and quarters in UTC."""
    return {
        "day": one.day.isoformat(),
        # Its seconds are the number of a policy.
        "bucket": one.bucket.replace(second=0).isoformat(timespec="minutes"),
        "key": one.key,
        "had": one.had,
        "should_be": one.should_be,
        "delta": one.delta,
    }


def show(drift: Iterable[Drift], corrections: int, *, where: str) -> None:
    """The first of ``corrections`` for people; ``where`` all of them are to be had."""
    first: Sequence[Drift] = [one for one, _ in zip(drift, range(SHOWN), strict=False)]
    if not first:
        return
    timed = any(one.bucket.hour or one.bucket.minute for one in first)
    names = {"day": False, "key": False, "had": True, "should be": True, "delta": True}
    if timed:
        names = {"day": False, "bucket (UTC)": False} | names
    table = output.table(names)
    for one in first:
        cells = [str(one.day)]
        if timed:
            cells.append(f"{one.bucket:%Y-%m-%dT%H:%M}")
        cells += [output.cell(one.key), output.cell(one.had), output.cell(one.should_be)]
        table.add_row(*cells, f"{one.delta:+,}")
    output.write_table(table)
    if corrections > len(first):
        click.echo(f"and {corrections - len(first):,} more{where}")
