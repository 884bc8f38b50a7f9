"""``countersink backfill``: how it starts backfills, its output as text or JSON, and its exit
status.

See ``log_options.py`` for its flags.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import click

from countersink.backfill import content, formats, history
from countersink.backfill.counter_column import exported
from countersink.backfill.errors import BackfillError, WrongOption
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
from countersink.runtime.texts import plural

_STRAYS_SHOWN: Final = 20
_FAILURES_SHOWN: Final = 5


@click.command("backfill", cls=settings.Command)
@log_options.backfill_options
@settings.mysql_options("table", "json")
@settings.urls("redis_url")
def command(allow_rejects: Allowance | None, **given: Any) -> int:
    """Count events that were missed, from logs and exports.

    Reconcile if some of these events were counted live; add if none were.

    --mode add: none of the events was counted. Each byte of a source is counted once, even if the
    source is given again, to two runs at once, or after a crash. If a source has grown, or was
    renamed or compressed, only its new lines are added. Live counts of the same days stay.

    --mode reconcile: the sources have all events of their days. The total of each key and day is
    set to what the sources say, so that no event is counted twice. Keys that the sources lack keep
    their totals, unless --delete-missing is given. The command shows and records all differences.
    It needs --from and --to, sets only days that are over, and needs a running worker.

    A SOURCE is a file, a directory, a shell pattern in quotes, or - for standard input; plain,
    gzip, bzip2, zstd or xz. An interrupted run goes on when it is run again. If lines cannot be
    counted, the status is 3, unless --allow-rejects covers them; --rejects writes them to a file.
    `countersink backfills undo` undoes a run. Details and examples of each format:
    docs/backfill.md.
    """
    options = log_options.read(given)
    url = settings.mysql_url()
    if options.mode == "reconcile":
        settings.redis_url()
    if sys.stdin and sys.stdin.isatty():
        options = _with_amounts(options)
    with output.stopped_by_signals() as stop:
        call = _Call(url, stop, allow_rejects or Allowance())
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


def _with_amounts(options: BackfillOptions) -> BackfillOptions:
    """Look for a column of the sources (CSV, NDJSON) that probably contains amounts, ask the user
    whether to add up its values, and return the options with the answer: with this amount column,
    or with ``count_lines``. The question is about the first such column. If there is none, or if
    ``--amount-column``, ``--count-lines`` or ``--visitor`` is given, do not ask, and return the
    options unchanged. Pipes, and files that cannot be read or have a wrong header, are skipped. The
    caller makes sure that stdin is a terminal."""
    # A pipe can be read only once.
    files = [each for each in content.expand(options.sources)[0] if each.size is not None]
    for source in () if options.count_lines or options.recipe.amount_column else files:
        with suppress(BackfillError), content.open_content(source) as opened:
            head = content.head_of(opened)
            recipe = formats.recipe_for(options.recipe, head, source.name)
            if column := formats.unnamed_amount(recipe, head):
                name = output.display(f"column {column!r} of {source.name}")
                adds = click.confirm(f"Add up {name}? (n: each line counts 1)", None, err=True)
                recipe = replace(options.recipe, amount_column=column if adds else "")
                return replace(options, recipe=recipe, count_lines=not adds)
    return options


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the command. It makes one run of the backfill; with ``--counter-column``, one run
    for each counter.

    Attributes:
        url: the URL of the database.
        stop: returns whether a signal has asked the command to stop.
        allowed: the number or percentage of lines that may be rejected with exit status 0.
    """

    url: str
    stop: output.StopRequest
    allowed: Allowance

    @property
    def as_json(self) -> bool:
        """Whether results and notices are JSON (``--format json``). Messages about rejected lines
        that name no counter are text in any case."""
        return bool(settings.option_value("format") == "json")

    def run_each_counter(self, options: BackfillOptions) -> int:
        """Make one run for each counter that the sources name, print the results, and return the
        exit status of the command. First, all sources are searched for counters. The search rejects
        lines that cannot be read, name no counter, or name a counter that a backfill may not count.

        If a signal asked the command to stop, the status is 130 (SIGINT) or 143 (SIGTERM).
        Otherwise it is 1 if a run failed; 3 if ``--max-rejects`` ended a run, or if a run, or the
        search for counters, rejected more lines than ``allowed``; else 0.

        Raises:
            BackfillError: the search failed, for example because a source is a pipe; or a run
                cannot continue.
            Misuse: an option is wrong for the sources or one of the counters.
            StoreError, StreamError: MySQL or Redis failed.
        """
        found = exported(self.url, options, self.stop)
        for stray in found.strays[:_STRAYS_SHOWN]:
            click.echo(f"rejected: {output.display(stray)}", err=True)
        if found.stray_lines:
            strays = plural(found.stray_lines, "line has", "lines have")
            click.echo(f"rejected: {strays} no counter", err=True)
        if not found.counters:
            self.say("the sources have no line that counts")
        allowed = self.allowed.covers(found.stray_lines, found.lines)
        statuses: list[int] = [Exit.DONE if allowed else Exit.DIFFERS]
        documents: list[dict[str, Any]] = []
        for counter in found.counters:
            if self.stop():
                break
            report = self.run(replace(options, counter=counter))
            statuses.append(self.status(report))
            if self.as_json:
                documents.append(_document(report))
            else:
                _show(report, report.drift, dry_run=options.dry_run)
        if self.as_json:
            output.write_json({"runs": documents, "stray_lines": found.stray_lines})
        if self.stop.status is not None:
            return self.stop.status
        return Exit.FAILED if Exit.FAILED in statuses else max(statuses)

    def run(self, options: BackfillOptions) -> BackfillReport:
        """Make one run, and return its report. Print on stderr the progress (if stderr is a
        terminal), the notices of the run, and why sources failed: the reasons of the first five,
        and the number of the others.

        Raises:
            Misuse: an option is wrong for the sources or the counter.
            BackfillError: the run cannot continue for another reason.
            StoreError, StreamError: MySQL or Redis failed.
        """
        said: list[str] = []

        def say(notice: str) -> None:
            said.append(notice)
            self.say(notice)

        with output.progress_bar("counting") as show:
            try:
                report = backfill(
                    self.url,
                    options,
                    redis_url=settings.option_value("redis_url"),
                    on_progress=lambda state: show(*progress_text(state)),
                    on_notice=say,
                    stop=self.stop,
                )
            except WrongOption as error:
                raise Misuse(str(error)) from error
        failed = [
            f"{each.source}: {each.detail}" for each in report.sources if each.outcome == "failed"
        ]
        for sentence in (*report.notices, *failed[:_FAILURES_SHOWN]):
            if sentence not in said:
                self.say(sentence)
        if (more := len(failed) - _FAILURES_SHOWN) > 0:
            self.say(f"{plural(more, 'more source')} could not be read (see --format json)")
        return report

    def say(self, sentence: str) -> None:
        """Print a notice of the command on stderr, as text or, with ``--format json``, as JSON."""
        if self.as_json:
            click.echo(json.dumps({"notice": sentence}), err=True)
        else:
            click.echo(f"countersink backfill: {output.display(sentence)}", err=True)

    def status(self, report: BackfillReport) -> int:
        """Return the exit status for the run of ``report``: 1 if it failed; 130 or 143 if a signal
        stopped it; 3 if ``--max-rejects`` ended it, or if it rejected more lines than ``allowed``;
        else 0."""
        if report.state == "failed":
            return Exit.FAILED
        if report.state == "stopped":
            # Lines remain that were not read; without a signal, --max-rejects ended the run.
            return Exit.DIFFERS if self.stop.status is None else self.stop.status
        return Exit.DONE if self.allowed.covers(report.rejected, report.lines) else Exit.DIFFERS


def progress_text(state: Progress) -> tuple[float | None, str]:
    """Return two values for the progress bar: how much of the sources is read, from 0 to 1 (None if
    unknown), and a text with the numbers of lines that were read and rejected. While a reconcile
    waits for the queue or corrects, the values are None and a text that says so."""
    if state.doing != "reading":
        return None, "waiting for the queue" if state.doing == "waiting" else state.doing
    rejected = f", {state.rejected:,} rejected" if state.rejected else ""
    text = f"{plural(state.lines, 'line')}{rejected}"
    return None if state.size is None else min(state.done / max(state.size, 1), 1.0), text


_MEMBERS: Final = (
    *("run", "counter", "mode", "state", *backfills.FIGURES, "known_lines", "corrections"),
    *("by_day", "notices", "sources"),
)


def _document(report: BackfillReport) -> dict[str, Any]:
    """Return the report of a run as a JSON document, without the corrections of a reconcile. The
    caller adds these as the last member, ``drift``; with ``--counter-column``, nobody does."""
    by_day = [{"day": day, "amount": amount} for day, amount in report.by_day]
    sources = [asdict(one) for one in report.sources]
    return output.document(report, _MEMBERS, by_day=by_day, sources=sources)


def _show(report: BackfillReport, drift: Iterable[Drift], *, dry_run: bool) -> None:
    """Print the report of a run as text. ``drift`` has the corrections of a reconcile, of which the
    first are shown. With ``dry_run``, the text says "would add" or "would correct"."""
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
        # The reason of a failure is on stderr, as it is too long for a table.
        _cells(one.source, one.outcome, one, "" if one.outcome == "failed" else one.detail)
        for one in report.sources
    ]
    if len(rows) > 1:
        rows.append(_cells("all", "", report, ""))
    output.write_rows(("source", "outcome", *backfills.HEADINGS, "detail"), rows)


def _cells(
    name: str, outcome: str, figures: SourceReport | BackfillReport, detail: str
) -> tuple[object, ...]:
    return name, outcome, *output.document(figures, backfills.FIGURES).values(), detail


def _sentence(report: BackfillReport, would: bool) -> str:
    known = plural(report.known_lines, "line was", "lines were")
    known = f" {known} counted before." if report.known_lines else ""
    if report.mode == "reconcile":
        verb = "would correct" if would else "corrected"
        text = f"{verb} {plural(report.corrections, 'total')}, by {report.amount:+,} in total."
    else:
        text = f"{'would add' if would else 'added'} {report.amount:,}."
    text = f"{report.counter}: {text}{known}"
    if report.run is not None and (report.amount or report.corrections):
        text += f" Run {report.run}: countersink backfills undo {report.run} undoes it."
    return text
