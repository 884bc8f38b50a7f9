"""What ``countersink verify`` shows: what was looked at, what differs, what was mended."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from countersink.cli import output
from countersink.store.tracked import Repaired
from countersink.store.tracked.checking import RowDifference
from countersink.store.verify import Difference, Verified


@dataclass(frozen=True, slots=True)
class Mending:
    """What became of the tracked tables that something was wrong with.

    Attributes:
        found: what was wrong with any of them, before.
        repaired: what was done.
        failed: counters that could not be repaired, and why.
    """

    found: Verified
    repaired: Sequence[Repaired]
    failed: dict[str, str]


def write(done: Verified, mending: Mending | None = None) -> None:
    """The result as one JSON document; after mending the differences are those that remain."""
    document: dict[str, object] = {
        "counters": done.counters,
        "rows": done.rows,
        "tables": done.tables,
        "differences": _documents(done),
    }
    if mending is not None:
        document["found"] = _documents(mending.found)
        document["repaired"] = [_repaired(one) for one in mending.repaired]
        document["failed"] = mending.failed
    output.write_json(document)


def _documents(done: Verified) -> list[dict[str, object]]:
    return [_of_counter(one) for one in done.differences] + [
        _of_table(one) for one in done.row_differences
    ]


def _of_counter(one: Difference) -> dict[str, object]:
    return {
        "counter": one.counter,
        "problem": one.problem,
        "in_tables": one.in_tables,
        "in_ledger": one.in_ledger,
        "difference": one.difference,
        "detail": one.detail,
    }


def _of_table(one: RowDifference) -> dict[str, object]:
    return {
        "counter": one.tracked.counter,
        "table": one.tracked.name,
        "problem": one.problem,
        "day": None if one.day is None else str(one.day),
        "key": one.key,
        "in_counter": one.in_counter,
        "in_table": one.in_table,
        "difference": one.in_counter - one.in_table,
        "detail": one.detail,
    }


def _repaired(one: Repaired) -> dict[str, object]:
    return {
        "counter": one.tracked.counter,
        "table": one.tracked.name,
        "rows": one.rows,
        "triggers": one.triggers,
        "corrected": one.cells,
        "difference": one.difference,
    }


def show(done: Verified, mending: Mending | None = None) -> None:
    """The result for people."""
    if mending is not None:
        _show_mending(mending)
    looked_at = _looked_at(done)
    if done.agrees:
        click.echo(f"All agree: {looked_at}.")
        return
    _show_differences(done)
    differences = len(done.differences) + len(done.row_differences)
    click.echo(f"{differences:,} differences; looked at {looked_at}.")


def _looked_at(done: Verified) -> str:
    tables = f", {done.tables:,} tracked tables" if done.tables else ""
    return f"{done.counters:,} counters with {done.rows:,} rows{tables}"


def _show_differences(done: Verified) -> None:
    if done.differences:
        table = output.table(
            {
                "counter": False,
                "in tables": True,
                "in ledger": True,
                "difference": True,
                "what": False,
            }
        )
        for one in done.differences:
            table.add_row(
                one.counter,
                output.cell(one.in_tables),
                output.cell(one.in_ledger),
                f"{one.difference:+,}",
                one.detail,
            )
        output.write_table(table)
    if done.row_differences:
        table = output.table(
            {
                "table": False,
                "counter": False,
                "day": False,
                "key": False,
                "counted": True,
                "rows": True,
                "what": False,
            }
        )
        for each in done.row_differences:
            counts = each.problem == "row_count"
            table.add_row(
                output.cell(each.tracked.name),
                each.tracked.counter,
                output.cell(each.day if each.tracked.day else None),
                output.cell(each.key if each.tracked.by else None),
                output.cell(each.in_counter if counts else None),
                output.cell(each.in_table if counts else None),
                output.cell(_beside_figures(each)),
            )
        output.write_table(table)


def _beside_figures(one: RowDifference) -> str:
    """The sentence, without the figures that stand before it."""
    return one.detail.partition("; ")[2] if one.problem == "row_count" else one.detail


def _show_mending(mending: Mending) -> None:
    _show_differences(mending.found)
    for one in mending.repaired:
        done = f"{one.cells:,} counts corrected, by {one.difference:+,} rows in all"
        if one.triggers:
            done = f"{one.triggers:,} triggers made, {done}"
        click.echo(f"Repaired {output.cell(one.tracked.name)} ({one.tracked.counter}): {done}.")
    for counter, reason in mending.failed.items():
        click.echo(f"Not repaired: {counter}: {reason}")
