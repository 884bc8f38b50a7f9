"""The commands ``countersink runs``, ``schedule`` and ``compact``, and the part of ``countersink
info`` about scheduled jobs: whether a scheduler runs, failing jobs, and overdue runs
(``OVERDUE_MINUTES``).

The HTTP interface uses ``control_job`` as well. See ``schedules/`` for the jobs themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit, Misuse, NotFound
from countersink.cli.values import COUNTER, DAY, JOB
from countersink.counting.counters.buckets import width_of
from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.database.sql import label_text, width_number
from countersink.runtime.texts import ago, did_you_mean, iso, plural
from countersink.schedules import runs
from countersink.schedules.jobs import JOBS, move
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.ranges import BucketKey
from countersink.schedules.options import OFF

COLUMNS: Final = (
    *("job", "planned", "state", "attempts", "started", "ended"),
    *("rows", "detail"),
)


@click.command("runs", cls=settings.Command)
@settings.one_off("--job", type=JOB, metavar="JOB", help="Only runs of this job.")
@settings.one_off(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    metavar="N",
    help="Number of past runs to show.",
)
@settings.mysql_options("table", "json", "csv")
def command(job: str | None, limit: int) -> None:
    """Show the last runs of the scheduled jobs, and the next ones.

    A run is planned (also if it failed and will be tried again), running, done, failed or skipped.
    Times are in UTC.
    """
    opened = settings.open_tables()
    last = [_row(run) for run in runs.last_runs(opened, job=job, limit=limit)]
    upcoming = [row for row in next_rows(opened, job=job) if row["at"]]
    if job is not None and job not in JOBS and not last and not upcoming:
        hint = did_you_mean(job, JOBS) or f"the jobs are {', '.join(JOBS)}"
        raise Misuse(f"there is no job {job!r}: {hint}")
    document = {"runs": last, "next": upcoming}
    output.write_result(document, partial(_show, last, upcoming), csv=(COLUMNS, last))


def _row(run: runs.RunRow) -> dict[str, Any]:
    """Return a run as a JSON document."""
    started, ended = iso(run.started_at), iso(run.ended_at)
    planned = iso(run.planned_at, "seconds")
    return output.document(run, COLUMNS, planned=planned, started=started, ended=ended)


def next_rows(session: Session, *, job: str | None = None) -> list[dict[str, Any]]:
    """Return all scheduled jobs as JSON documents, or only the job named ``job``. Each document has
    the time ``at`` of the job's next run, and the result of its last run that has ended (null if
    none has): the state ``last``, ``started``, ``ended`` and ``detail``. Jobs are sorted by ``at``.
    Jobs that are paused, off or not planned yet come last; their ``at`` is null. Return an empty
    list if no scheduler knows ``job``."""
    rows = []
    for planned in runs.jobs(session).values():
        if job not in (None, planned.name):
            continue
        ended = runs.last_runs(session, job=planned.name, states=runs.ENDED, limit=1)
        last = ended[0] if ended else None
        rows.append(
            output.document(
                planned,
                (
                    *("job", "does", "at", "cron", "time_zone", "paused"),
                    *("last", "started", "ended", "detail"),
                ),
                job=planned.name,
                does=JOBS[planned.name].does if planned.name in JOBS else None,
                at=iso(None if planned.paused else planned.next_at, "seconds"),
                last=last and last.state,
                started=last and iso(last.started_at),
                ended=last and iso(last.ended_at),
                detail=last and last.detail,
            )
        )
    return sorted(rows, key=lambda row: (row["at"] is None, row["at"], row["job"]))


def _show(last: Sequence[dict[str, Any]], upcoming: Sequence[dict[str, Any]]) -> None:
    columns = ("job", "planned", "state", "->attempts", "-started", "-ended", "->rows", "detail")
    output.write_documents(columns, last, otherwise="There are no runs.")
    click.echo()
    rows = ((run["job"], run["at"], run["cron"], run["time_zone"]) for run in upcoming)
    none = "No run is planned: start countersink scheduler."
    output.write_rows(("next", "at", "cron", "-time zone"), rows, otherwise=none)


COMPACT: Final = "compact"
OVERDUE_MINUTES: Final = 5
"""Minutes after its planned time from which on a run that has not begun is overdue."""


def schedules_state(mysql_url: str | None) -> dict[str, Any]:
    """Return the state of the scheduled jobs as JSON. It tells whether a scheduler plans the jobs,
    which jobs fail, and which runs come next or are overdue. It has the last successful compaction
    and, for each job, the last success and the number of runs by state. If ``mysql_url`` is None,
    or MySQL does not answer or refuses, all this is null, and ``unknown`` has the reason."""
    names = ("planning", "failing", "last_compaction", "next", "overdue", "jobs")
    return ask_mysql(mysql_url, _state_of, names, "unknown")


def ask_mysql(
    mysql_url: str | None,
    ask: Callable[[Session], dict[str, Any]],
    names: Sequence[str],
    unknown: str,
) -> dict[str, Any]:
    """Call ``ask`` with a session of MySQL, and return its result: a document with the members
    ``names``. If ``mysql_url`` is None, or MySQL does not answer or refuses, all members are null.
    The document gets one more member, whose name is the argument ``unknown``. Its value is the
    reason why the others are null, or null if ``ask`` gave a result."""
    reason = "no MySQL URL is configured"
    if mysql_url:
        try:
            with open_tables(mysql_url) as session:
                return ask(session) | {unknown: None}
        except StoreError as error:
            reason = str(error)
    return dict.fromkeys(names) | {unknown: reason}


def _state_of(session: Session) -> dict[str, Any]:
    tally = runs.tally(session)
    last = {
        name: run
        for name in tally
        for run in runs.last_runs(session, job=name, states=("done",), limit=1)
    }
    return {
        "planning": runs.is_planned(session),
        "failing": [
            output.document(
                one, ("job", "times", "since", "detail"), since=iso(one.since, "seconds")
            )
            for one in runs.failing(session)
        ],
        "last_compaction": _row(last[COMPACT]) if COMPACT in last else None,
        "next": next_rows(session),
        "overdue": list(map(_row, runs.overdue(session, OVERDUE_MINUTES))),
        "jobs": {
            job: {
                "last_success": iso(last[job].ended_at, "seconds") if job in last else None,
                "runs": by_state,
            }
            for job, by_state in sorted(tally.items())
        },
    }


def render(found: Mapping[str, Any]) -> str:
    """Return the result of :func:`schedules_state` as text."""
    if found["unknown"] is not None:
        return output.facts({"schedules": f"unknown: {found['unknown']}"})
    done = found["last_compaction"]
    facts = {
        "scheduler": "planning" if found["planning"] else "none: start countersink scheduler",
        "compaction": f"{done['ended']}: {done['detail'] or 'done'}" if done else "none so far",
        "next runs": ", ".join(
            f"{run['job']} {'paused' if run['paused'] else run['at']}"
            for run in found["next"]
            if run["at"] or run["paused"]
        )
        or "none planned",
    }
    warnings = []
    if found["overdue"]:
        first = found["overdue"][0]
        late = plural(len(found["overdue"]), "planned run has", "planned runs have")
        warnings.append(
            f"{late} not begun, the first is {first['job']} of {first['planned']}: is countersink"
            " jobs running, and on the same Redis?"
        )
    warnings += [
        f"{one['job']} failed {one['times']} times in a row, since {one['since']}: {one['detail']}"
        f" (see countersink runs --job {one['job']})"
        for one in found["failing"]
    ]
    warnings += [
        f"verify failed at {run['ended']}: {run['detail']}"
        for run in found["next"]
        if run["job"] == "verify" and run["last"] == "failed"
        if run["job"] not in [one["job"] for one in found["failing"]]
    ]
    texts = (output.wrapped(output.display(text), output.terminal_width()) for text in warnings)
    return "\n".join([output.facts(facts), *chain.from_iterable(texts)])


SCHEDULE_COLUMNS: Final = ("job", "at", "paused", "last", "ended", "detail", "cron", "time_zone")
_JOB: Final = click.argument("job", type=JOB)


def control_job(mysql_url: str, action: str, job: str) -> dict[str, Any]:
    """Pause or resume a job, or plan a run of it for now, and return the job's document of
    :func:`next_rows`. After ``run``, the document also has the member ``planned``: the time of the
    new run, or null if none was added, because the job already has a planned run, or any run of the
    same second.

    Args:
        mysql_url: the URL of the database that has the jobs.
        action: ``pause``, ``resume`` or ``run``.
        job: the job's name.

    Raises:
        LookupError: no scheduler has ever planned a job of this name.
        StoreError: MySQL does not answer, or refuses.
    """
    with open_tables(mysql_url) as session:
        if job not in runs.jobs(session):
            raise LookupError(job)
        added = {}
        if action == "run":
            planned = runs.add(session, job)
            added = {"planned": planned and iso(planned.replace(tzinfo=None))}
        elif action == "pause":
            runs.pause(session, job)
        else:
            runs.resume(session, job)
        (shown,) = next_rows(session, job=job)
    return shown | added


@click.group("schedule", cls=settings.CommandGroup)
def schedule_group() -> None:
    """List, pause, resume and run the scheduled jobs."""


@schedule_group.command("list", cls=settings.Command)
@settings.mysql_options("table", "json", "csv")
def list_command() -> None:
    """List the jobs: when each runs next, and how it ended last. Times are in UTC."""
    session = settings.open_tables()
    rows = next_rows(session)
    output.write_result({"jobs": rows}, partial(_show_schedule, rows), csv=(SCHEDULE_COLUMNS, rows))


@schedule_group.command("pause", cls=settings.Command)
@_JOB
@settings.mysql_options("table", "json")
def pause_command(job: str) -> None:
    """Plan no runs of a job until it is resumed. A run that is planned or running goes on."""
    _control("pause", job, f"{job} is paused: countersink schedule resume {job}")


@schedule_group.command("resume", cls=settings.Command)
@_JOB
@settings.mysql_options("table", "json")
def resume_command(job: str) -> None:
    """Plan runs of a paused job again, from its next time on."""
    _control("resume", job, f"{job} is not paused")


@schedule_group.command("run", cls=settings.Command)
@_JOB
@settings.mysql_options("table", "json")
def run_command(job: str) -> None:
    """Run a job now, in addition to its planned times, unless a run of it waits already.

    A scheduler hands the run to a job process within seconds.
    """
    _control("run", job, f"a run of {job} waits: countersink runs --job {job}")


def _control(action: str, job: str, result: str) -> None:
    try:
        done = control_job(settings.mysql_url(), action, job)
    except LookupError:
        raise NotFound(f"there is no job {job!r}: see countersink schedule list") from None
    output.write_result(done, partial(click.echo, result))


def _show_schedule(rows: Sequence[dict[str, Any]]) -> None:
    shown = [
        row
        | {
            "next": "paused" if row["paused"] else row["at"] or _unplanned(row),
            "last": row["last"] or "none so far",
            "ended": row["ended"] or "",
            "time zone": row["time_zone"],
        }
        for row in rows
    ]
    columns = ("job", "next", "last", "-ended", "-cron", "-time zone")
    output.write_documents(
        columns, shown, otherwise="There are no jobs: start countersink scheduler."
    )


def _unplanned(row: Mapping[str, Any]) -> str:
    return "off" if row["cron"] == OFF else "soon"


_DEFAULT: Final = CompactOptions()


@click.command("compact", cls=settings.Command)
@settings.one_off("--counter", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--before",
    type=DAY,
    help="Compact all days before this day.  [default: closed buckets, and keys with many rows]",
)
@settings.one_off(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=_DEFAULT.share,
    help="Share of the time that it works; it pauses for the rest, to spare writers.",
)
@settings.mysql_options("table", "json")
def compact_command(**options: Any) -> int:
    """Compact now: add up the rows of each key in one row.

    The scheduled job does the same for the last days, in 4 % of the time. It is safe at any time
    and may be interrupted: totals stay the same, and writers go on. Rows that an open transaction
    has locked are left for the next run. The status is 3 if keys were left out because their
    different members cannot be read, or their width is unknown.
    """
    connect = partial(move.open_tables, settings.mysql_url())
    with output.progress_bar("compacting") as show:

        def on_progress(done: PassDone) -> None:
            show(done.share, f"{plural(done.rows_before, 'row')} became {done.rows_after:,}")

        done = compact(connect, CompactOptions(**options), progress=on_progress)
    output.write_result(_document(done), partial(_show_compacted, done))
    return Exit.DIFFERS if done.unreadable or done.unknown else Exit.DONE


def _document(done: PassDone) -> dict[str, object]:
    """Return the result of a compaction as JSON."""
    figures = output.document(done, ("rows_before", "rows_after", "ranges"))
    names = ("busy", "unreadable", "unknown")
    left = {name: _cell_documents(getattr(done, name)) for name in names}
    return {**figures, "seconds": round(done.seconds, 3), **left}


def _cell_documents(cells: Sequence[BucketKey]) -> list[dict[str, object]]:
    return [
        {
            "counter": cell.counter,
            "bucket": label_text(cell.bucket),
            "width": _width(cell),
            "key": None if cell.key is None else cell.key.decode("utf-8", "surrogateescape"),
        }
        for cell in cells
    ]


def _width(cell: BucketKey) -> str:
    """Return the width of a cell's bucket as text: its name, or, if this version does not know the
    width, its number in the column ``width``."""
    try:
        return width_of(cell.bucket)
    except LookupError:
        return str(width_number(cell.bucket))


def _show_compacted(done: PassDone) -> None:
    """Print the result of a compaction as text."""
    if done.rows_before:
        figures = (done.rows_before, done.rows_after, ago(done.seconds))
        output.write_rows((">rows before", ">rows after", ">time"), [figures])
    elif not done.left:
        click.echo(f"There was nothing to compact ({ago(done.seconds)}).")
    for reason, cells in done.left.items():
        click.echo(f"{reason[0].upper()}{reason[1:]}: {len(cells):,} (--format json names them)")
