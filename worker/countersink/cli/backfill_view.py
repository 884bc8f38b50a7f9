"""What ``countersink backfill`` shows when it has ended."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from countersink.backfill.listing import Drift
from countersink.backfill.options import Report, SourceReport
from countersink.cli import drift_view, output


def write(report: Report, drift: Iterable[Drift]) -> None:
    """The result as one JSON document; of a reconcile with all that was corrected."""
    document: dict[str, Any] = {
        "run": report.run,
        "counter": report.counter,
        "mode": report.mode,
        "state": report.state,
        "lines": report.lines,
        "counted": report.counted,
        "filtered": report.filtered,
        "rejected": report.rejected,
        "amount": report.amount,
        "known_lines": report.known_lines,
        "corrections": report.corrections,
        "by_day": [{"day": day, "amount": amount} for day, amount in report.by_day],
        "notices": list(report.notices),
        "sources": [asdict(one) for one in report.sources],
    }
    output.write_json_list(document, "drift", (drift_view.document(one) for one in drift))


def show(report: Report, drift: Iterable[Drift], *, dry_run: bool) -> None:
    """The result for people."""
    if report.sources:
        _show_sources(report)
    if report.by_day:
        click.echo()
        table = output.table({"day": False, "would be added": True})
        for day, amount in report.by_day:
            table.add_row(output.cell(day), output.cell(amount))
        output.write_table(table)
    if report.corrections:
        click.echo()
        where = "" if report.run is None else f": {_show_command(report.run)} --drift"
        drift_view.show(drift, report.corrections, where=where)
    click.echo()
    click.echo(_sentence(report, dry_run))


def _show_sources(report: Report) -> None:
    columns = {
        "source": False,
        "outcome": False,
        "lines": True,
        "counted": True,
        "filtered": True,
        "rejected": True,
        "amount": True,
        "what": False,
    }
    table = output.table(columns)
    for one in report.sources:
        # What went wrong is on stderr, in a sentence that is too long for a table.
        detail = "" if one.outcome == "failed" else one.detail
        table.add_row(*_cells(one.source, one.outcome, one, detail))
    if len(report.sources) > 1:
        table.add_row(*_cells("all", "", report, ""))
    output.write_table(table)


def _cells(name: str, outcome: str, figures: SourceReport | Report, detail: str) -> list[str]:
    numbers = (figures.lines, figures.counted, figures.filtered, figures.rejected, figures.amount)
    return [output.cell(name), outcome, *map(output.cell, numbers), output.cell(detail)]


def _sentence(report: Report, would: bool) -> str:
    known = f" {report.known_lines:,} lines had been counted before." if report.known_lines else ""
    if report.mode == "reconcile":
        verb = "would correct" if would else "corrected"
        said = f"{verb} {report.corrections:,} totals, by {report.amount:+,} in all."
    else:
        said = f"{'would add' if would else 'added'} {report.amount:,}."
    said = f"{report.counter}: {said}{known}"
    if report.run is not None and (report.amount or report.corrections):
        said += f" Run {report.run}: countersink backfills undo {report.run} takes it back."
    return said


def _show_command(run: int) -> str:
    return f"countersink backfills show {run}"
