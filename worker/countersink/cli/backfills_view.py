"""What ``countersink backfills`` shows of runs."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from countersink.backfill.listing import RejectedLine, Run, RunSource
from countersink.backfill.undo import Undone
from countersink.cli import output

REJECTED: Final = ("source", "line", "reason", "text")


def document(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "run": run.id,
        "counter": run.counter,
        "mode": run.mode,
        "state": run.state,
        "started": _moment(run.started),
        "seen": _moment(run.seen),
        "ended": _moment(run.ended),
        "holder": run.holder,
        "bytes": run.size_bytes,
        "lines": run.lines,
        "counted": run.counted,
        "filtered": run.filtered,
        "rejected": run.rejected,
        "amount": run.amount,
        "corrections": run.corrections,
        "error": run.error,
        "options": json.loads(run.recipe.to_json()),
        "sources": list(run.sources),
    }


def source_document(one: RunSource) -> dict[str, Any]:
    """What a run read of a source, as JSON."""
    return {
        "source": one.path,
        "name": one.name,
        "chunks": one.chunks,
        "pending": one.pending,
        "undone": one.undone,
        "bytes": one.size_bytes,
        "lines": one.lines,
        "counted": one.counted,
        "filtered": one.filtered,
        "rejected": one.rejected,
        "amount": one.amount,
    }


def rejected_document(one: RejectedLine) -> dict[str, Any]:
    """A rejected line as JSON; bytes that are no UTF-8 are escaped."""
    return {
        "source": one.source,
        "line": one.line,
        "reason": one.reason,
        "text": one.text.decode("utf-8", "backslashreplace"),
    }


def show_list(runs: Sequence[Run]) -> None:
    """Runs for people."""
    if not runs:
        click.echo("There was no backfill so far.")
        return
    columns = {
        "run": True,
        "counter": False,
        "mode": False,
        "state": False,
        "started": False,
        "lines": True,
        "rejected": True,
        "amount": True,
        "corrections": True,
        "sources": False,
    }
    table = output.table(columns)
    for run in runs:
        corrections = run.corrections if run.mode == "reconcile" else None
        table.add_row(
            str(run.id),
            run.counter,
            run.mode,
            run.state,
            f"{run.started:%Y-%m-%dT%H:%M:%S}Z",
            *map(output.cell, (run.lines, run.rejected, run.amount, corrections)),
            output.cell(_few(run.sources)),
        )
    output.write_table(table)


def show_one(run: Run, sources: Sequence[RunSource]) -> None:
    """A run for people, and what it read."""
    table = output.table({"what": False, "value": False})
    table.show_header = False
    facts: dict[str, object] = {
        "run": str(run.id),
        "counter": run.counter,
        "mode": run.mode,
        "state": run.state,
        "began": f"{run.started:%Y-%m-%dT%H:%M:%S}Z, in {run.holder}",
        "last seen": f"{run.seen:%Y-%m-%dT%H:%M:%S}Z",
        "lines": run.lines,
        "counted": run.counted,
        "filtered": run.filtered,
        "rejected": run.rejected,
        "amount": run.amount,
    }
    if run.mode == "reconcile":
        facts["corrections"] = run.corrections
    facts["options"] = run.recipe.described()
    facts["sources"] = ", ".join(run.sources)
    if run.error:
        facts["error"] = run.error
    for name, value in facts.items():
        table.add_row(name, output.cell(value))
    output.write_table(table)
    if sources:
        click.echo()
        _show_sources(sources)


def _show_sources(sources: Sequence[RunSource]) -> None:
    numbers = ("lines", "counted", "filtered", "rejected", "amount", "chunks", "pending", "undone")
    columns = {"source": False, **dict.fromkeys(numbers, True)}
    table = output.table(columns)
    for one in sources:
        name = f"{one.path} ({one.name})" if one.name else one.path
        row = source_document(one)
        table.add_row(output.cell(name), *(output.cell(row[number]) for number in numbers))
    output.write_table(table)


def show_rejected(rejected: Iterable[RejectedLine]) -> None:
    """Rejected lines for people: one after the other, for they may be many."""
    any_there = False
    for one in rejected:
        any_there = True
        text = output.cell(one.text.decode("utf-8", "backslashreplace"))
        click.echo(f"{output.cell(one.source)} line {one.line}: {output.cell(one.reason)}: {text}")
    if not any_there:
        click.echo("No line was rejected.")


def undone_sentence(done: Undone) -> str:
    """What taking back did."""
    if done.state != "undone":
        return f"run {done.run}: taken back in part, {done.amount:+,} so far"
    return (
        f"run {done.run} is taken back: {done.counter} changed by {done.amount:+,},"
        f" in {done.cells:,} rows of {done.chunks:,} chunks"
    )


def _few(sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1:,} more"


def _moment(moment: datetime | None) -> str | None:
    return output.iso(None if moment is None else moment.replace(tzinfo=UTC))
