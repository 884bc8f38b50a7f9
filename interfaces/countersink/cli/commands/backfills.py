"""``countersink backfills list``, ``show`` and ``undo``: their flags, and the tables and JSON of
past runs, rejected lines and drift.

See ``backfill/undo.py`` for the undo and its errors.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from countersink.backfill import history
from countersink.backfill.history import Run, RunSource
from countersink.backfill.options import Drift
from countersink.backfill.undo import Undone, undo
from countersink.cli import output, settings
from countersink.cli.errors import Exit, Failure, Misuse
from countersink.cli.output import stopped_by_signals
from countersink.cli.values import COUNTER, RUN
from countersink.database.session import Session
from countersink.runtime.texts import iso, plural


@click.group("backfills", cls=settings.CommandGroup)
def command() -> None:
    """List, show and undo backfills.

    RUN is the number that backfill and backfills list print. A run is running (also if its process
    died: the next backfill of the source goes on with it), done, stopped, failed, deleted (with its
    counter), undoing or undone.
    """


@command.command("list", cls=settings.Command)
@settings.one_off("--counter", type=COUNTER, help="Only backfills of this counter.")
@settings.mysql_options("table", "json")
def list_command(counter: str | None) -> None:
    """List backfills, newest first."""
    opened = settings.open_tables()
    runs = history.runs(opened, counter)
    output.write_result({"runs": list(map(_document, runs))}, partial(_show_list, runs))


@command.command("show", cls=settings.Command)
@click.argument("run", type=RUN)
@settings.one_off("--rejects", is_flag=True, help="List the first rejected lines.")
@settings.one_off("--drift", is_flag=True, help="List what a reconcile corrected.")
@settings.mysql_options("table", "json", "csv")
def show_command(run: int, rejects: bool, drift: bool) -> None:
    """Show a backfill: its state, options, sources and numbers of lines.

    --rejects and --drift print these lists instead; the list of --drift is complete in JSON and
    CSV.
    """
    if rejects and drift:
        raise Misuse("give --rejects or --drift, not both")
    if settings.option_value("format") == "csv" and not (rejects or drift):
        raise Misuse("--format csv is for --rejects or --drift")
    opened = settings.open_tables()
    found = history.run(opened, run)
    if rejects:
        _show_rejects(opened, found)
    elif drift:
        _show_drift(opened, found)
    else:
        sources = history.sources_of(opened, run)
        document = _document(found) | {"read": list(map(_source_document, sources))}
        output.write_result(document, partial(_show_one, found, sources))


def _show_rejects(opened: Session, run: Run) -> None:
    rows = [asdict(one) for one in history.rejects(opened, run.id)]
    more = history.rejects_of(opened, run.id) - len(rows)
    document = {"run": run.id, "rejects": rows, "more": more}
    output.write_result(document, partial(_show_rejected, rows, more), csv=(REJECTED, rows))


def _show_drift(opened: Session, run: Run) -> None:
    if run.mode != "reconcile":
        raise Failure(f"run {run.id} has --mode add; only a reconcile corrects totals")
    drift = history.drift(opened, run.id)
    rows = map(drift_document, drift)
    people: str | Callable[[], None] = "Nothing differed."
    if run.corrections:
        people = partial(show_drift, drift, run.corrections, where=": --format csv has all")
    output.write_result({"run": run.id}, people, csv=(DRIFT_COLUMNS, rows), last=("drift", rows))


@command.command("undo", cls=settings.Command)
@click.argument("runs", metavar="RUN...|--last", type=RUN, nargs=-1)
@settings.one_off("--last", is_flag=True, help="Undo the newest run.")
@settings.mysql_options("text", "json")
def undo_command(runs: tuple[int, ...], last: bool) -> int:
    """Undo exactly what a backfill added or corrected.

    Other counts stay, even if rows were compacted or rolled up. If the command is interrupted, run
    it again. Afterwards, the source may be counted again. Later runs that went on in the same
    source must be undone in the same command: give their numbers, too.
    """
    if last is bool(runs):
        raise Misuse("give one RUN or more, or --last")
    if last and not (runs := tuple(run.id for run in history.runs(settings.open_tables())[:1])):
        raise Failure("there are no backfills")
    url = settings.mysql_url()
    with stopped_by_signals() as stop, output.progress_bar("undoing") as show:
        done = undo(
            url,
            *runs,
            on_progress=lambda done, n: show(done / max(n, 1), f"{done:,} of {plural(n, 'chunk')}"),
            stop=stop,
        )
    for notice in done.notices:
        click.echo(f"countersink backfills: {output.display(notice)}", err=True)
    output.write_result(asdict(done), _undone_sentence(done))
    if done.state != "undone":
        click.echo("countersink backfills: stopped: run it again, and it goes on", err=True)
        return stop.status or Exit.FAILED
    return Exit.DONE


REJECTED: Final = ("source", "line", "reason", "text")
FIGURES: Final = ("lines", "counted", "filtered", "rejected", "amount")
"""Members with numbers that a run has, and also each of its sources."""
HEADINGS: Final = ("->lines", ">counted", "->filtered", ">rejected", "->amount")
"""These, as headings of a table."""
_RUN: Final = (
    *("run", "counter", "mode", "state", "started", "seen", "ended", "holder", "bytes"),
    *(*FIGURES, "corrections", "error", "options", "sources"),
)
_SOURCE: Final = ("source", "name", "chunks", "bytes", *FIGURES)


def _document(run: Run) -> dict[str, Any]:
    """Return a run of a backfill as a JSON document."""
    options = json.loads(run.recipe.to_json())
    return output.document(run, _RUN, run=run.id, bytes=run.size_bytes, options=options)


def _source_document(one: RunSource) -> dict[str, Any]:
    """Return a source of a run as a JSON document."""
    return output.document(one, _SOURCE, source=one.path, bytes=one.size_bytes)


def _show_list(runs: Sequence[Run]) -> None:
    """Print runs as a table."""
    columns = (
        *(">run", "counter", "mode", "state", "-started"),
        *("->lines", "->rejected", ">amount", "->corrections", "-sources"),
    )
    rows = [
        _document(run)
        | {
            "run": str(run.id),
            "started": iso(run.started, "seconds"),
            "corrections": run.corrections if run.mode == "reconcile" else None,
            "sources": output.first_names(run.sources, 1),
        }
        for run in runs
    ]
    output.write_documents(columns, rows, otherwise="There are no backfills.")


def _show_one(run: Run, sources: Sequence[RunSource]) -> None:
    """Print a run and its sources as text."""
    facts: dict[str, object] = {
        "run": str(run.id),
        "counter": run.counter,
        "mode": run.mode,
        "state": run.state,
        "began": f"{iso(run.started, 'seconds')}, in {run.holder}",
        "last seen": iso(run.seen, "seconds"),
        **output.document(run, FIGURES),
    }
    if run.mode == "reconcile":
        facts["corrections"] = run.corrections
    facts["options"] = run.recipe.described()
    facts["sources"] = ", ".join(run.sources)
    if run.error:
        facts["error"] = run.error
    output.write_facts(facts)
    if sources:
        click.echo()
        _show_sources(sources)


def _show_sources(sources: Sequence[RunSource]) -> None:
    names = ("source", *FIGURES, "chunks")
    rows = [
        output.document(one, names, source=f"{one.path} ({one.name})" if one.name else one.path)
        for one in sources
    ]
    output.write_documents(("source", *HEADINGS, "->chunks"), rows)


def _show_rejected(rejected: Sequence[output.Document], more: int) -> None:
    """Print rejected lines. ``more`` is the number of further rejected lines; it is printed at the
    end if it is not 0. If no line was rejected, print that."""
    for row in rejected:
        source, reason, text = (output.display(row[name]) for name in ("source", "reason", "text"))
        click.echo(f"{source} line {row['line']}: {reason}: {text}")
    if more or not rejected:
        others = plural(more, "more line was", "more lines were")
        click.echo(f"{others} rejected." if more else "No line was rejected.")


def _undone_sentence(done: Undone) -> str:
    """Return the result of an undo, which may have been stopped before its end, as a sentence."""
    several = len(done.runs) > 1
    runs = f"{'runs' if several else 'run'} {', '.join(map(str, done.runs))}"
    if done.state != "undone":
        return f"{runs}: undone in part, {done.amount:+,} so far"
    return (
        f"{runs} {'are' if several else 'is'} undone: {done.counter} changed by {done.amount:+,},"
        f" in {plural(done.cells, 'row')} of {plural(done.chunks, 'chunk')}"
    )


DRIFT_COLUMNS: Final = ("day", "bucket", "width", "key", "had", "should_be", "delta")
DRIFT_SHOWN: Final = 20
"""Most corrections that a table shows; below it is the number of the others."""


def drift_document(one: Drift) -> dict[str, object]:
    """Return a correction as a JSON document. Its member ``bucket`` is the beginning of the
    corrected bucket, without a time zone: in UTC, as in the database, or, for the bucket of a day,
    the day at 00:00."""
    bucket = one.bucket.isoformat(timespec="minutes")
    return output.document(one, DRIFT_COLUMNS, bucket=bucket)


def show_drift(drift: Iterable[Drift], corrections: int, *, where: str) -> None:
    """Print the first corrections of a reconcile, at most ``DRIFT_SHOWN``, as a table; if ``drift``
    is empty, print nothing. ``corrections`` is the number of all. If the table does not show all,
    print the number of the others, followed by ``where``: a text that says how to list all, or
    ``''``."""
    first: Sequence[Drift] = [one for one, _ in zip(drift, range(DRIFT_SHOWN), strict=False)]
    if not first:
        return
    timed = any(one.width != "day" for one in first)
    rows = []
    for one in first:
        bucket = [f"{one.bucket:%Y-%m-%dT%H:%M}", one.width] if timed else []
        rows.append((one.day, *bucket, one.key, one.had, one.should_be, f"{one.delta:+,}"))
    columns = ["bucket (UTC)", "width"] if timed else []
    output.write_rows(("day", *columns, "~key", ">had", ">should be", ">delta"), rows)
    if corrections > len(first):
        click.echo(f"and {corrections - len(first):,} more{where}")
