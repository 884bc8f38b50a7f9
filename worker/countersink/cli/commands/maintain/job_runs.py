"""``countersink runs``: columns and flags; the part about scheduled jobs in ``countersink info``:
failing jobs, overdue runs (``OVERDUE_MINUTES``), no scheduler; ``countersink compact``, the job
that can be run by hand: flags, and what it prints of buckets compacted and left out."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from countersink.cli import output, progress, settings
from countersink.cli.errors import Exit, Failure, Misuse
from countersink.cli.settings import COUNTER, DAY
from countersink.runtime.times import iso
from countersink.schedules import runs
from countersink.schedules.jobs import JOBS, move
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.ranges import BucketKey
from countersink.store.connection import Session
from countersink.store.counters.buckets import width_of
from countersink.store.errors import StoreError, UnknownCounter
from countersink.store.sessions import open_tables
from countersink.store.sql import label_text, width_number

COLUMNS: Final = (
    *("job", "planned", "state", "attempts", "started", "ended"),
    *("rows", "detail"),
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

    A run is planned (again, where it failed and is tried once more), running, done, failed or
    skipped. Times are in UTC.
    """
    with open_tables(settings.needed(mysql_url, "mysql")) as opened:
        last = [_row(run) for run in runs.last_runs(opened, job=job, limit=limit)]
        upcoming = [row for row in next_rows(opened, job=job) if row["at"]]
    if job is not None and job not in JOBS and not last and not upcoming:
        raise Misuse(f"there is no job {job!r}: there are {', '.join(JOBS)}")
    document = {"runs": last, "next": upcoming}
    output.write_result(format, document, partial(_show, last, upcoming), csv=(COLUMNS, last))


def _row(run: runs.RunRow) -> dict[str, Any]:
    """A run as it is printed."""
    started, ended = iso(run.started_at), iso(run.ended_at)
    planned = _second(run.planned_at)
    return output.document(run, COLUMNS, planned=planned, started=started, ended=ended)


def next_rows(session: Session, *, job: str | None = None) -> list[dict[str, Any]]:
    """The jobs, or one, as they are printed: when each runs next, and how it ended last."""
    rows = []
    for planned in runs.jobs(session).values():
        if job not in (None, planned.name):
            continue
        ended = runs.last_runs(session, job=planned.name, states=runs.ENDED, limit=1)
        last = ended[0] if ended else None
        rows.append(
            output.document(
                planned,
                ("job", "at", "cron", "time_zone", "paused", "last", "ended", "detail"),
                job=planned.name,
                at=None if planned.paused or planned.next_at is None else _second(planned.next_at),
                last=None if last is None else last.state,
                ended=None if last is None else iso(last.ended_at),
                detail=None if last is None else last.detail,
            )
        )
    return sorted(rows, key=lambda row: (row["at"] is None, row["at"], row["job"]))


def _ended(run: runs.RunRow | None) -> str | None:
    return None if run is None or run.ended_at is None else _second(run.ended_at)


def _second(moment: datetime) -> str:
    """A time in UTC, of whole seconds, as ISO 8601."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _show(last: Sequence[dict[str, Any]], upcoming: Sequence[dict[str, Any]]) -> None:
    if last:
        output.write_documents([f">{n}" if n in _NUMBERS else n for n in COLUMNS], last)
    else:
        click.echo("No run so far.")
    click.echo()
    if upcoming:
        output.write_rows(
            ("next", "at", "cron", "time zone"),
            (
                (
                    run["job"],
                    "paused" if run["paused"] else run["at"],
                    run["cron"],
                    run["time_zone"],
                )
                for run in upcoming
            ),
        )
    else:
        click.echo("Nothing is planned: start countersink scheduler.")


COMPACT: Final = "compact"
OVERDUE_MINUTES: Final = 5
"""After which a run that has not begun is told of."""


def look(mysql_url: str | None) -> dict[str, Any]:
    """Whether schedulers plan, the jobs that keep failing, the last compaction and the next runs,
    as ``--format json`` prints it; without MySQL, why nothing of it is known.
    """
    names = ("planning", "failing", "last_compaction", "next", "overdue", "jobs")
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
    tally = runs.tally(session)
    last = {
        name: run
        for name in tally
        for run in runs.last_runs(session, job=name, states=("done",), limit=1)
    }
    return {
        "planning": runs.is_planned(session),
        "failing": [
            output.document(one, ("job", "times", "since", "detail"), since=_second(one.since))
            for one in runs.failing(session)
        ],
        "last_compaction": _row(last[COMPACT]) if COMPACT in last else None,
        "next": next_rows(session),
        "overdue": list(map(_row, runs.overdue(session, OVERDUE_MINUTES))),
        "jobs": {
            job: {
                "last_success": _ended(last.get(job)),
                "runs": by_state,
            }
            for job, by_state in sorted(tally.items())
        },
    }


def render(found: Mapping[str, Any]) -> RenderableType:
    """The same for people."""
    if found["unknown"] is not None:
        return output.facts({"schedules": f"not known: {found['unknown']}"})
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
        warnings.append(
            f"{len(found['overdue']):,} planned runs have not begun, the first {first['job']} of"
            f" {first['planned']}: is countersink jobs running, and on the same Redis?"
        )
    warnings += [
        f"{one['job']} failed {one['times']} times in a row, since {one['since']}: {one['detail']}"
        f" (see countersink runs --job {one['job']})"
        for one in found["failing"]
    ]
    return Group(output.facts(facts), *(Text(output.cell(text), style="red") for text in warnings))


_DEFAULT: Final = CompactOptions()


@click.command("compact", cls=settings.Command)
@settings.one_off("--counter", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--before",
    type=DAY,
    help="Only days before this day, over or not.  [default: days that are over, and crowded keys]",
)
@settings.one_off(
    "--grace",
    type=click.FloatRange(0),
    default=_DEFAULT.grace_s,
    metavar="SECONDS",
    help="How long ago a day (hour, quarter) must have ended before all of it is compacted.",
)
@settings.one_off(
    "--threshold",
    type=click.IntRange(1),
    default=_DEFAULT.threshold,
    metavar="ROWS",
    help="Before --grace is over, only keys with more rows than this are compacted.",
)
@settings.one_off(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=_DEFAULT.share,
    help="Share of the time spent working; the rest is pause, to spare writers.",
)
@settings.of_mysql("table", "json")
def compact_command(
    counter: str | None,
    before: date | None,
    grace: float,
    threshold: int,
    share: float,
    format: str,
    mysql_url: str | None,
) -> int:
    """Compact now: add up the rows of each key in one row.

    The scheduled job does this by itself, in 4 % of the time. It is safe at any time and may be
    interrupted: totals stay the same, and writers go on. Rows that an open transaction holds are
    left for the next run. The status is 3 if keys were left as they are, because their different
    members cannot be read, or their width is unknown.
    """
    what = CompactOptions(
        counter=counter, before=before, grace_s=grace, threshold=threshold, share=share
    )
    connect = partial(move.open_tables, settings.needed(mysql_url, "mysql"))
    try:
        with progress.share("compact", "compacting", _described) as show:
            done = compact(connect, what, progress=show)
    except UnknownCounter as error:
        raise Failure(f"{error}: countersink totals --all lists what was") from error
    output.write_result(format, _document(done), partial(_show_compacted, done))
    return Exit.DIFFERS if done.unreadable or done.unknown else Exit.DONE


_NAMED: Final = 10
"""Places named; the others are counted."""


def _described(done: PassDone) -> tuple[float, str]:
    return done.share, f"{done.rows_before:,} rows became {done.rows_after:,}"


def _document(done: PassDone) -> dict[str, object]:
    """The result as JSON."""
    figures = output.document(done, ("rows_before", "rows_after", "ranges"))
    names = ("busy", "unreadable", "unknown")
    places = {name: _places(getattr(done, name)) for name in names}
    return {**figures, "seconds": round(done.seconds, 3), **places}


def _places(places: Sequence[BucketKey]) -> list[dict[str, object]]:
    return [
        {
            "counter": place.counter,
            "bucket": label_text(place.bucket),
            "width": _width(place),
            "key": _key(place),
        }
        for place in places
    ]


def _width(place: BucketKey) -> str:
    """The width of a bucket; of one that is unknown its number."""
    try:
        return width_of(place.bucket)
    except LookupError:
        return str(width_number(place.bucket))


def _key(place: BucketKey) -> str | None:
    return None if place.key is None else place.key.decode("utf-8", "surrogateescape")


def _show_compacted(done: PassDone) -> None:
    """The result for people."""
    if done.rows_before:
        figures = (done.rows_before, done.rows_after, output.ago(done.seconds))
        output.write_rows((">rows before", ">rows after", ">time"), [figures])
    elif not (done.busy or done.unreadable):
        click.echo(f"There was nothing to compact ({output.ago(done.seconds)}).")
    for what, places in done.left.items():
        click.echo(f"{what[0].upper()}{what[1:]}: {len(places):,}")
        for place in places[:_NAMED]:
            key = _key(place)
            bucket = f"  {place.counter} {_width(place)} {label_text(place.bucket)}"
            click.echo(bucket if key is None else f"{bucket} '{output.printable(key)}'")
        if len(places) > _NAMED:
            click.echo(f"  and {len(places) - _NAMED:,} more: --format json names all")
