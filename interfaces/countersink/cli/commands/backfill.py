"""``countersink backfill``: runs it, prints the result as text or JSON, and decides on the exit
status; its flags are in ``backfill_options.py``."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import click

from countersink.backfill import history
from countersink.backfill.counter_column import exported
from countersink.backfill.errors import WrongOption
from countersink.backfill.options import (
    BackfillOptions,
    BackfillReport,
    Drift,
    Progress,
    SourceReport,
)
from countersink.backfill.run import backfill
from countersink.cli import output, settings
from countersink.cli.commands import backfills, log_options
from countersink.cli.commands.log_options import Allowance
from countersink.cli.errors import Exit, Misuse
from countersink.database.sessions import open_tables

_STRAYS_SHOWN: Final = 20


@click.command("backfill", cls=settings.Command)
@log_options.backfill_options
@settings.of_mysql("table", "json")
@settings.urls("redis_url")
def command(allow_rejects: Allowance | None, **given: Any) -> int:
    """Count events that were missed, from logs and exports.

    Did some of these events arrive live? Then reconcile. If none did, add.

    --mode add: these events never arrived. Each byte of a source is counted once, even if the
    source is given again, to two runs at once, or after a crash. Of a source that has grown or was
    renamed or compressed, only what is new is added. Live traffic of the same days stays as it is.

    --mode reconcile: these sources are the whole truth for their days. The total of each key and
    day is set to what the sources say, so that events that did arrive are not counted twice. Keys
    that the sources lack keep their totals, unless --delete-missing is given. Differences are shown
    and recorded. It needs --from and --to; only days that are over are set, and a worker must be
    running.

    A SOURCE is a file, a directory, a shell pattern in quotes, or - for standard input; plain,
    gzip, bzip2, zstd or xz. If a run is interrupted, run it again: it goes on. If lines cannot be
    counted, the status is 3, unless --allow-rejects covers them; --rejects writes them to a file.
    `countersink backfills undo` undoes a run. Details and examples of each format:
    docs/backfill.md.
    """
    options = log_options.read(given)
    url = settings.mysql_url()
    if options.mode == "reconcile":
        settings.redis_url()
    with output.stopped_by_signals() as asked:
        call = _Call(url, asked, allow_rejects or Allowance())
        if options.recipe.counter_column:
            return call.run_each_counter(options)
        report = call.run(options)
        with ExitStack() as opened:
            drift: Iterable[Drift] = report.drift
            if report.run is not None and report.corrections:
                drift = history.drift(opened.enter_context(open_tables(url)), report.run)
            people = partial(_show, report, drift, dry_run=options.dry_run)
            rows = map(backfills.drift_document, drift)
            output.write_result(_document(report), people, last=("drift", rows))
    return call.status(report)


@dataclass(frozen=True, slots=True)
class _Call:
    """What one call of the command works with, for as many runs as it makes."""

    url: str
    asked: output.StopRequest
    allowed: Allowance

    @property
    def as_json(self) -> bool:
        """Whether stdout and stderr are for programs."""
        return bool(settings.noted("format") == "json")

    def run_each_counter(self, options: BackfillOptions) -> int:
        """One run for each counter of an export; the exit status."""
        found = exported(self.url, options, self.asked)
        for stray in found.strays[:_STRAYS_SHOWN]:
            click.echo(f"rejected: {output.cell(stray)}", err=True)
        if found.stray_lines:
            click.echo(f"rejected: {found.stray_lines:,} lines are of no counter", err=True)
        if not found.counters:
            self.say("the sources have no line that counts")
        well = self.allowed.covers(found.stray_lines, found.lines)
        statuses: list[int] = [Exit.DONE if well else Exit.DIFFERS]
        documents: list[dict[str, Any]] = []
        for counter in found.counters:
            if self.asked():
                break
            report = self.run(replace(options, counter=counter))
            statuses.append(self.status(report))
            if self.as_json:
                documents.append(_document(report))
            else:
                _show(report, report.drift, dry_run=options.dry_run)
        if self.as_json:
            output.write_json({"runs": documents, "stray_lines": found.stray_lines})
        if self.asked.status is not None:
            return self.asked.status
        return Exit.FAILED if Exit.FAILED in statuses else max(statuses)

    def run(self, options: BackfillOptions) -> BackfillReport:
        """One run; on stderr, what is no result: notices, and what to do next, each once."""
        told: list[str] = []

        def tell(notice: str) -> None:
            told.append(notice)
            self.say(notice)

        with output.progress_bar("counting") as show:
            try:
                report = backfill(
                    self.url,
                    options,
                    redis_url=settings.noted("redis_url"),
                    on_progress=lambda state: show(*words_of(state)),
                    on_notice=tell,
                    stop=self.asked,
                )
            except WrongOption as error:
                raise Misuse(str(error)) from error
        failed = [
            f"{each.source}: {each.detail}" for each in report.sources if each.outcome == "failed"
        ]
        for sentence in (*report.notices, *failed):
            if sentence not in told:
                self.say(sentence)
        return report

    def say(self, sentence: str) -> None:
        """A sentence on stderr, as the progress there."""
        if self.as_json:
            click.echo(json.dumps({"notice": sentence}), err=True)
        else:
            click.echo(f"countersink backfill: {output.cell(sentence)}", err=True)

    def status(self, report: BackfillReport) -> int:
        """The exit status after a run."""
        if report.state == "failed":
            return Exit.FAILED
        if report.state == "stopped":
            # Of what it did not read nobody knows; without a signal it was --max-rejects.
            return Exit.DIFFERS if self.asked.status is None else self.asked.status
        return Exit.DONE if self.allowed.covers(report.rejected, report.lines) else Exit.DIFFERS


def words_of(state: Progress) -> tuple[float | None, str]:
    """The share that is read, where it is known, and what is going on, in words."""
    if state.doing != "reading":
        return None, "waiting for the queue" if state.doing == "waiting" else state.doing
    rejected = f", {state.rejected:,} rejected" if state.rejected else ""
    words = f"{state.lines:,} lines{rejected}"
    return None if state.size is None else min(state.done / max(state.size, 1), 1.0), words


_MEMBERS: Final = (
    *("run", "counter", "mode", "state", *backfills.FIGURES, "known_lines", "corrections"),
    *("by_day", "notices", "sources"),
)


def _document(report: BackfillReport) -> dict[str, Any]:
    """The result as JSON, without what was corrected."""
    by_day = [{"day": day, "amount": amount} for day, amount in report.by_day]
    sources = [asdict(one) for one in report.sources]
    return output.document(report, _MEMBERS, by_day=by_day, sources=sources)


def _show(report: BackfillReport, drift: Iterable[Drift], *, dry_run: bool) -> None:
    """The result for people."""
    if report.sources:
        _show_sources(report)
    if report.by_day:
        click.echo()
        output.write_rows(("day", ">would be added"), report.by_day)
    if report.corrections:
        click.echo()
        where = "" if report.run is None else f": countersink backfills show {report.run} --drift"
        backfills.show_drift(drift, report.corrections, where=where)
    click.echo()
    click.echo(_sentence(report, dry_run))


def _show_sources(report: BackfillReport) -> None:
    rows = [
        # What went wrong is on stderr, in a sentence that is too long for a table.
        _cells(one.source, one.outcome, one, "" if one.outcome == "failed" else one.detail)
        for one in report.sources
    ]
    if len(rows) > 1:
        rows.append(_cells("all", "", report, ""))
    headings = (f">{name}" for name in backfills.FIGURES)
    output.write_rows(("source", "outcome", *headings, "what"), rows)


def _cells(
    name: str, outcome: str, figures: SourceReport | BackfillReport, detail: str
) -> tuple[object, ...]:
    return name, outcome, *output.document(figures, backfills.FIGURES).values(), detail


def _sentence(report: BackfillReport, would: bool) -> str:
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
