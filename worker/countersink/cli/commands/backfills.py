"""``countersink backfills list|show|undo``."""

from dataclasses import asdict

import click

from countersink.backfill import listing
from countersink.backfill.listing import Run
from countersink.backfill.options import BackfillError
from countersink.backfill.undo import undo
from countersink.cli import backfills_view, drift_view, exits, output, progress, settings
from countersink.cli.database import session
from countersink.cli.failures import Failure, Misuse
from countersink.cli.stopping import stopped_by_signals
from countersink.cli.types import COUNTER
from countersink.store.connection import Session

RUN = click.IntRange(1)


@click.group("backfills", cls=settings.Group)
def command() -> None:
    """List backfills, show what they did, take one back.

    RUN is the number that backfill prints and list shows. A run is running (also when its process
    died: the next backfill of the same source goes on), done, stopped, failed, undoing or undone.
    """


@command.command("list", cls=settings.Command)
@settings.one_off("--counter", type=COUNTER, metavar="COUNTER", help="Only of this counter.")
@settings.output_format("table", "json")
@settings.mysql_url
def list_command(counter: str | None, format: str, mysql_url: str | None) -> None:
    """List backfills, the last one first."""
    with session(mysql_url) as opened:
        runs = listing.runs(opened, counter)
    if format == "json":
        output.write_json({"runs": [backfills_view.document(run) for run in runs]})
    else:
        backfills_view.show_list(runs)


@command.command("show", cls=settings.Command)
@click.argument("run", type=RUN)
@settings.one_off("--rejects", is_flag=True, help="The lines that it could not count.")
@settings.one_off("--drift", is_flag=True, help="What it corrected, of a reconcile.")
@settings.output_format("table", "json", "csv")
@settings.mysql_url
def show_command(run: int, rejects: bool, drift: bool, format: str, mysql_url: str | None) -> None:
    """Show a backfill: what it read, and what came of it.

    With --rejects or --drift it is the list of these, whole in JSON and CSV.
    """
    if rejects and drift:
        raise Misuse("give --rejects or --drift, not both", click.get_current_context())
    if format == "csv" and not (rejects or drift):
        raise Misuse("--format csv is for --rejects or --drift", click.get_current_context())
    with session(mysql_url) as opened:
        found = _found(opened, run)
        if rejects:
            _show_rejects(opened, found, format)
        elif drift:
            _show_drift(opened, found, format)
        else:
            sources = listing.sources_of(opened, run)
            if format == "json":
                read = [backfills_view.source_document(one) for one in sources]
                output.write_json({**backfills_view.document(found), "read": read})
            else:
                backfills_view.show_one(found, sources)


def _found(opened: Session, run: int) -> Run:
    try:
        return listing.run(opened, run)
    except BackfillError as error:
        raise Failure(str(error)) from error


def _show_rejects(opened: Session, run: Run, format: str) -> None:
    rejected = listing.rejects(opened, run.id)
    rows = (backfills_view.rejected_document(one) for one in rejected)
    if format == "json":
        output.write_json_list({"run": run.id}, "rejects", rows)
    elif format == "csv":
        output.write_csv(backfills_view.REJECTED, rows)
    else:
        backfills_view.show_rejected(rejected)


def _show_drift(opened: Session, run: Run, format: str) -> None:
    if run.mode != "reconcile":
        raise Failure(f"run {run.id} added; only reconciling corrects anything")
    drift = listing.drift(opened, run.id)
    rows = (drift_view.document(one) for one in drift)
    if format == "json":
        output.write_json_list({"run": run.id}, "drift", rows)
    elif format == "csv":
        output.write_csv(drift_view.COLUMNS, rows)
    elif run.corrections:
        drift_view.show(drift, run.corrections, where=": --format csv has all")
    else:
        click.echo("Nothing differed.")


@command.command("undo", cls=settings.Command)
@click.argument("run", type=RUN)
@settings.output_format("text", "json")
@settings.mysql_url
def undo_command(run: int, format: str, mysql_url: str | None) -> int:
    """Take back exactly what a backfill added, or corrected.

    Whatever was counted since stays, also when it was compacted or rolled up to months.
    Interrupted, run it again. The same source may then be counted again.
    """
    url = settings.needed(mysql_url, "mysql")
    with stopped_by_signals() as asked, progress.looking("backfills undo", "undoing") as looking:
        try:
            done = undo(
                url,
                run,
                on_progress=lambda at: looking(f"{at.done:,} of {at.of:,} chunks"),
                stop=asked,
            )
        except BackfillError as error:
            raise Failure(str(error)) from error
    for notice in done.notices:
        click.echo(f"countersink backfills: {output.cell(notice)}", err=True)
    if format == "json":
        output.write_json(asdict(done))
    else:
        click.echo(backfills_view.undone_sentence(done))
    if done.state != "undone":
        click.echo("countersink backfills: stopped: run it again, and it goes on", err=True)
        return asked.status or exits.FAILED
    return exits.DONE
