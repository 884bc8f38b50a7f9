"""``countersink backfill``."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import click

from countersink.backfill import listing
from countersink.backfill.listing import Drift
from countersink.backfill.options import BackfillError, Options, Report, WrongOption
from countersink.backfill.run import backfill
from countersink.cli import (
    backfill_options,
    backfill_progress,
    backfill_view,
    exits,
    output,
    settings,
)
from countersink.cli.database import session
from countersink.cli.failures import Failure, Misuse
from countersink.cli.stopping import Asked, stopped_by_signals
from countersink.store import policies


@click.command("backfill", cls=settings.Command)
@backfill_options.options
@settings.output_format("table", "json")
@settings.jobs_redis_url
@settings.redis_url
@settings.mysql_url
def command(
    format: str,
    jobs_redis_url: str | None,
    redis_url: str | None,
    mysql_url: str | None,
    **given: Any,
) -> int:
    """Count events that were missed, from logs and exports.

    Did some of these events arrive live? Then reconcile. If none did, add.

    --mode add: these events never arrived. Each byte of a source is counted once: given again, to
    two at once, after a crash, grown, renamed or compressed, only what is new is added. Live
    traffic of the same days stays as it is.

    --mode reconcile: these sources are the whole truth for their days. The total of each key and
    day is set to what they say, so that what did arrive is not counted twice. Keys that they lack
    keep their totals, unless --delete-missing. What differed is shown, and kept. Only days that are
    over are set, and a worker must be running.

    A SOURCE is a file, a directory, a shell pattern in quotes, or - for standard input; plain,
    gzip, bzip2 or zstd. Interrupted, run it again: it goes on. Lines that cannot be counted are
    written to --rejects; the status is then 3. `countersink backfills undo` takes a run back. More,
    with examples of each format: docs/backfill.md.
    """
    options = backfill_options.read(given)
    url = settings.needed(mysql_url, "mysql")
    if options.mode == "reconcile":
        settings.needed(redis_url, "redis")
    queue_url = None
    if options.jobs and not options.dry_run:
        queue_url = settings.jobs_queue(redis_url, jobs_redis_url)
    with stopped_by_signals() as asked:
        report = _run(url, options, redis_url, queue_url, asked, as_json=format == "json")
        _say(report, as_json=format == "json")
        with ExitStack() as opened:
            drift: Iterable[Drift] = report.drift
            if report.run is not None and report.corrections:
                drift = listing.drift(opened.enter_context(session(url)), report.run)
            if format == "json":
                backfill_view.write(report, drift)
            else:
                backfill_view.show(report, drift, dry_run=options.dry_run)
    return _status(report, asked)


def _run(
    url: str,
    options: Options,
    redis_url: str | None,
    queue_url: str | None,
    asked: Asked,
    *,
    as_json: bool,
) -> Report:
    with ExitStack() as opened:
        team = None
        if queue_url is not None:
            from countersink.schedules.pieces import Pieces  # RQ takes a while to import

            team = opened.enter_context(Pieces(queue_url))
        show = opened.enter_context(backfill_progress.shown(as_json=as_json))
        try:
            return backfill(
                url, options, redis_url=redis_url, on_progress=show, stop=asked, team=team
            )
        except WrongOption as error:
            raise Misuse(str(error), click.get_current_context()) from error
        except BackfillError as error:
            if _is_tracked(url, options.counter):
                raise Misuse(str(error), click.get_current_context()) from error
            raise Failure(str(error)) from error


def _is_tracked(url: str, counter: str) -> bool:
    """Whether triggers count it: then the wrong counter was asked for."""
    with session(url) as opened:
        return counter in policies.load(opened).tracked


def _say(report: Report, *, as_json: bool) -> None:
    """On stderr, what is no result: notices, and what to do next."""
    sentences = list(report.notices)
    sentences += [
        f"{one.source}: {one.detail}" for one in report.sources if one.outcome == "failed"
    ]
    for sentence in sentences:
        if as_json:  # as the progress there
            click.echo(json.dumps({"notice": sentence}), err=True)
        else:
            click.echo(f"countersink backfill: {output.cell(sentence)}", err=True)


def _status(report: Report, asked: Asked) -> int:
    if report.state == "failed":
        return exits.FAILED
    if report.state == "stopped" and asked.status is not None:
        return asked.status
    return exits.DIFFERS if report.rejected else exits.DONE
