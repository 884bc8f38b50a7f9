"""``countersink runs``: columns and flags; and the part about scheduled jobs in ``countersink
info``: failing jobs, overdue runs (``OVERDUE_MINUTES``), no leader."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from countersink.cli import output, settings
from countersink.cli.errors import Misuse
from countersink.schedules.history import (
    NextRun,
    RunRow,
    failing,
    in_charge,
    last_done,
    last_runs,
    next_runs,
    overdue,
    tally,
)
from countersink.schedules.jobs import JOBS
from countersink.store.connection import Session
from countersink.store.errors import StoreError
from countersink.store.sessions import open_tables

COLUMNS: Final = (
    *("job", "planned", "state", "attempts", "started", "ended"),
    *("rows", "detail", "error"),
)
_NUMBERS: Final = ("attempts", "rows")


@click.command("runs", cls=settings.Command)
@settings.one_off("--job", metavar="JOB", help="Only runs of this job.")
@settings.one_off(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    metavar="N",
    help="How many of the last runs to show.",
)
@settings.of_mysql("table", "json", "csv")
def command(job: str | None, limit: int, format: str, mysql_url: str | None) -> None:
    """Show the last runs of the scheduled jobs, and the next ones.

    A run is planned, running, done, failed (it may be tried again) or skipped. Times are in UTC.
    """
    with open_tables(settings.needed(mysql_url, "mysql")) as opened:
        last = [_row(run) for run in last_runs(opened, job=job, limit=limit)]
        upcoming = [_next(run) for run in next_runs(opened, job=job)]
    if job is not None and job not in JOBS and not last and not upcoming:
        raise Misuse(f"there is no job {job!r}: there are {', '.join(JOBS)}")
    document = {"runs": last, "next": upcoming}
    output.write_result(format, document, partial(_show, last, upcoming), csv=(COLUMNS, last))


def _row(run: RunRow) -> dict[str, Any]:
    """A run as it is printed."""
    started, ended = output.iso(run.started_at), output.iso(run.ended_at)
    planned = _second(run.planned_at)
    return output.document(run, COLUMNS, planned=planned, started=started, ended=ended)


def _next(run: NextRun) -> dict[str, Any]:
    """A run to come as it is printed."""
    return output.document(run, ("job", "at", "cron", "time_zone"), at=_second(run.at))


def _second(moment: datetime) -> str:
    """A naive UTC time of whole seconds as ISO 8601."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _show(last: Sequence[dict[str, Any]], upcoming: Sequence[dict[str, Any]]) -> None:
    if last:
        output.write_documents([f">{n}" if n in _NUMBERS else n for n in COLUMNS], last)
    else:
        click.echo("No run so far.")
    click.echo()
    if upcoming:
        output.write_rows(
            ("next", "at", "cron", "time zone"), (tuple(run.values()) for run in upcoming)
        )
    else:
        click.echo("Nothing is planned: start countersink scheduler.")


COMPACT: Final = "compact"
OVERDUE_MINUTES: Final = 5
"""After which a run that has not begun is told of."""


def look(mysql_url: str | None) -> dict[str, Any]:
    """The scheduler in charge, the jobs that keep failing, the last compaction and the next runs,
    as ``--format json`` prints it; without MySQL, why nothing of it is known.
    """
    names = ("scheduler", "failing", "last_compaction", "next", "overdue", "jobs")
    return known(mysql_url, _look, names, "unknown")


def known(
    mysql_url: str | None,
    ask: Callable[[Session], dict[str, Any]],
    names: Sequence[str],
    unknown: str,
) -> dict[str, Any]:
    """What MySQL tells, the members ``names`` of a document, and in ``unknown`` why it does not."""
    reason = "no MySQL URL is configured"
    if mysql_url:
        try:
            with open_tables(mysql_url) as session:
                return ask(session) | {unknown: None}
        except StoreError as error:
            reason = str(error)
    return dict.fromkeys(names) | {unknown: reason}


def _look(session: Session) -> dict[str, Any]:
    leader = in_charge(session)
    compacted = last_done(session, COMPACT)
    return {
        "scheduler": None if leader is None else leader.scheduler,
        "failing": [
            output.document(one, ("job", "times", "since", "error"), since=_second(one.since))
            for one in failing(session)
        ],
        "last_compaction": None if compacted is None else _row(compacted),
        "next": list(map(_next, next_runs(session))),
        "overdue": list(map(_row, overdue(session, OVERDUE_MINUTES))),
        "jobs": {
            job: {
                "last_success": None if one.last_success is None else _second(one.last_success),
                "runs": one.runs,
            }
            for job, one in sorted(tally(session).items())
        },
    }


def render(found: Mapping[str, Any]) -> RenderableType:
    """The same for people."""
    if found["unknown"] is not None:
        return output.facts({"schedules": f"not known: {found['unknown']}"})
    done = found["last_compaction"]
    facts = {
        "scheduler": found["scheduler"] or "none in charge: start one with countersink scheduler",
        "compaction": f"{done['ended']}: {done['detail'] or 'done'}" if done else "none so far",
        "next runs": ", ".join(f"{run['job']} {run['at']}" for run in found["next"])
        or "none planned",
    }
    warnings = []
    if found["overdue"]:
        first = found["overdue"][0]
        warnings.append(
            f"{len(found['overdue']):,} planned runs have not begun, the first {first['job']} of"
            f" {first['planned']}: is countersink jobs running, and on the same Redis?"
        )
    warnings += [
        f"{one['job']} failed {one['times']} times in a row, since {one['since']}: {one['error']}"
        f" (see countersink runs --job {one['job']})"
        for one in found["failing"]
    ]
    return Group(output.facts(facts), *(Text(output.cell(text), style="red") for text in warnings))
