"""``countersink runs``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.database import session
from countersink.schedules.history import NextRun, RunRow, last_runs, next_runs

COLUMNS: Final = {
    "job": False,
    "planned": False,
    "state": False,
    "attempts": True,
    "started": False,
    "ended": False,
    "rows": True,
    "detail": False,
    "error": False,
}


@click.command("runs", cls=settings.Command)
@settings.one_off("--job", metavar="JOB", help="Runs of this job alone.")
@settings.one_off(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    metavar="N",
    help="How many of the last runs.",
)
@settings.output_format("table", "json", "csv")
@settings.mysql_url
def command(job: str | None, limit: int, format: str, mysql_url: str | None) -> None:
    """Show the last runs of the scheduled jobs, and the next ones.

    A run is planned, running, done, failed (it may be tried again) or skipped. Times are in UTC.
    """
    with session(mysql_url) as opened:
        last = [as_row(run) for run in last_runs(opened, job=job, limit=limit)]
        upcoming = [as_next(run) for run in next_runs(opened, job=job)]
    if format == "json":
        output.write_json({"runs": last, "next": upcoming})
    elif format == "csv":
        output.write_csv(list(COLUMNS), last)
    else:
        _show(last, upcoming)


def as_row(run: RunRow) -> dict[str, Any]:
    """A run as it is printed."""
    return {
        "job": run.job,
        "planned": second(run.planned_at),
        "state": run.state,
        "attempts": run.attempts,
        "started": _moment(run.started_at),
        "ended": _moment(run.ended_at),
        "rows": run.rows,
        "detail": run.detail,
        "error": run.error,
    }


def as_next(run: NextRun) -> dict[str, Any]:
    """A run to come as it is printed."""
    return {
        "job": run.job,
        "at": second(run.at),
        "cron": run.cron,
        "time_zone": run.time_zone,
    }


def second(moment: datetime) -> str:
    """A naive UTC time of whole seconds as ISO 8601."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _moment(moment: datetime | None) -> str | None:
    return output.iso(None if moment is None else moment.replace(tzinfo=UTC))


def _show(last: Sequence[dict[str, Any]], upcoming: Sequence[dict[str, Any]]) -> None:
    console = output.console()
    if last:
        table = output.table(COLUMNS)
        for row in last:
            table.add_row(*(output.cell(row[name]) for name in COLUMNS))
        console.print(table)
    else:
        console.print("No run so far.")
    console.print()
    if upcoming:
        table = output.table({"next": False, "at": False, "cron": False, "time zone": False})
        for row in upcoming:
            table.add_row(*(output.cell(row[key]) for key in ("job", "at", "cron", "time_zone")))
        console.print(table)
    else:
        console.print("Nothing is planned: start countersink scheduler.")
