"""``countersink schedule list|pause|resume|run``: columns, what each prints, and its errors; and
the same for HTTP (``act``)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.commands.maintain.job_runs import next_rows
from countersink.cli.errors import Failure
from countersink.runtime.times import iso
from countersink.schedules import runs
from countersink.schedules.cron import OFF
from countersink.store.sessions import open_tables

COLUMNS: Final = ("job", "at", "paused", "last", "ended", "detail", "cron", "time_zone")
JOB: Final = click.argument("job", metavar="JOB")


def act(mysql_url: str, what: str, job: str) -> dict[str, Any]:
    """Pause, resume or run a job; it as ``schedule list`` shows it, and the planned time of a run:
    null where one waits already.

    Args:
        mysql_url: where the jobs are.
        what: ``pause``, ``resume`` or ``run``.
        job: its name.

    Raises:
        LookupError: no scheduler has ever planned a job of this name.
        StoreError: MySQL did not do its part.
    """
    with open_tables(mysql_url) as session:
        if job not in runs.jobs(session):
            raise LookupError(job)
        told = {}
        if what == "run":
            planned = runs.add(session, job)
            told = {"planned": planned and iso(planned.replace(tzinfo=None))}
        elif what == "pause":
            runs.pause(session, job)
        else:
            runs.resume(session, job)
        (shown,) = next_rows(session, job=job)
    return shown | told


@click.group("schedule", cls=settings.CommandGroup)
def command() -> None:
    """List, pause, resume and run the scheduled jobs."""


@command.command("list", cls=settings.Command)
@settings.of_mysql("table", "json", "csv")
def list_command(format: str, mysql_url: str | None) -> None:
    """List the jobs: when each runs next, and how it ended last. Times are in UTC."""
    with open_tables(settings.needed(mysql_url, "mysql")) as session:
        rows = next_rows(session)
    output.write_result(format, {"jobs": rows}, partial(_show, rows), csv=(COLUMNS, rows))


@command.command("pause", cls=settings.Command)
@JOB
@settings.of_mysql("table", "json")
def pause_command(job: str, format: str, mysql_url: str | None) -> None:
    """Plan nothing of a job until it is resumed. A run that is planned or running goes on."""
    _act("pause", job, format, mysql_url, f"{job} is paused: countersink schedule resume {job}")


@command.command("resume", cls=settings.Command)
@JOB
@settings.of_mysql("table", "json")
def resume_command(job: str, format: str, mysql_url: str | None) -> None:
    """Plan a paused job again, from its next time on."""
    _act("resume", job, format, mysql_url, f"{job} is not paused")


@command.command("run", cls=settings.Command)
@JOB
@settings.of_mysql("table", "json")
def run_command(job: str, format: str, mysql_url: str | None) -> None:
    """Run a job now, beside its planned times, unless a run of it waits already.

    A scheduler hands it over within seconds.
    """
    _act("run", job, format, mysql_url, f"a run of {job} waits: countersink runs --job {job}")


def _act(what: str, job: str, format: str, mysql_url: str | None, said: str) -> None:
    try:
        done = act(settings.needed(mysql_url, "mysql"), what, job)
    except LookupError:
        raise Failure(f"there is no job {job!r}: countersink schedule list shows them") from None
    output.write_result(format, done, partial(click.echo, said))


def _unplanned(row: Mapping[str, Any]) -> str:
    return "off" if row["cron"] == OFF else "soon"


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        click.echo("No job so far: start countersink scheduler.")
        return
    output.write_rows(
        ("job", "next", "last", "ended", "cron", "time zone"),
        (
            (
                row["job"],
                "paused" if row["paused"] else row["at"] or _unplanned(row),
                row["last"] or "none so far",
                row["ended"] or "",
                row["cron"],
                row["time_zone"],
            )
            for row in rows
        ),
    )
